"""The `qkv` command: the parser, and the edge where an error becomes one sentence and an exit code.

Exit codes: 0 done · 1 a fault of this program · 2 a request that cannot be honoured · 130 interrupted · 141 the reader
of a pipe went away.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from qkv.errors import ArgumentError, QkvError
from qkv.version import __version__

from . import attend, audit, demo, draw, info, learn, lens, streams, trace

__all__ = ["main"]

_EPILOG = """\
examples:
  qkv demo
  qkv trace --query 1,0 --key 1,0 0,1 --value 10,0 0,20
  qkv attend tensors.npz --mask 'causal & window(255, 0)' --out output.npz

Every command takes --help, and --json for output that a machine reads.
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with errors that go through the same edge as all others."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; see {self.prog} --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="qkv",
        description="Exact attention with one documented behaviour for every edge case.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"qkv {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    for module in (demo, trace, attend, audit, lens, info, learn):
        module.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises, never prints a traceback.

    Args:
        argv: the words after `qkv`; left out, those of the process.
    """
    streams.open_closed()
    streams.accept_any_character()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        # A pipe without a reader and a full disk show at the flush, and have to show inside the try.
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        streams.give_up_stdout()
        return 141
    except (QkvError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            streams.give_up_stdout()
        return _say(_one_sentence(error), 2)
    except MemoryError:
        return _say("there is not enough memory for this call; pass fewer heads or rows, or a smaller file", 2)
    except Exception as error:
        if os.environ.get("QKV_TRACEBACK"):
            raise
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return _say(f"this is a fault of qkv, please report it ({sentence}); QKV_TRACEBACK=1 shows where", 1)


def _run(argv: list[str]) -> int:
    parser = _parser()
    try:
        arguments = parser.parse_args(_guard_negative(argv))
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    if arguments.command is None:
        parser.print_help()
        return 0
    if not arguments.json:
        draw.require_rich()
    code: int = arguments.run(arguments)
    return code


def _guard_negative(argv: list[str]) -> list[str]:
    """Put a space before words such as `-1,0`, which argparse would take for an option."""
    return [f" {word}" if re.fullmatch(r"-[\d.][\d.,;eE+\s-]*", word) else word for word in argv]


def _one_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        reason = (error.strerror or type(error).__name__).lower()
        return f"{error.filename}: {reason}; give the path of a file that can be used"
    if isinstance(error, OSError):
        # Files have names; what has none is what the command prints or reads.
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        return f"the output cannot be written ({reason}); send it to another place, or make room there"
    return str(error)


def _say(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"qkv: {draw.printable(sentence)}", file=sys.stderr)
    return code

"""`qkv learn` by itself, which opens the lesson, and `qkv learn export`, which makes a static site of it."""

from __future__ import annotations

import argparse
import importlib.util
import re
import secrets
import sys
from pathlib import Path
from typing import Any

from qkv.errors import ArgumentError, UnsupportedError
from qkv.files.extras import how_to_install

from . import draw

__all__ = ["add_export", "add_serve"]

#: Where the lesson is looked for unless told otherwise.
PORT = 8642


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Give `qkv learn` its options; without a sub-command it opens the lesson."""
    parser.add_argument("--port", type=_port, default=PORT, metavar="N", help=f"port (default: {PORT}; 0: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the link and open nothing")
    parser.add_argument("--data", type=Path, metavar="FILE", help="your notebook (default: where your data is kept)")
    parser.add_argument(
        "--allow-host",
        type=_host,
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may come through a proxy, as in hosted notebooks; may be given again",
    )
    parser.add_argument(
        "--set-aside", action="store_true", help="move a damaged notebook to another name and begin a new one"
    )
    parser.add_argument("--json", action="store_true", help="print link and notebook as JSON")
    parser.set_defaults(run=run_serve)


def add_export(commands: Any) -> None:
    """Add `export` to the sub-commands of `qkv learn`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="make a static site of lessons and lab",
        description="Make a static site of lessons and lab, which any web server serves under any path. Notes are kept "
        "in the reader's browser there.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder, or an earlier export")
    parser.add_argument(
        "--no-solutions",
        action="store_true",
        help="leave the labs' solutions out of the files; py/plain.py, by which the lab judges, stays",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=run_export)


def run_serve(arguments: argparse.Namespace) -> int:
    """Open the notebook, serve the lesson, and say where both are."""
    _require("starlette", "uvicorn", "markdown_it", "pygments")
    from qkv.learn.assets import assets_folder
    from qkv.learn.lessons import lessons
    from qkv.learn.notebook import Notebook
    from qkv.learn.notebook_file import default_path
    from qkv.learn.server import create_app, listen, serve

    assets = assets_folder()
    built = lessons()
    path = (arguments.data if arguments.data is not None else default_path()).expanduser().absolute()
    if arguments.set_aside:
        _set_aside(path, arguments.json)
    listener = listen(arguments.port)
    port = listener.getsockname()[1]
    token, once = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    with listener, Notebook(path) as notebook:
        hosts = tuple(arguments.allow_host)
        application = create_app(notebook, built, assets, token=token, port=port, allow_hosts=hosts, once=once)
        base = f"http://127.0.0.1:{port}/?token="
        if arguments.json:
            draw.write_json({"link": base + token, "notebook": str(path)})
        else:
            draw.lines(f"The lesson is at {base}{token}\nYour notebook is {_short(path)}\nCtrl-C stops it.")
        sys.stdout.flush()
        # Other users see the command lines of this machine, so the browser gets a token that opens once.
        serve(application, listener, None if arguments.no_browser else base + once)
    if not arguments.json:
        draw.lines(f"\nStopped. Everything you wrote is in {_short(path)}")
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    """Write the site and say what is in it."""
    _require("markdown_it", "pygments")
    from qkv.learn.assets import assets_folder
    from qkv.learn.lessons import lessons
    from qkv.learn.site import export_site

    files = export_site(arguments.folder, lessons(), assets_folder(), solutions=not arguments.no_solutions)
    size = sum(file.stat().st_size for file in files)
    if arguments.json:
        draw.write_json({"folder": str(arguments.folder), "files": len(files), "bytes": size})
        return 0
    draw.text(f"{len(files)} files, {size / 1e6:.1f} MB, in {arguments.folder}", indent=9, label="wrote")
    if arguments.no_solutions:
        draw.text(
            "the labs' solutions are not among them; the definition that the grader compares with has to be, in "
            "py/plain.py: it is no solution as it stands, but who reads it has one",
            indent=9,
        )
    draw.text(f"python -m http.server --directory {arguments.folder}", indent=9, label="to see")
    return 0


def _set_aside(path: Path, as_json: bool) -> None:
    """Move the notebook away if it is damaged, and only then."""
    from qkv.learn.notebook import Notebook
    from qkv.learn.notebook_file import DamagedError, set_aside

    if not path.exists():
        return
    try:
        Notebook(path).close()
    except DamagedError:
        aside = set_aside(path)
        if not as_json:
            draw.lines(f"The damaged notebook is now {_short(aside)}")
    else:
        raise ArgumentError(f"--set-aside is for a damaged notebook, but {path} is whole; leave it out")


def _require(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"the lesson needs the package {missing[0].replace('_', '-')}, which is not installed; "
            + how_to_install("learn")
        )


def _port(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a whole number from 0 to 65535, but {text!r} came")
    return int(text)


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"a host is a name such as hub.example.org, but {text!r} came")
    return text


def _short(path: Path) -> str:
    """The path as people write it."""
    return str(Path("~", path.relative_to(Path.home()))) if path.is_relative_to(Path.home()) else str(path)

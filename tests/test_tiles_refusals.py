"""What a processor refuses ends the process with a line that says so, and the emulator leaves all else as it was.

Each case ends a process of its own. Where the processor has tiles, it is the one that refuses.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support import tiles
from support.tiles import config


@pytest.fixture
def emulator() -> Iterator[tiles.Tiles]:
    with tiles.emulated() as t:
        yield t


#: Run by a bare interpreter: what it does after the handler is in place ends it.
CHILD = """
import ctypes, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
emulator, programs = map(ctypes.CDLL, sys.argv[1:3])
def configure(text): programs.configure(bytes.fromhex(text))
if emulator.qkv_tiles_processor() == 0: emulator.qkv_tiles_install()
exec(sys.argv[3])
print("lived on")
"""


def end_of(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    paths = (str(tiles.compiled(name)) for name in ("tiles.c", "tiles_programs.c"))
    command = [sys.executable, "-I", "-S", *options, "-c", CHILD, *paths, code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def configured(code: str, *, palette: int = 1, **shapes: tuple[int, int]) -> str:
    return f"configure('{config(palette=palette, **shapes).tobytes().hex()}'); {code}"


def one_at(place: int) -> str:
    """A sound configuration but for a byte that is 1."""
    changed = config(t0=(16, 64))
    changed[place] = 1
    return f"configure('{changed.tobytes().hex()}')"


FULL = {"t0": (16, 64), "t1": (16, 64), "t2": (16, 64)}
#: What a processor refuses -> the code, and what the line says.
REFUSED = {
    "palette": (configured("", palette=2), "LDTILECFG raises #GP: there is no palette 2"),
    "rows": (configured("", t3=(17, 64)), "LDTILECFG raises #GP: tile 3 has 17 rows, more than 16"),
    "bytes": (configured("", t3=(16, 68)), "LDTILECFG raises #GP: tile 3 has rows of 68 bytes, more than 64"),
    "rows alone": (configured("", t1=(16, 0)), "LDTILECFG raises #GP: tile 1 is 16 rows of 0 bytes"),
    "reserved byte": (one_at(2), "LDTILECFG raises #GP: reserved bytes are not 0"),
    "ninth tile's bytes": (one_at(32), "LDTILECFG raises #GP: reserved bytes are not 0"),
    "ninth tile's rows": (one_at(56), "LDTILECFG raises #GP: reserved bytes are not 0"),
    "no configuration": ("programs.zero_0()", "TILEZERO raises #UD: no tiles are configured"),
    "released": (
        configured("programs.release(); programs.multiply_only()", **FULL),
        "TDPBF16PS raises #UD: no tiles are configured",
    ),
    "other tile": (configured("programs.zero_7()", t0=(1, 4)), "TILEZERO raises #UD: tile 7 is not configured"),
    "odd bytes": (
        configured("programs.multiply_only()", **(FULL | {"t1": (16, 63)})),
        "TDPBF16PS raises #UD: tile 1 has rows of 63 bytes, no multiple of 4",
    ),
    "same tile twice": (
        configured("programs.multiply_by_itself()", **FULL),
        "TDPBF16PS raises #UD: its tiles 0, 1, 1 are not three",
    ),
    "rows differ": (
        configured("programs.multiply_only()", **(FULL | {"t1": (15, 64)})),
        "TDPBF16PS raises #UD: the destination has 16 rows, the first source 15",
    ),
    "columns differ": (
        configured("programs.multiply_only()", **(FULL | {"t2": (16, 60)})),
        "TDPBF16PS raises #UD: the destination has rows of 64 bytes, the second source of 60",
    ),
    "pairs differ": (
        configured("programs.multiply_only()", **(FULL | {"t2": (15, 64)})),
        "TDPBF16PS raises #UD: the first source has 16 pairs in a row, the second 15 rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_processor_refuses_ends_the_process_with_a_line(emulator, name):
    code, line = REFUSED[name]
    done = end_of(code)
    assert done.stdout == ""
    if emulator.hardware:
        assert done.returncode in (-signal.SIGSEGV, -signal.SIGILL)
    else:
        assert done.returncode == -signal.SIGABRT
        assert done.stderr.startswith(f"tiles: {line} (tiles_programs.so + 0x")
        assert done.stderr.count("\n") == 1


def test_a_start_at_another_row_is_not_emulated(emulator):
    """It is legal: an interrupted load goes on so."""
    done = end_of(one_at(1))
    assert (done.stdout == "lived on\n") == emulator.hardware
    assert emulator.hardware or "a start at row 1 is legal, and not emulated" in done.stderr


def test_the_same_code_without_a_fault_lives_on(emulator):
    """So that what ended the others was the fault."""
    assert end_of(configured("programs.multiply_only()", **FULL)).stdout == "lived on\n"


@pytest.mark.parametrize("name", ["undefined", "undefined_neighbour", "undefined_ninth_tile", "undefined_without_sib"])
def test_other_undefined_instructions_still_kill(emulator, name):
    done = end_of(configured(f"programs.{name}()", t0=(1, 4)))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGILL, "", "")


def test_a_handler_that_was_there_before_still_has_its_say(emulator):
    done = end_of("programs.undefined()", "-X", "faulthandler")
    assert done.returncode == -signal.SIGILL
    assert "Illegal instruction" in done.stderr


def test_a_signal_that_somebody_sends_still_kills(emulator):
    assert end_of("os.kill(os.getpid(), signal.SIGILL)").returncode == -signal.SIGILL


def test_nothing_is_emulated_after_the_block(emulator):
    if emulator.hardware:
        pytest.skip("the processor runs them itself")
    done = end_of(configured("programs.zero_0(); emulator.qkv_tiles_remove(); programs.zero_0()", t0=(1, 4)))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGILL, "", "")

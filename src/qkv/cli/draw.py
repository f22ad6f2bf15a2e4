"""What the commands show: the one file of this package that knows `rich`.

`rich` leaves colour out where NO_COLOR is set or the output is a pipe. Text from files and arguments is never read as
markup, and control characters in it are shown, not sent to the terminal.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qkv.errors import UnsupportedError
from qkv.files.extras import how_to_install

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "has_colour",
    "heading",
    "lines",
    "number",
    "printable",
    "progress",
    "require_rich",
    "shaded",
    "table",
    "text",
    "write_json",
]

WIDTH = 80


def require_rich() -> None:
    """Raise where `rich` is missing.

    Raises:
        UnsupportedError: the sentence that says how to get it, or how to do without.
    """
    if importlib.util.find_spec("rich") is None:
        raise UnsupportedError(
            "drawing on the console needs the package rich, which is not installed; "
            f"{how_to_install('cli')}, or pass --json for output that a machine reads"
        )


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the edge of the command, as for plain `print`."""
            raise BrokenPipeError

    console = Quiet(
        file=sys.stderr if stderr else sys.stdout,
        # NO_COLOR alone would leave bold and dim.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    # A wide terminal does not stretch a table, and a pipe gets the same lines as a terminal of 80 columns.
    console.width = min(console.width, WIDTH)
    return console


def text(line: str = "", style: str = "", *, indent: int = 0, label: str = "") -> None:
    """Print prose, wrapped to the console and indented; a label stands in the indent of the first line."""
    from rich.text import Text

    console = _console()
    wrapped = Text(printable(line)).wrap(console, console.width - indent)
    for at, part in enumerate(wrapped):
        part.rstrip()
        console.print(Text(label.ljust(indent) if at == 0 else " " * indent) + Text(part.plain, style), soft_wrap=True)


def heading(line: str) -> None:
    """Print a blank line and a title."""
    text()
    text(line, "bold")


def lines(block: str) -> None:
    """Print text that is laid out already, as it is."""
    from rich.text import Text

    _console().print(Text(printable(block)), soft_wrap=True)


def has_colour() -> bool:
    """Whether what is printed can be told apart by colour."""
    return _console().color_system is not None


def shaded(parts: Sequence[tuple[str, float, bool]]) -> None:
    """Print pieces of running text on backgrounds as strong as their shade, 0…1; a marked piece is reversed.

    Without colour the strongest quarter is bold and what is marked stands in brackets.
    """
    from rich.text import Text

    console = _console()
    colour = console.color_system is not None
    out = Text()
    for piece, shade, marked in parts:
        said = printable(piece)
        if marked:
            out.append(said if colour else f"[{said}]", "reverse" if colour else "bold")
        elif colour and shade > 0.04:
            blue = round(95 + 160 * min(shade, 1.0))
            out.append(
                said,
                f"on rgb({blue // 5},{blue // 3},{blue})"
                if shade <= 0.5
                else f"black on rgb({blue // 3},{blue // 2},{blue})",
            )
        else:
            out.append(said, "bold" if shade > 0.25 else "")
    console.print(out)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (), bold: Sequence[int] = ()
) -> None:
    """Print a table of strings.

    Args:
        columns: the heads.
        rows: as many cells each as there are heads.
        left: indices of the columns that hold words and stand to the left; the others are numbers, to the right.
        bold: indices of rows to stress.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, column in enumerate(columns):
        drawn.add_column(column, justify="left" if at in left else "right", no_wrap=at not in left, overflow="fold")
    for at, row in enumerate(rows):
        drawn.add_row(*(Text(printable(cell), style="bold" if at in bold else "") for cell in row))
    _console().print(Padding(drawn, (0, 0, 0, 2), expand=False))


@contextmanager
def progress(title: str, steps: int, show: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr while long work runs; gives the function to call after each step.

    Nothing is drawn unless `show` is set and stderr is a terminal. One step alone is drawn as a spinner with the time.
    """
    if not show or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    console = _console(stderr=True)
    if steps > 1:
        # Without colour the part of a bar that is to come cannot be told from nothing, so it is said in numbers.
        counted = TextColumn("{task.completed:.0f} of {task.total:.0f}", markup=False)
        columns += [BarColumn() if console.color_system else counted, TaskProgressColumn()]
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=steps)
        yield lambda: bar.advance(task)


def printable(said: str) -> str:
    r"""The text with control characters written out, so that it cannot drive the terminal; line ends stay.

    >>> printable("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in said)


def number(value: float, digits: int = 4) -> str:
    """A number for people.

    >>> number(2.5), number(1234567.0), number(2.1e-07, 2)
    ('2.5', '1.235e+06', '2.1e-07')
    """
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def write_json(record: object) -> None:
    """Print one JSON document; NaN and infinities, which JSON has no word for, become null."""
    print(json.dumps(_finite(record), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value

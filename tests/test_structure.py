"""The house: which file may import which, and what may not exist. Read from the source text, nothing is imported.

The way of the arrow is told in docs/design.md: rooms → front door → contract → plan → engine → state. Imports inside
functions count like any other. Imports for types alone (`if TYPE_CHECKING`) never run and do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "qkv"

#: From the bottom up. A module may import modules of the layers above its own line in this table, and within its own
#: package (engines, files, cli) its neighbours, as long as there is no circle.
LAYERS = {
    "the extension": ("_native",),
    "nothing of ours": (
        "defaults",
        "errors",
        "floats",
        "ranges",
        "version",
        "reference",
        "plain",
    ),
    "numbers": ("interop", "state", "frame", "files", "real", "growing", "pages", "reference_gradient"),
    "positions": ("align",),
    "futures": ("future",),
    "algebra": ("algebra",),
    "rules": ("rules", "alibi"),
    "masks": ("masks",),
    "record": ("problem", "cache", "maskparse"),
    "a cache as argument": ("held",),
    "contract": ("contract", "plan"),
    "engines": ("engines",),
    "rows of weights": ("weights",),
    "behind the door": ("diagnose", "questions", "bounds", "recipes"),
    "answers of a picture's size": ("pooled", "answers"),
    "front door": ("attention", "partial", "explain", "info", "gradient"),
    "front door, packed": ("packed",),
    "rooms": ("multihead", "trace", "headview"),
    "bridge to torch": ("torch",),
    "bridge to models": ("transformers",),
    "public names": ("",),
    "bridges": ("models",),
    "big rooms": ("learn", "audit", "lens"),
    "command line": ("cli",),
    "python -m qkv": ("__main__",),
}

#: Rooms that are folders: they bring packages of their own extra, draw cases by chance, and hold wrong formulas on
#: purpose. What the library may not do is asked of everything but them.
BIG_ROOMS = ("learn", "audit", "lens")

#: Nobody below the front door may know of these.
ROOMS = (
    "multihead",
    "trace",
    "headview",
    "torch",
    "transformers",
    "models",
    "learn",
    "audit",
    "lens",
    "real",
    "files",
    "maskparse",
    "cli",
)

#: Optional packages, and the files that may import each, inside a function: one of the library, and bridges.
OPTIONAL = {
    "torch": {"interop", "models.build", "transformers.library", "engines.torch_tiles"},
    "jax": {"interop"},
    "rich": {"cli.draw"},
    "safetensors": {"files.safetensors"},
    "ml_dtypes": {"cli.attend"},
    "transformers": {"models.build", "transformers.library"},
    "tokenizers": {"models.build"},
}

#: Files that are longer than the limit, and why they stay one file. A file that has become short fails here.
LONGEST = 450
LONGER = {
    "learn/grader.py": "the browser loads it as one file beside plain.py; half of it is cases, twins and causes",
    "audit/readings.py": "the named conventions, one table with the rewriting each stands for",
    "headview.py": "one picture; its table and its text share the geometry",
    "trace.py": "the steps, their table and their picture, for the browser a file of its own",
}

#: Numbers that look like tile sizes and are none, and why.
NO_TILES = {
    ("cache", 64): "tokens of a page where nobody says otherwise",
    ("growing", 64): "the room a cache starts with",
    ("contract", 256): "how many causal ranges are remembered",
    (
        "future",
        64,
    ): "rows asked at a time whether they read the future; it stands below the plan, and no sum depends on it",
}


@cache
def modules() -> dict[str, Path]:
    """Dotted name within the package ("" for the package itself) -> file."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def library() -> list[str]:
    """The modules outside the big rooms."""
    return [name for name in modules() if top(name) not in BIG_ROOMS]


def is_package(name: str) -> bool:
    return modules()[name].name == "__init__.py"


def _by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node imports a module by its name as text."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
        "import_module",
        "__import__",
    )


def _running(node: ast.AST, inside: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import that can run, `importlib.import_module("name")` too, and whether it stands in a function."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node, inside
        return
    if _by_name(node) and isinstance(node.args[0], ast.Constant):
        yield ast.Import([ast.alias(str(node.args[0].value))]), inside
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = list(node.orelse)
    for child in children:
        yield from _running(child, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def foreign(source: ast.Module) -> Iterator[tuple[str, bool]]:
    """Top-level packages other than ours that a module imports, and whether inside a function."""
    for node, inside in _running(source, False):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        else:
            names = [] if node.level else [(node.module or "").split(".")[0]]
        yield from ((name, inside) for name in names if name != "qkv")


def ours(name: str, source: ast.Module, package: bool, known: frozenset[str]) -> set[str]:
    """Our own modules that a module imports: the deepest one each import names."""
    found = set()
    for node, _ in _running(source, False):
        if isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("qkv").lstrip(".") for alias in node.names if alias.name.split(".")[0] == "qkv"
            }
            continue
        if node.level:
            here = name.split(".") if name else []
            here = here if package else here[:-1]
            base = ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])
        elif (node.module or "").split(".")[0] == "qkv":
            base = (node.module or "").removeprefix("qkv").lstrip(".")
        else:
            continue
        for alias in node.names:
            deeper = f"{base}.{alias.name}".lstrip(".")
            found.add(deeper if deeper in known else base)
    return found


@cache
def graph() -> dict[str, frozenset[str]]:
    known = frozenset(modules()) | {"_native"}
    return {name: frozenset(ours(name, tree(name), is_package(name), known)) for name in modules()}


def top(name: str) -> str:
    """The entry of the table that a module falls under: files of a subpackage stand together."""
    return name.split(".")[0]


def rank(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS.values()) if top(name) in names)


def arrows(edges: dict[str, frozenset[str]]) -> list[str]:
    """Imports that point the wrong way."""
    return [
        f"{name or 'qkv'} imports {other or 'qkv'}"
        for name, others in edges.items()
        for other in sorted(others)
        if top(name) != top(other) and rank(other) >= rank(name)
    ]


def circle(edges: dict[str, frozenset[str]]) -> list[str]:
    """The first circle of imports, or nothing."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(edges.get(name, ())):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in edges if (found := walk(name, []))), [])


def test_every_module_has_its_place():
    placed = [name for names in LAYERS.values() for name in names]
    assert len(placed) == len(set(placed))
    found = {top(name) for name in modules()} | {"_native"}
    assert found <= set(placed)
    assert set(placed) - found <= set(BIG_ROOMS)


def test_imports_are_spelled_out():
    """A name that is computed could be any module; the big rooms choose among their own files so."""
    computed = [
        f"{name}: {ast.unparse(node)}"
        for name in library()
        for node in ast.walk(tree(name))
        if _by_name(node) and not isinstance(node.args[0], ast.Constant)
    ]
    assert computed == []


def test_imports_point_down():
    assert arrows(graph()) == []


def test_no_circles():
    assert circle(graph()) == []


def test_nothing_below_knows_of_a_room():
    knows = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if top(other) in ROOMS and top(name) not in (*ROOMS, "", "__main__")
    ]
    assert knows == []


def test_big_rooms_do_not_know_each_other():
    known = {(top(name), top(other)) for name, others in graph().items() for other in others}
    assert not known & {(a, b) for a in BIG_ROOMS for b in BIG_ROOMS if a != b}


def test_only_the_contract_and_what_is_in_front_of_it_reads_arguments():
    """Behind contract.py nobody sees user arguments: the engines, the plan and the state never import it."""
    behind = [name for name in graph() if top(name) in ("plan", "engines", "state", "problem", "questions", "diagnose")]
    assert [name for name in behind if "contract" in graph()[name]] == []


def test_one_file_touches_the_extension():
    assert [name for name, others in graph().items() if "_native" in others] == ["engines.native"]


@pytest.mark.parametrize("package", OPTIONAL)
def test_optional_packages_are_imported_by_few_files_inside_a_function(package):
    """But for the bridge of that name, which nothing loads until it is asked for (tests/test_import.py)."""
    users = {
        (name, inside)
        for name in library()
        for other, inside in foreign(tree(name))
        if other == package and top(name) != package
    }
    assert users <= {(name, True) for name in OPTIONAL[package]}


def test_frameworks_are_looked_up_by_one_file():
    """interop takes torch and JAX from sys.modules, where they are if the caller has an array of theirs."""
    users = {
        name
        for name in library()
        for node in ast.walk(tree(name))
        if isinstance(node, (ast.Subscript, ast.Call)) and ast.unparse(node).startswith("sys.modules")
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in ("torch", "jax")
    }
    assert users == {"interop"}


def test_numpy_is_the_only_dependency():
    others = {name for module in library() for name, _ in foreign(tree(module))}
    assert others - set(sys.stdlib_module_names) - set(OPTIONAL) == {"numpy"}


def test_plain_python_rooms_need_no_numpy():
    """The definition in lists and the trace are for people who learn, and for the browser."""
    for name in ("plain", "trace"):
        assert "numpy" not in {other for other, _ in foreign(tree(name))}
        assert graph()[name] <= {"plain", "errors", "version"}


def test_no_drawer_for_odds_and_ends():
    assert {name.split(".")[-1] for name in modules()} & {"utils", "util", "common", "helpers", "misc"} == set()


def test_one_definition():
    """A softmax needs an exponential: exp is called by the definition, its twin in lists, the state, the NumPy engine,
    the questions and the bounds, and nowhere else."""
    users = {
        name
        for name in library()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("exp", "exp2")
    }
    assert users <= {
        "reference",
        "reference_gradient",
        "plain",
        "state",
        "engines.numpy_tiles",
        "engines.numpy_backward",
        "engines.gradients",
        "engines.torch_tiles",
        "weights",
        "questions",
        "bounds",
    }


def test_no_chance():
    """The library draws no random numbers (F4); examples in docstrings may, and the big rooms."""
    users = [
        name
        for name in library()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute) and node.attr == "random" and ast.unparse(node.value) in ("np", "numpy")
    ]
    assert users == []
    assert [name for name in library() for other, _ in foreign(tree(name)) if other == "random"] == []


def numbers(source: ast.Module) -> Iterator[int]:
    """Whole numbers that could be a tile's size: powers of two from 16 up, also as 1 << n; exponents are not."""
    exponents = {
        id(node.right) for node in ast.walk(source) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    }
    exponents |= {id(sub) for node in ast.walk(source) if id(node) in exponents for sub in ast.walk(node)}
    for node in ast.walk(source):
        if isinstance(node, ast.Constant) and type(node.value) is int and id(node) not in exponents:
            value = node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.LShift, ast.Pow)):
            try:
                value = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
            except (NameError, TypeError):
                continue
        else:
            continue
        if isinstance(value, int) and value >= 16 and value & (value - 1) == 0:
            yield value


#: Where tiles are walked, or could be.
WALKERS = (
    "engines",
    "weights",
    "questions",
    "diagnose",
    "attention",
    "partial",
    "contract",
    "problem",
    "cache",
    "growing",
    "pages",
    "state",
    "future",
)


def test_tile_sizes_live_in_the_plan():
    """F3: the order of additions is decided in one file."""
    found = {(name, n) for name in modules() if top(name) in WALKERS for n in numbers(tree(name))}
    assert found == set(NO_TILES)


def test_files_are_small():
    long = {
        str(p.relative_to(SOURCE)): n for p in modules().values() if (n := p.read_text("utf-8").count("\n")) > LONGEST
    }
    assert set(long) == set(LONGER), long


# The tester is tested: each check is seen to fail on a planted fault.


def _imports(name: str, text: str, package: bool = False) -> set[str]:
    return ours(name, ast.parse(text), package, frozenset(modules()) | {"_native"})


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("plan", "from .engines import native", {"engines.native"}),
        ("engines.native", "from .. import _native", {"_native"}),
        ("engines.native", "from ..errors import EngineError", {"errors"}),
        ("masks", "def f():\n from .future import g", {"future"}),
        ("masks", "import qkv.cli.main", {"cli.main"}),
        ("masks", "from qkv import attention, attend", {"attention", ""}),
        ("masks", "if TYPE_CHECKING:\n from .future import g", set()),
        ("engines.native", "x = importlib.import_module('qkv._native')", {"_native"}),
        ("masks", "try:\n from .cli import main\nexcept ImportError: pass", {"cli.main"}),
    ],
)
def test_planted_imports_are_read(name, text, found):
    assert _imports(name, text) == found


def test_planted_arrow_and_circle_are_seen():
    wrong = {**graph(), "plan": graph()["plan"] | {"engines"}}
    assert arrows(wrong) == ["plan imports engines"]
    assert circle(wrong) == ["plan", "engines", "engines.native_call", "plan"]
    assert circle({**graph(), "floats": frozenset({"ranges"}), "ranges": frozenset({"floats"})})


def test_planted_tile_sizes_are_seen():
    assert list(numbers(ast.parse("a = 128; b = 1 << 20; c = 2.0**-64; d = 100; e = x << 3"))) == [128, 1 << 20]

"""The shape of the package: which room may import which, docstrings, public names."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import probsa

SOURCE = Path(probsa.__file__).parent

# A room imports only the rooms above it, and only through their `__init__`.
ROOMS = [
    "removed",
    "errors",
    "core",
    "statistics",
    "variational",
    "tasks",
    "slides",
    "patches",
    "features",
    "jobs",
    "cohorts",
    "datasets",
    "layers",
    "models",
    "training",
    "evaluation",
    "maps",
    "view",
    "exports",
    "workflow",
    "estimators",
    "benchmark",
    "cli",
    "__main__",
]
SINGLE_FILES = {"removed", "errors", "__main__"}
WORDS_FOREIGN_TO_JOBS = re.compile("slide|model", re.IGNORECASE)
LINES_OF_A_HEADER = 6
LONGER_HEADER = {"__init__.py": "it draws the flow", "errors.py": "it draws the tree of errors"}
PUBLIC = [
    "Bag",
    "Bags",
    "MILClassifier",
    "MILRegressor",
    "MILSurvival",
    "PerInstance",
    "ProbSAError",
    "from_pretrained",
    "load",
    "models",
    "pack",
    "predict_folder",
    "train_and_report",
]


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def label(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


MODULES = [pytest.param(path, id=label(path)) for path in modules()]


def room(path: Path, source: Path = SOURCE) -> str:
    """The room that a file belongs to; the package's own `__init__` belongs to none."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, source: Path = SOURCE) -> Iterator[tuple[str, str | None]]:
    """The (module, name) pairs that a file imports from the package, wherever the import stands."""
    package = ["probsa", *path.relative_to(source).parts[:-1]]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.startswith("probsa."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "probsa" or module.startswith("probsa."):
                yield from ((module, a.name) for a in node.names)


def faults(path: Path, source: Path = SOURCE) -> set[str]:
    """The imports of a file that break the rule of rooms, each with the reason."""
    own = room(path, source)
    found = set()
    for module, name in imports(path, source):
        parts = module.split(".")
        if parts == ["probsa"]:
            if name in ROOMS and name != own:
                found.add(f"{module}: {name} is imported as a module")
            continue
        other = parts[1]
        if other == own:
            continue
        if other not in ROOMS:
            found.add(f"{module}: no such room")
        elif ROOMS.index(other) > ROOMS.index(own):
            found.add(f"{module}: below {own}")
        elif len(parts) > 2 or name is None:
            found.add(f"{module}: not through the room's __init__")
        elif name.startswith("_"):
            found.add(f"{module}.{name}: private to its room")
    return found


def import_cycle(room_folder: Path) -> list[str]:
    """Return modules of a room that import each other in a circle, wherever the import stands."""
    source = room_folder.parent
    graph = {p.relative_to(source).with_suffix("").as_posix(): p for p in room_folder.rglob("*.py")}
    uses: dict[str, set[str]] = {}
    for name, path in graph.items():
        uses[name] = set()
        for module, imported in imports(path, source):
            parts = module.removeprefix("probsa.").split(".")
            for candidate in ("/".join([*parts, imported or ""]), "/".join(parts)):
                if candidate in graph and candidate != name:
                    uses[name].add(candidate)
                    break
    while True:  # remove modules that import no other; what is left is in a circle, or leads to one
        free = {name for name, used in uses.items() if not used & set(uses)}
        if not free:
            return sorted(uses)
        uses = {name: used for name, used in uses.items() if name not in free}


@pytest.mark.parametrize("name", sorted(set(ROOMS) - SINGLE_FILES))
def test_a_room_has_no_import_cycle(name):
    assert import_cycle(SOURCE / name) == []


def test_a_cycle_is_found_also_within_functions(tmp_path):
    folder = tmp_path / "layers"
    folder.mkdir()
    (folder / "a.py").write_text("from .b import x\n")
    (folder / "b.py").write_text("def f():\n    from .a import y\n")
    (folder / "c.py").write_text("from .a import z\n")
    (folder / "d.py").write_text("import math\n")
    assert import_cycle(folder) == ["layers/a", "layers/b", "layers/c"]
    (folder / "b.py").write_text("")
    assert import_cycle(folder) == []


def test_the_package_has_exactly_these_rooms():
    assert {room(path) for path in modules()} - {"__init__"} == set(ROOMS)
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} == SINGLE_FILES


@pytest.mark.parametrize("path", [p for p in MODULES if p.id != "__init__.py"])
def test_a_room_imports_only_rooms_above_it_through_their_init(path):
    assert faults(path) == set()


def test_an_import_that_breaks_the_rule_is_found(tmp_path):
    (tmp_path / "layers").mkdir()
    file = tmp_path / "layers" / "a.py"
    file.write_text(
        "import probsa.cli\nfrom .. import maps\nfrom ..training import train\nfrom .b import c\n"
        "from .. import __version__\nfrom ..core import Bags\nfrom ..core.bags import pack\n"
        "def f():\n    from ..variational import _private\n    from ..heads import x\n"
    )
    assert {fault.partition(":")[0] for fault in faults(file, tmp_path)} == {
        "probsa.cli",
        "probsa",
        "probsa.training",
        "probsa.core.bags",
        "probsa.variational._private",
        "probsa.heads",
    }


@pytest.mark.parametrize("name", [r for r in ROOMS if r not in SINGLE_FILES])
def test_the_init_of_a_room_is_its_list_of_names(name):
    """Each name of the stub can be imported, and an unknown one is an AttributeError."""
    package = import_module(f"probsa.{name}")
    assert [n for n in package.__all__ if not hasattr(package, n)] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_jobs_knows_nothing_of_what_the_jobs_are():
    for path in (SOURCE / "jobs").rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            found = WORDS_FOREIGN_TO_JOBS.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{label(path)}: {found}"


def test_statistics_needs_neither_torch_nor_bags():
    for path in (SOURCE / "statistics").rglob("*.py"):
        rooms = {module.split(".")[1] for module, _ in imports(path) if module != "probsa"}
        assert rooms <= {"errors", "statistics", "core"}, label(path)
        names = {name for module, name in imports(path) if module.split(".")[1:2] == ["core"]}
        assert names <= {"counted"}, label(path)
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE), label(path)


@pytest.mark.parametrize("path", MODULES)
def test_what_is_public_is_documented(path):
    tree = parse(path)
    assert ast.get_docstring(tree), "every module has a docstring"
    lines = [line for line in ast.get_docstring(tree).splitlines() if line.strip()]
    assert len(lines) <= LINES_OF_A_HEADER or label(path) in LONGER_HEADER
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []


def test_the_public_names_are_these():
    assert sorted(probsa.__all__) == PUBLIC
    assert all(getattr(probsa, name) is not None for name in PUBLIC)
    with pytest.raises(AttributeError, match="trainn"):
        _ = probsa.trainn


def test_the_library_does_not_print_exit_or_catch_everything():
    banned = {"print", "exit", "quit", "breakpoint"}
    for path in modules():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{label(path)}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), label(path)


def test_no_code_asks_which_posterior_it_is():
    kinds = {"Dirac", "Diagonal", "Field", "Posterior"}
    for path in sorted(SOURCE.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""
            if name in ("isinstance", "type"):
                asked = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)} & kinds
                assert not asked, f"{path.relative_to(SOURCE)}:{call.lineno} asks for {asked}"

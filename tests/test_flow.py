"""The shape of the package: which stage may import which, budgets, docstrings, public names."""

import ast
from pathlib import Path

import pytest

import probsa

SOURCE = Path(probsa.__file__).parent

# A module imports only what stands before it; a folder counts as one. The flow of the package:
ORDER = [
    "errors",
    "files",
    "randomness",
    "segments",
    # 1 slide
    "slides",
    # 2 patches
    "patches",
    # 3 features
    "features",
    # 4 graph
    "graphs",
    # 5 bags
    "bags",
    "store",
    "datasets",
    # 1 to 3 for many slides
    "cohorts",
    # 6 model
    "likelihoods",
    "priors",
    "posteriors",
    "layers",
    "models",
    # 7 objective
    "schedules",
    "objectives",
    # 8 training
    "config",
    "runfile",
    "runs",
    "batching",
    "devices",
    "checkpoints",
    "conversion",
    "preparation",
    "lookahead",
    "optimizers",
    "progress",
    "training",
    "heads",
    # 9 evaluation
    "evaluation",
    # 10 maps
    "maps",
    # the stages in a row
    "workflow",
    "benchmark",
    "demo",
    "doctor",
    "terminal",
    "commands",
    "cli",
    "__main__",
]
LINES_OF_A_MODULE = 400
LINES_OF_A_FUNCTION = 60
LINES_OF_A_HEADER = 6
# what may be longer (file.py, or file.py:Class.method), and why
LONGER: dict[str, str] = {}
# whose header may be longer, and why
LONGER_HEADER = {"__init__.py": "it draws the flow", "errors.py": "it draws the tree of errors"}
PUBLIC = [
    "Bag",
    "Bags",
    "ProbSAError",
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


def stage(path: Path) -> str:
    """The entry of ORDER that a file belongs to; the package's own `__init__` belongs to none."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def executed(tree: ast.AST):
    """Every node but those that only a type checker sees."""
    for child in ast.iter_child_nodes(tree):
        types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not types_only:
            yield child
            yield from executed(child)


def imported(path: Path) -> set[str]:
    """Entries of ORDER that a file imports, at its head or inside its functions."""
    package = ["probsa", *path.relative_to(SOURCE).parts[:-1]]
    found = set()
    for node in executed(parse(path)):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{whole}.{a.name}" for a in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("probsa.")}
    return found - {"__version__"}


def functions(tree: ast.AST, prefix: str = ""):
    """Every function with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions(node, f"{name}.")


def test_every_stage_has_its_place_and_every_place_a_stage():
    there = {stage(path) for path in modules()} - {"__init__"}
    assert there == set(ORDER)


@pytest.mark.parametrize("path", MODULES)
def test_no_import_points_forward(path):
    own = stage(path)
    # the package's first page re-exports from every stage
    allowed = ORDER if own == "__init__" else ORDER[: ORDER.index(own) + 1]
    assert imported(path) - set(allowed) == set()


def test_an_import_that_points_forward_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("test_flow.SOURCE", tmp_path)
    (tmp_path / "layers").mkdir()
    file = tmp_path / "layers" / "a.py"
    file.write_text(
        "import probsa.cli\nfrom .. import maps\nfrom ..training import train\nfrom .b import c\n"
        "from .. import __version__\nif TYPE_CHECKING:\n    from ..demo import x\n"
        "def f():\n    from ..evaluation.metrics import auroc\n"
    )
    assert imported(file) == {"cli", "maps", "training", "layers", "evaluation"}


def too_long(path: Path) -> set[str]:
    """The module, and each of its functions, that breaks its budget."""
    text = path.read_text(encoding="utf-8")
    found = {label(path)} if len(text.splitlines()) > LINES_OF_A_MODULE else set()
    for name, node in functions(ast.parse(text)):
        if node.end_lineno - node.lineno + 1 > LINES_OF_A_FUNCTION:
            found.add(f"{label(path)}:{name}")
    return found


@pytest.mark.parametrize("path", MODULES)
def test_modules_and_functions_keep_their_budgets(path):
    assert too_long(path) - set(LONGER) == set()


def test_what_is_listed_as_longer_is_longer():
    assert set(LONGER) <= set().union(*map(too_long, modules()))


@pytest.mark.parametrize("path", MODULES)
def test_what_is_public_is_documented(path):
    tree = parse(path)
    if not tree.body:  # an empty __init__ has nothing to say
        return
    assert ast.get_docstring(tree), "the module says what it is"
    lines = [line for line in ast.get_docstring(tree).splitlines() if line.strip()]
    assert len(lines) <= LINES_OF_A_HEADER or label(path) in LONGER_HEADER
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    public = [n for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []


def test_the_public_names_are_these():
    aliases = [
        alias
        for node in ast.walk(parse(SOURCE / "__init__.py"))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    # `X as X` is how a re-export is written
    assert sorted(a.name for a in aliases if a.asname == a.name) == PUBLIC
    assert all(getattr(probsa, name) is not None for name in PUBLIC)
    with pytest.raises(AttributeError, match="trainn"):
        _ = probsa.trainn


def test_a_library_does_not_print_exit_or_assert_its_users():
    banned = {"print", "exit", "quit", "breakpoint"}
    for path in modules():
        for node in executed(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned, f"{label(path)}:{node.lineno}"
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), label(path)

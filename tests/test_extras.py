"""Every extra that a message names exists, and brings the package that is missing."""

import ast
import tomllib
from pathlib import Path
from typing import get_args

from probsa.training.config import Tracker

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MODULES = {
    "tracker": get_args(Tracker),
    "(e.name or package).partition('.')[0]": ("timm", "transformers"),
    "package": ("timm", "transformers"),
    "' and '.join(modules)": ("openslide-python", "tifffile"),
}
"""The values of expressions that are no constants."""


def calls(function):
    """Yield the arguments of each call of a function in the package."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
                yield file.name, node.args


def brought(extra):
    """Return the names of the packages of an extra, as people write them."""
    return {p.split(">")[0].split("=")[0].split("[")[0].lower() for p in EXTRAS[extra]}


def test_each_missing_package_is_in_the_extra_that_is_named():
    found = 0
    for file, (package, extra) in calls("MissingExtra"):
        text = ast.unparse(package)
        constant = isinstance(package, ast.Constant)
        packages = (package.value,) if constant else MODULES[text]
        for name in packages:
            of_extra = name if ast.unparse(extra) == "tracker" else ast.literal_eval(extra)
            for part in name.split(" with "):
                plain = {"wandb": "wandb", "mlflow": "mlflow-skinny"}.get(part, part)
                assert plain.lower() in brought(of_extra), (file, part, of_extra)
        found += 1
    assert found > 10


def test_each_extra_that_is_advised_exists():
    for file, (extra,) in calls("install_advice"):
        if isinstance(extra, ast.Constant):
            assert extra.value in EXTRAS, file

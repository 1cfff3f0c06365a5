"""Every extra that a message names exists, and brings the package that is missing."""

import ast
import tomllib
from pathlib import Path
from typing import get_args

from probsa.errors import DISTRIBUTIONS
from probsa.training.config import Tracker

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
VALUES = {
    "tracker": get_args(Tracker),
    "package": ("timm", "transformers"),
    "package.partition('.')[0]": ("timm", "transformers"),
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
    plain = {p.split(">")[0].split("=")[0].split("[")[0].lower() for p in EXTRAS[extra]}
    return {name.replace("_", "-") for name in plain}


def values(node):
    """Return the values that an argument of a call may have."""
    return (node.value,) if isinstance(node, ast.Constant) else VALUES[ast.unparse(node)]


def test_each_missing_package_is_in_the_extra_that_is_named():
    named = [(file, args[1], args[:1]) for file, args in calls("MissingExtra")]
    named += [(file, args[0], args[1:]) for file, args in calls("imports_from")]
    found = 0
    for file, extra, packages in named:
        if ast.unparse(packages[0]) in PASSED_ON:
            continue
        for name in (value for package in packages for value in values(package)):
            of_extra = name if ast.unparse(extra) == "tracker" else ast.literal_eval(extra)
            installed = DISTRIBUTIONS.get(name, name).lower()
            assert installed.replace("_", "-") in brought(of_extra), (file, installed, of_extra)
        found += 1
    assert found > 15


PASSED_ON = ("*modules", "DISTRIBUTIONS.get(name, name)")
"""Packages that a function is given; those of the readers of slides follow."""


def test_what_the_readers_of_slides_need_is_in_their_extra():
    for _, needed in calls("_require"):
        for package in needed:
            name = package.value
            assert DISTRIBUTIONS.get(name, name) in brought("slides"), name


def test_each_extra_that_is_advised_exists():
    for file, (extra,) in calls("install_advice"):
        if isinstance(extra, ast.Constant):
            assert extra.value in EXTRAS, file

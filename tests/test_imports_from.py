"""A package that is not installed is told apart from one that is installed and broken."""

import sys
from importlib import import_module

import pytest

from probsa.errors import MissingExtra, absent_package, imports_from

BROKEN = {
    "a shared library is missing": "raise ImportError('libtiff.so.6: cannot open shared object')",
    "it needs another package": "import a_package_that_nobody_has",
    "a part of it is missing": "from made_package import a_part_that_is_missing",
    "a module of it is missing": "import made_package.inside",
    "another version of a package": "from json import a_name_that_this_version_lacks",
    "no name is stated": "raise ModuleNotFoundError('the library was not found')",
    "a mistake in it": "{}['x']",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that makes an installed package with some text."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def make(text):
        (tmp_path / "made_package").mkdir()
        (tmp_path / "made_package" / "__init__.py").write_text(text)

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_package_keeps_its_error(package, why):
    package(BROKEN[why])
    with pytest.raises((ImportError, KeyError)) as caught, imports_from("slides", "made_package"):
        import_module("made_package")
    assert not isinstance(caught.value, MissingExtra)
    assert "__init__.py" in [str(entry.path).rpartition("/")[2] for entry in caught.traceback]


@pytest.mark.parametrize("name", ["a_package_that_nobody_has", "a_package_that_nobody_has.inside"])
def test_an_absent_package_names_its_extra(name):
    with (
        pytest.raises(MissingExtra, match=r"a_package_that_nobody_has is not .*'\.\[slides\]'"),
        imports_from("slides", "a_package_that_nobody_has"),
    ):
        import_module(name)


def test_what_is_installed_may_have_another_name_than_what_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with (
        pytest.raises(MissingExtra, match="opencv-python-headless is not installed"),
        imports_from("slides", "cv2"),
    ):
        import_module("cv2")


def test_an_error_without_a_name_names_no_package():
    assert absent_package(ImportError("x")) == ""
    assert absent_package(ModuleNotFoundError("x")) == ""
    assert absent_package(ModuleNotFoundError("x", name="json.y")) == ""

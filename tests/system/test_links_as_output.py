"""An output that is a link to nothing or to a file is refused by name, and nothing is touched."""

import os
from pathlib import Path

import pytest
from support.made_slides import write_cohort
from support.subjects import command, trained


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    trained(folder)
    write_cohort(folder / "slides", slides=1, side=512)
    return folder


DATA = ("--features", "{home}/features", "--labels", "{home}/labels.csv", "--device", "cpu")
TRAIN = ("train", *DATA, "--test-fold", "0", "--model", "abmil", "--epochs", "1", "--maps", "none")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "predict": ("predict", "{home}/run", "--features", "{home}/few", "--device", "cpu"),
    "convert": ("convert", "{home}/few", "--from", "probsa"),
    "patch": ("patch", "{home}/slides"),
    "demo": ("demo",),
    "map": ("map", "{home}/predictions"),
    "view": ("view", "{home}/predictions"),
    "sets": ("sets", "{home}/predictions", "--coverage", "0.5"),
}


def outline(folder: Path) -> dict[str, object]:
    """Return the paths below a folder, with what each holds or leads to."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            link = path.is_symlink()
            stat = path.lstat()
            found[str(path)] = str(path.readlink()) if link else (stat.st_size, stat.st_mtime_ns)
    return found


FOLDERS = ("train", "predict", "convert", "map", "patch", "demo", "view")
OVERWRITE = {"train", "predict", "convert", "patch", "view", "sets"}
KINDS = ("nothing", "a file", "itself")
CASES = [
    (name, kind, overwrite)
    for name in COMMANDS
    for kind in (*KINDS, "no link")
    for overwrite in ((False, True) if name in OVERWRITE else (False,))
]


def given(name: str, home: Path, out: Path, *, overwrite: bool) -> list[str]:
    flag = "--export" if name == "view" else "--out"
    rest = ["--overwrite"] if overwrite else []
    return [*(a.format(home=home) for a in COMMANDS[name]), flag, str(out), *rest]


@pytest.mark.parametrize(("name", "kind", "overwrite"), CASES)
def test_an_output_that_is_no_folder_is_named(home, tmp_path, name, kind, overwrite):
    there = tmp_path / "there"
    out = tmp_path / "out"
    if kind == "no link":
        out.write_text("mine")
    else:
        out.symlink_to(out if kind == "itself" else there)
    if kind == "a file":
        there.write_text("mine")
    before = outline(tmp_path)
    outcome = command(*given(name, home, out, overwrite=overwrite))
    assert outcome.status == 2, outcome.text
    assert outline(tmp_path) == before
    assert str(out) in outcome.text
    if kind != "no link" and name in FOLDERS:
        assert str(out.readlink()) in outcome.text


def test_a_run_behind_a_link_is_not_removed(home, tmp_path):
    there = tmp_path / "there"
    out = tmp_path / "out"
    assert command(*given("train", home, there, overwrite=False)).status == 0
    out.symlink_to(there)
    before = outline(tmp_path)
    outcome = command(*given("train", home, out, overwrite=True))
    assert outcome.status == 2
    assert str(out) in outcome.text and str(there) in outcome.text
    assert outline(tmp_path) == before
    assert command(*given("train", home, there, overwrite=True)).status == 0


def test_a_table_behind_a_link_is_not_replaced(home, tmp_path):
    there = tmp_path / "there.csv"
    out = tmp_path / "out.csv"
    assert command(*given("sets", home, there, overwrite=False)).status == 0
    out.symlink_to(there)
    before = outline(tmp_path)
    outcome = command(*given("sets", home, out, overwrite=True))
    assert outcome.status == 2
    assert str(out) in outcome.text and str(there) in outcome.text
    assert outline(tmp_path) == before


@pytest.mark.parametrize("name", ["train", "convert"])
def test_a_file_in_place_of_a_folder_around_the_output_is_named(home, tmp_path, name):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there")
    outcome = command(*given(name, home, link / "out", overwrite=False))
    assert outcome.status == 2
    assert str(link) in outcome.text
    assert outline(tmp_path) == {str(link): str(tmp_path / "there")}

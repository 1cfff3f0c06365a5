"""No command deletes or changes a file that it did not write, wherever its output is put.

Every command that writes is run with its output equal to, inside and around each of its inputs,
beside foreign files and folders in its way, twice over, and with --overwrite where that exists.
"""

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from support.made_studies import asap_xml, lattice, write_slide
from support.one_process import use_one_process
from support.stored import write_folder

from probsa.cli import demo, main
from probsa.workflow import runs

UNFORESEEN = 70
"""The exit status of an error that nobody thought of."""
MINE = b"written by the user\n"
Content = dict[str, str]
"""By path below a folder, what is there: a digest, or the target of a link."""

SHORT = (
    "--model abmil --test-fold 0 --epochs 1 --embed 4 --attention_dim 2 --batch_size 4 "
    "--device cpu --threads 1 --tensorboard false"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command: its line, with IN for the folder of all inputs and OUT for its output."""

    line: str
    inputs: tuple[str, ...]
    """What the command reads, below the folder of all inputs."""
    flags: tuple[str, ...] = ("",)
    """What is added to the line for another call."""
    suffix: str = ""
    """Of the output, if it is a file."""
    start: str = ""
    """What is in the output before the command is called for the first time."""
    slow: bool = False

    @property
    def twice(self) -> tuple[str, ...]:
        """What is added to the line for two calls and more, the last with --overwrite."""
        return self.flags if len(self.flags) > 1 else ("", "")

    @property
    def needed(self) -> set[str]:
        """What the line and the start name in the folder of all inputs."""
        words = [w.removeprefix("IN/") for w in self.line.split() if w.startswith("IN/")]
        return {Path(w).parts[0] for w in (*words, *self.inputs, *filter(None, [self.start]))}

    def copy_inputs(self, stored: Path, folder: Path) -> Path:
        """Copy the inputs of the command into a new folder."""
        folder.mkdir(parents=True)
        for path in stored.iterdir():
            if path.name in self.needed:
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, folder / path.name)
        return folder

    def call(self, inputs: Path, out: Path, flag: str = "") -> int:
        words = f"{self.line} {flag}".split()
        return call(*(w.replace("IN/", f"{inputs}/").replace("OUT", str(out)) for w in words))


OVERWRITE = ("", "--overwrite")
PATCH = "--slide-mpp 0.5 --patch-size 64 --min-tissue-area 100 --workers 1"
EXTRACT = "--encoder handcrafted --device cpu --readers 0 --threads 1 --workers 1"
CASES = {
    "patch": Case(line=f"patch IN/slides --out OUT {PATCH}", inputs=("slides",), flags=OVERWRITE),
    "patch contours": Case(
        line=f"patch IN/slides --out OUT {PATCH} --contours IN/contours",
        inputs=("contours",),
        flags=OVERWRITE,
    ),
    "mpp table": Case(
        line="patch IN/slides --out IN/new --dry-run --mpp-table OUT",
        inputs=("slides", "data/labels.csv"),
        suffix=".csv",
    ),
    "extract": Case(line=f"extract OUT {EXTRACT}", inputs=("work",), flags=OVERWRITE, start="work"),
    "convert": Case(
        line="convert IN/data/features --from probsa --out OUT --labels IN/data/labels.csv",
        inputs=("data", "data/features"),
        flags=OVERWRITE,
    ),
    "dataset table": Case(
        line="dataset table IN/cohort --features IN/cohort/features --labels IN/cohort.csv "
        "--out OUT",
        inputs=("cohort", "cohort/features", "cohort/instance_labels"),
    ),
    "dataset camelyon16": Case(
        line="dataset camelyon16 IN/c16 --features IN/c16work/features_test --out OUT",
        inputs=("c16", "c16work", "c16work/features_test"),
    ),
    "train": Case(
        line=f"train --features IN/data/features --labels IN/data/labels.csv {SHORT} --out OUT",
        inputs=("data", "data/features"),
        flags=("", "--overwrite", "--resume"),
        slow=True,
    ),
    "predict": Case(
        line="predict IN/run --features IN/data/features --out OUT --device cpu",
        inputs=("run", "run/predictions", "data/features"),
        flags=OVERWRITE,
    ),
    "evaluate": Case(
        line="evaluate IN/run/predictions --bootstrap 0 --part all --figures OUT",
        inputs=("run", "run/predictions"),
    ),
    "sets": Case(
        line="sets IN/run/predictions --coverage 0.5 --out OUT",
        inputs=("run/predictions/predictions.csv", "data/labels.csv"),
        flags=OVERWRITE,
        suffix=".csv",
    ),
    "map": Case(
        line="map IN/new/predictions --out OUT --bag s0 --geojson tiles",
        inputs=("new/predictions", "slides"),
    ),
    "map over slides": Case(
        line="map IN/new/predictions --slides IN/slides --slide-mpp 0.5 --bag s0 --out OUT "
        "--overlays",
        inputs=("slides", "new"),
    ),
    "view": Case(
        line="view IN/run/predictions --export OUT",
        inputs=("run", "run/predictions"),
        flags=OVERWRITE,
    ),
    "run": Case(
        line="run IN/slides --model IN/slide_run --slide-mpp 0.5 --device cpu --readers 0 "
        "--out OUT",
        inputs=("slide_run",),
        slow=True,
    ),
    "benchmark": Case(
        line="benchmark IN/grid/grid.yaml --data IN/grid/data --out OUT",
        inputs=("grid", "grid/data"),
        flags=("", "--tables-only"),
        slow=True,
    ),
    "demo": Case(line="demo --out OUT", inputs=("data",), slow=True),
}


def cases(part: int) -> list[Any]:
    """Return all commands; the nightly run has those of the other half, which other tests have."""
    parted = enumerate(CASES)
    return [
        name if k % 2 == part else pytest.param(name, marks=pytest.mark.nightly)
        for k, name in parted
    ]


def call(*words: str) -> int:
    """Run a command in this process, and return its exit status."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        status = main(list(words))
    assert status != UNFORESEEN, sink.getvalue()
    return status


@pytest.fixture(scope="module", autouse=True)
def _in_one_process() -> Iterator[None]:
    """Slides are cut in this process, and demos and reports are short."""
    patch = pytest.MonkeyPatch()
    use_one_process(patch)
    patch.setattr(demo, "run_demo", partial(demo.run_demo, slides=20, epochs=1))
    patch.setattr(demo, "MODELS", {demo.DEFAULT: "default recipe", "abmil": "ABMIL"})
    patch.setattr(demo, "MEMBERS", 1)
    patch.setattr(runs, "finish_run", partial(runs.finish_run, bootstrap=0))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the inputs of all commands, which is copied for each test."""
    folder = tmp_path_factory.mktemp("inputs") / "in"
    (folder / "slides").mkdir(parents=True)
    for k in range(2):
        pixels = np.full((320, 320, 3), 245, np.uint8)
        pixels[40:232, 40:232] = (200, 120, 160)
        pixels[60 + 20 * k : 90 + 20 * k, 60:150] = (120, 60, 140)
        Image.fromarray(pixels).save(folder / "slides" / f"s{k}.png")
    (folder / "slides" / "notes.txt").write_bytes(MINE)
    work = folder / "work"
    assert call("patch", str(folder / "slides"), "--out", str(work), *PATCH.split()) == 0
    assert call("extract", str(work), *EXTRACT.split()) == 0
    shutil.copytree(work / "contours_geojson", folder / "contours")

    features, labels = write_folder(folder / "data", bags=9, kind="slide")
    of_data = ("--features", str(features), "--labels", str(labels), *SHORT.split())
    assert call("train", *of_data, "--out", str(folder / "run"), "--maps", "none") == 0

    # a run on features that state how they were made, as those of new slides will be
    (patch_set,) = work.glob("*/settings.json")
    known = folder / "known" / patch_set.parent.name / "features_handcrafted"
    known.mkdir(parents=True)
    shutil.copy(work / "tissue.json", folder / "known")
    shutil.copy(patch_set, known.parent)
    rows = ["bag,label,fold"]
    for k in range(9):
        shutil.copy(patch_set.parent / known.name / f"s{k % 2}.h5", known / f"b{k}.h5")
        rows.append(f"b{k},{k % 2},{k % 3}")
    (folder / "known.csv").write_text("\n".join(rows) + "\n")
    of_known = ("--features", str(known), "--labels", str(folder / "known.csv"), *SHORT.split())
    run = folder / "slide_run"
    assert call("train", *of_known, "--out", str(run), "--maps", "none") == 0
    of_slides = ("--features", str(patch_set.parent / known.name), "--device", "cpu")
    new = folder / "new" / "predictions"
    assert call("predict", str(run), *of_slides, "--out", str(new)) == 0

    features, _ = write_folder(folder / "cohort", bags=4, kind="slide")
    (folder / "cohort" / "instance_labels").mkdir()
    for path in features.iterdir():
        with h5py.File(path, "a") as f:
            marks = f.pop("instance_labels")[...] if path.stem != "003" else f["instance_labels"]
            np.save(folder / "cohort" / "instance_labels" / f"{path.stem}.npy", marks)
    (folder / "cohort" / "labels.csv").rename(folder / "cohort.csv")

    (folder / "c16" / "annotations").mkdir(parents=True)
    corners = (0, 0), (1024, 0), (1024, 4608), (0, 4608)
    (folder / "c16" / "annotations" / "tumor_001.xml").write_text(asap_xml(*corners))
    for name in ("normal_001", "tumor_001"):
        write_slide(folder / "c16work" / "features_test", name, lattice(4, 3))

    write_folder(folder / "grid" / "data", bags=9, kind="slide")
    grid = (
        "models: [{name: abmil, embed: 4, attention_dim: 2}]  # a remark of the user\n"
        "epochs: 1\nbatch_size: 4\ndevice: cpu\nthreads: 1\n"
    )
    (folder / "grid" / "grid.yaml").write_text(grid)
    return folder


def content(folder: Path) -> Content:
    """Return what is at every path below a folder, without following links and without ledgers."""
    found: Content = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != ".probsa"]
        for name in (*folders, *files):
            path = Path(place, name)
            key = path.relative_to(folder).as_posix()
            if path.is_symlink():
                found[key] = f"-> {path.readlink()}"
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lost(before: Content, folder: Path) -> list[str]:
    """List the paths of files that are no longer what they were."""
    after = content(folder)
    return [path for path, digest in before.items() if after.get(path) != digest]


def put(path: Path) -> None:
    """Let the user write a file at a path, in place of what may be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(MINE)


@pytest.fixture(scope="module")
def written(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what makes a first output of a command, once; each has its inputs beside it."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            case = CASES[name]
            folder = tmp_path_factory.mktemp("written")
            case.copy_inputs(stored, folder / "in")
            out = folder / f"out{case.suffix}"
            if case.start:
                shutil.copytree(folder / "in" / case.start, out)
            assert case.call(folder / "in", out) in (0, 1)
            made[name] = folder
        return made[name]

    return make


def outputs(name: str, folder: Path) -> list[str]:
    """List the files that a command wrote into its first output, as paths below it."""
    case = CASES[name]
    out = folder / f"out{CASES[name].suffix}"
    if case.suffix:
        return [""]
    started = content(folder / "in" / case.start) if case.start else {}
    hidden = [p for p in content(out) if any(part.startswith(".") for part in Path(p).parts)]
    new = [p for p in content(out) if p not in started and p not in hidden]
    again = [p for p in started if "features_handcrafted" in p]
    return sorted(new + again)


def places(name: str, inputs: Path) -> list[Path]:
    """List outputs that are equal to the inputs of a command, inside them, and around them."""
    case = CASES[name]
    entries = [inputs / name for name in case.inputs]
    if case.suffix:
        return entries
    if case.slow:
        return list(dict.fromkeys([*entries, entries[0].parent]))
    inside = [p for p in sorted(entries[0].iterdir()) if p.is_dir() and p.name[0] != "."][:1]
    return list(dict.fromkeys([*entries, *inside, entries[0] / "made", entries[0].parent]))


@pytest.mark.parametrize("name", cases(0))
def test_outputs_at_inputs(name: str, stored: Path, tmp_path: Path) -> None:
    case = CASES[name]
    faults = []
    copied = case.copy_inputs(stored, tmp_path / "copied" / "in")
    for k in range(len(places(name, copied))):
        inputs = tmp_path / str(k) / "in"
        case.copy_inputs(stored, inputs)
        out = places(name, inputs)[k]
        before = content(inputs.parent)
        own: set[str] = set()
        if name == "extract" and out == inputs / "work":  # it wrote these features before
            own = {p for p in before if p.startswith("in/work") and "features_handcrafted" in p}
        for flag in case.twice:
            case.call(inputs, out, flag)
            gone = [p for p in lost(before, inputs.parent) if p not in own]
            faults += [(out.relative_to(inputs.parent).as_posix(), flag, p) for p in gone]
            if gone:
                break
        shutil.rmtree(inputs.parent)
    assert faults == []


def representatives(paths: list[str], *, most: int) -> list[str]:
    """Choose one path of each folder and suffix."""
    kinds: dict[tuple[str, str], str] = {}
    for path in paths:
        kinds.setdefault((str(Path(path).parent), Path(path).suffix), path)
    return list(kinds.values())[:most]


def ways(name: str, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield sets of files that the user has where the command would write."""
    paths = outputs(name, folder)
    yield tuple(paths)
    for path in representatives(paths, most=0 if CASES[name].slow else 3):
        yield (path,)


@pytest.mark.parametrize("name", cases(1))
def test_files_in_the_way(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES[name]
    faults = []
    first = written(name)
    for k, paths in enumerate(ways(name, first)):
        folder = tmp_path / str(k)
        shutil.copytree(first / "in", folder / "in", symlinks=True)
        out = folder / f"out{case.suffix}"
        if case.start:
            shutil.copytree(folder / "in" / case.start, out)
        for path in paths:
            put(out / path)
        before = (
            content(folder)
            if not case.start
            else {
                p: d
                for p, d in content(folder).items()
                if not (p.startswith("out/") and "features_handcrafted" in p and p[4:] not in paths)
            }
        )
        for flag in case.flags:
            case.call(folder / "in", out, flag)
            gone = lost(before, folder)
            faults += [(flag, p) for p in gone]
            if gone:
                break
        shutil.rmtree(folder)
    assert faults == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.slow])
def test_folders_in_the_way(name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    """The user has a folder where the command writes a file, and a file where it has a folder."""
    case = CASES[name]
    faults = []
    first = written(name)
    paths = outputs(name, first)
    folders = {str(p) for path in paths for p in Path(path).parents} - {"."}
    chosen = representatives(paths, most=2)
    for k, path in enumerate([*chosen, *sorted(folders)[:2]]):
        folder = tmp_path / str(k)
        shutil.copytree(first / "in", folder / "in", symlinks=True)
        out = folder / f"out{case.suffix}"
        if path in folders:
            put(out / path)
        else:
            put(out / path / "mine.txt")
        before = content(folder)
        for flag in case.flags:
            case.call(folder / "in", out, flag)
            gone = lost(before, folder)
            faults += [(flag, p) for p in gone]
            if gone:
                break
        shutil.rmtree(folder)
    assert faults == []


def changes(name: str, folder: Path) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the files that the user changes in an output, and those that they add to it."""
    paths = outputs(name, folder)
    added = (
        ()
        if CASES[name].suffix
        else tuple(dict.fromkeys(f"{Path(p).parent}/mine{Path(p).suffix}" for p in paths))
    )
    yield tuple(paths), added
    yield (), added
    for path in representatives(paths, most=0 if CASES[name].slow else 2):
        yield (path,), ()


@pytest.mark.parametrize("name", cases(0))
def test_an_output_that_the_user_changed(
    name: str, written: Callable[[str], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    faults = []
    first = written(name)
    for k, (changed, added) in enumerate(changes(name, first)):
        folder = tmp_path / str(k)
        shutil.copytree(first, folder, symlinks=True)
        out = folder / f"out{case.suffix}"
        for path in (*changed, *added):
            put(out / path)
        users = {f"out{case.suffix}/{Path(p).as_posix()}".rstrip("/.") for p in (*changed, *added)}
        users = {f"out{case.suffix}"} if case.suffix and changed else users
        before = {p: d for p, d in content(folder).items() if p.startswith("in/") or p in users}
        assert users <= before.keys()
        for flag in case.flags:
            case.call(folder / "in", out, flag)
            gone = lost(before, folder)
            faults += [(flag, p) for p in gone]
            if gone:
                break
        shutil.rmtree(folder)
    assert faults == []

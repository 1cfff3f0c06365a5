"""Small folders of every kind of input, and the commands that read them."""

import contextlib
import functools
import gzip
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from support import foreign
from support.made_slides import write_cohort
from support.stored import write_folder
from support.written_slides import texture, write_pyramid

from probsa.cli import main
from probsa.datasets import read_clam_split, read_table
from probsa.errors import ProbSAError


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a command said and wrote."""

    status: int
    text: str = ""
    results: Mapping[str, Any] = field(default_factory=dict)
    """What was read or predicted, by bag or by another name; compared with `same`."""


@dataclass(frozen=True)
class Subject:
    """A folder with files to alter, and what reads them."""

    name: str
    build: Callable[[Path], object]
    drive: Callable[[Path, Path], Outcome]
    """Called with the folder and a path to write to."""
    files: tuple[str, ...]
    """Patterns of the files that it reads."""


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal; numbers that are not a number equal themselves."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.dtype.kind != "f" or other.dtype.kind != "f":
            return np.array_equal(one, other)
        # bags are predicted together, which changes the order of sums
        close = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
        return one.shape == other.shape and np.allclose(one, other, **close)
    return type(one) is type(other) and one == other


def command(*arguments: object) -> Outcome:
    """Run a command in this process."""
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(a) for a in arguments])
    return Outcome(status=status, text=out.getvalue() + err.getvalue())


def library(call: Callable[[], Any]) -> Outcome:
    """Call a function of the library, whose errors become an exit status as those of commands."""
    try:
        return Outcome(status=0, results={"value": call()})
    except ProbSAError as error:
        return Outcome(status=2, text=f"probsa: error: {error}")


def printed(said: Outcome) -> dict[str, Any]:
    """Return the JSON document in what a command said; nothing if there is none."""
    try:
        return json.loads(said.text[said.text.find("{") : said.text.rfind("}") + 1])
    except ValueError:
        return {}


def arrays_of(folder: Path) -> dict[str, Any]:
    """Return the arrays and attributes of the HDF5 files of a folder, by name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.h5")):
        with h5py.File(path) as f:
            content: dict[str, Any] = {k: f[k][...] for k in f}
            if "coords" in f:
                content |= {f"coords.{k}": np.asarray(v) for k, v in f["coords"].attrs.items()}
        found[path.stem] = content
    return found


def _convert(tool: str, folder: Path, out: Path) -> Outcome:
    said = command("convert", folder, "--from", tool, "--slide-mpp", "0.5054", "--out", out)
    return Outcome(status=said.status, text=said.text, results=arrays_of(out))


def _foreign(tool: str, without: str, folder: Path) -> None:
    foreign.TOOLS[tool](folder, *(foreign.slide(f"s{k}", seed=k) for k in range(3)))
    if without:
        shutil.rmtree(folder / without)


def _bags(name: str, *files: str, without: str = "") -> Subject:
    """Return the subject of a tool's bags, without one of the folders that the tool writes."""
    tool = name.partition(" ")[0]
    build = functools.partial(_foreign, tool, without)
    return Subject(f"bags, {name}", build, functools.partial(_convert, tool), files)


@functools.cache
def _run() -> Path:
    """Return the folder of one trained run, made when it is first needed."""
    from probsa.training import read_run, train
    from probsa.workflow import finish_run

    home = Path(tempfile.mkdtemp(prefix="probsa-fuzz-"))
    features, labels = write_folder(home, bags=9)
    given = {"features": str(features), "labels": str(labels), "test_fold": 0, "epochs": 1}
    size = {"model": "abmil-probsa-diag", "embed": 8, "attention_dim": 4, "predict_samples": 8}
    where = {"device": "cpu", "threads": 1, "tensorboard": False}
    config = read_run(None, {**given, **size, **where})
    finish_run(train(config, home / "run"), bootstrap=0, maps="none")
    read = ("--features", features, "--labels", labels, "--device", "cpu")
    out = ("--faithfulness", "--out", home / "predictions")
    predicted = command("predict", home / "run", *read, *out)
    assert predicted.status == 0, predicted.text
    shutil.rmtree(home / "run" / "predictions")
    (home / "few").mkdir()
    for name in ("000", "001", "002"):
        shutil.copy(features / f"{name}.h5", home / "few" / f"{name}.h5")
    return home


def trained(folder: Path) -> None:
    """Copy a run with its features, its labels and its predictions into a folder."""
    shutil.copytree(_run(), folder, dirs_exist_ok=True)


def _predict(folder: Path, out: Path) -> Outcome:
    said = command(
        "predict", folder / "run", "--features", folder / "few", "--device", "cpu", "--out", out
    )
    return Outcome(status=said.status, text=said.text, results=predictions_in(out))


def predictions_in(out: Path) -> dict[str, Any]:
    """Return the rows of a table of predictions and the arrays of the instances, by bag."""
    found = arrays_of(out / "instances") if (out / "instances").is_dir() else {}
    if (out / "predictions.csv").is_file():
        for line in (out / "predictions.csv").read_text().splitlines()[1:]:
            cells = line.split(",")
            row = found.setdefault(cells[0], {})
            row["calls"] = cells[1:4]
            row["numbers"] = np.array([float(c or "nan") for c in cells[4:]])
    return found


def _evaluate(folder: Path, _: Path) -> Outcome:
    said = command(
        "evaluate",
        folder / "predictions",
        "--labels",
        folder / "labels.csv",
        "--bootstrap",
        20,
        "--json",
    )
    report = printed(said) if said.status == 0 else {}
    results = {"report": {k: v for k, v in report.items() if k != "metadata"}}
    return Outcome(status=said.status, text=said.text, results=results)


def _map(folder: Path, out: Path) -> Outcome:
    said = command("map", folder / "predictions", "--bag", "001", "--out", out)
    pictures = {p.name: p.read_bytes() for p in sorted(out.glob("*.png"))} if out.is_dir() else {}
    return Outcome(status=said.status, text=said.text, results=pictures)


def _tables(folder: Path) -> None:
    rows = "".join(f"b{k},{k % 2},g{k},{k % 3}\n" for k in range(12))
    (folder / "folds.csv").write_text(f"bag,label,group,fold\n{rows}")
    parts = ("train", "train", "val", "test")
    rows = "".join(f"b{k},{'ab'[k % 2]},{parts[k % 4]}\n" for k in range(12))
    (folder / "named.csv").write_text(f"slide_id,label,split\n{rows}")
    rows = "".join(f"{k},b{3 * k},b{3 * k + 1},b{3 * k + 2}\n" for k in range(4))
    (folder / "splits_0.csv").write_text(f",train,val,test\n{rows}")


def _read_tables(folder: Path, _: Path) -> Outcome:
    def read() -> dict[str, Any]:
        table = read_table(folder / "folds.csv")
        named = read_table(folder / "named.csv", classes=("a", "b"))
        split = read_clam_split(folder / "splits_0.csv", table)
        return {
            "folds": [table.bags, table.labels, table.groups, table.folds],
            "named": [named.bags, named.labels, named.splits],
            "split": split.to_dict() | {"origin": ""},
        }

    return library(read)


def _scans(folder: Path) -> None:
    import nibabel

    volume = np.arange(5 * 6 * 4, dtype=np.int16).reshape(5, 6, 4)
    image = nibabel.Nifti1Image(volume, np.diag([1.0, 1.0, 3.0, 1.0]))
    nibabel.save(image, folder / "a.nii")
    (folder / "b.nii.gz").write_bytes(gzip.compress((folder / "a.nii").read_bytes()))


def _slides(folder: Path) -> None:
    from PIL import Image

    write_pyramid(folder / "a.tif", texture(256, 256), factors=(1, 2))
    for name in ("b.png", "c.jpg"):
        Image.fromarray(texture(64, 64)).save(folder / name)
    (folder / "mpp.csv").write_text("slide,mpp\na,0.5\nb,0.25\nc,0.25\n")


def _info(*given: object) -> Outcome:
    said = command("info", *given, "--json")
    listed = printed(said).get("files", [])
    results = {Path(f["path"]).name: f | {"path": ""} for f in listed}
    return Outcome(status=said.status, text=said.text, results=results)


def _slide_info(folder: Path, _: Path) -> Outcome:
    return _info(*sorted(folder.glob("[abc].*")), "--slide-mpp", folder / "mpp.csv")


@functools.cache
def _cohort() -> Path:
    from probsa.cohorts import ExtractOptions, extract_cohort, patch_cohort
    from probsa.patches import settings

    home = Path(tempfile.mkdtemp(prefix="probsa-fuzz-"))
    write_cohort(home / "slides", slides=2)
    patch_cohort(home / "slides", home / "work", settings=settings(size=128, mpp=0.5))
    extract_cohort(home / "work", ExtractOptions(batch=16))
    return home / "work"


def _work(folder: Path) -> None:
    """Copy a cohort's work folder."""
    shutil.copytree(_cohort(), folder, dirs_exist_ok=True)


def _resume(folder: Path, _: Path) -> Outcome:
    said = command("extract", folder, "--encoder", "handcrafted", "--batch", 16, "--json")
    return Outcome(status=said.status, text=said.text)


SUBJECTS = (
    Subject("bags, probsa", trained, _predict, ("few/*.h5",)),
    _bags("clam h5", "**/*.h5", without="pt_files"),
    _bags("clam pt", "patches/*.h5", "pt_files/*.pt", without="h5_files"),
    _bags("trident", "**/*.h5"),
    _bags("stamp", "**/*.h5"),
    _bags("slideflow", "*.pt", "*.npz", "*.json"),
    _bags("torchmil", "**/*.npy", "*.csv"),
    Subject("labels and splits", _tables, _read_tables, ("*.csv",)),
    Subject(
        "run",
        trained,
        _predict,
        (
            "run/*.json",
            "run/run.yaml",
            "run/**/*.safetensors",
            "run/*.npz",
        ),
    ),
    Subject(
        "predictions",
        trained,
        _evaluate,
        (
            "predictions/*.csv",
            "predictions/*.json",
            "predictions/instances/*.h5",
            "predictions/null_maps/*.h5",
        ),
    ),
    Subject(
        "maps",
        trained,
        _map,
        (
            "predictions/predictions.csv",
            "predictions/predictions.json",
            "predictions/instances/001.h5",
        ),
    ),
    Subject("scans", _scans, lambda folder, _: _info(folder), ("*.nii*",)),
    Subject("slides", _slides, _slide_info, ("[abc].*", "mpp.csv")),
    Subject("work folder", _work, _resume, ("**/*.h5", "**/*.json")),
)
"""Every kind of input."""

"""Faults in data: patients, bags and test bags in the wrong part, and folds with wrong labels."""

import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from fault_bench import Fault, Workshop, fixed, grouped, probsa

FLIPPED = 2
"""The fold with flipped labels."""


def patients(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with one patient in two parts."""
    rows = shop.rows("ct_ich")
    for what, table, column, first, second in (
        ("test and training of a fixed split", fixed(rows), "split", "test", "train"),
        ("training and validation of a fixed split", fixed(rows), "split", "train", "val"),
        ("two folds", rows, "fold", "0", "3"),
    ):
        bad, a, b = grouped(table, column, first, second)
        folder = shop.cohort("ct_ich", bad)
        more = ("--test_fold", "0") if column == "fold" else ()
        fault = f"a patient in {what}"
        yield Fault(what=f"{fault}: grid", command=shop.benchmark(folder), words=("P7", a, b))
        yield Fault(what=f"{fault}: train", command=shop.train(folder, *more), words=("P7", a, b))


def copied(shop: Workshop, change: Callable[[np.ndarray], np.ndarray]) -> tuple[Path, str, str]:
    """Create a cohort in which a bag of fold 0 also occurs in fold 3 under another name."""
    rows = shop.rows("ct_ich")
    real = next(r for r in rows if r["fold"] == "0")
    twin = {"bag": "900", "label": real["label"], "fold": "3"}
    folder = shop.cohort("ct_ich", [*rows, twin])
    source = shop.data / "ct_ich" / "features" / f"{real['bag']}.h5"
    with h5py.File(source) as f, h5py.File(folder / "features" / "900.h5", "w") as out:
        x = change(f["features"][...])
        out["features"] = x
        out["coords"] = f["coords"][: len(x)]
        out["coords"].attrs.update({"kind": "ct", "name": "900"})
        out["instance_labels"] = f["instance_labels"][: len(x)]
    return folder, real["bag"], "900"


def noisy(x: np.ndarray, scale: float) -> np.ndarray:
    """Add noise, with a scale in units of each feature's standard deviation."""
    g = np.random.default_rng(0)
    return (x + scale * x.std(0) * g.normal(size=x.shape)).astype(np.float32)


def copies(shop: Workshop) -> Iterator[Fault]:
    """Yield faults in which the features of one bag occur under two names in two parts."""
    for what, change in (
        ("a bag under another name in another fold", lambda x: x),
        ("the same with its rows in another order", lambda x: x[::-1]),
        ("the same in float16", lambda x: x.astype(np.float16)),
        ("the same with 0.2 % noise", lambda x: noisy(x, 0.002)),
        ("the same with a third of the rows dropped", lambda x: x[np.arange(len(x)) % 3 > 0]),
        (
            "all of these: 0.2 % noise, float16, a third dropped",
            lambda x: noisy(x, 0.002).astype(np.float16)[np.arange(len(x)) % 3 > 0],
        ),
    ):
        folder, a, b = copied(shop, change)
        yield Fault(what=f"{what}: grid", command=shop.benchmark(folder), words=(a, b))
    folder, a, b = copied(shop, lambda x: x)
    yield Fault(
        what="a bag under another name in another fold: train",
        command=shop.train(folder, "--test_fold", "0"),
        words=(a, b),
        limit=True,
    )


def edit_split(path: Path, change: Callable[[dict[str, list[str]]], object]) -> None:
    """Change a stored split."""
    with path.open(newline="") as f:
        rows = list(csv.DictReader(f))
    parts = {p: [r[p] for r in rows if r[p]] for p in ("train", "val", "test")}
    change(parts)
    with path.open("w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(["", *parts])
        for k in range(max(len(v) for v in parts.values())):
            writer.writerow([k, *(v[k] if k < len(v) else "" for v in parts.values())])


def spoil(
    command: list[str | Path], file: Path, change: Callable[[dict[str, list[str]]], object]
) -> None:
    """Run a grid, then change a split that it stored."""
    probsa(command)
    edit_split(file, change)


def test_in_validation(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with a test bag in the validation or training part."""
    rows = fixed(shop.rows("ct_ich"))
    folder = shop.cohort("ct_ich", rows)
    bag = next(r["bag"] for r in rows if r["split"] == "test")
    parts = {p: [r["bag"] for r in rows if r["split"] == p] for p in ("train", "val", "test")}
    table = shop.folder() / "splits_0.csv"
    with table.open("w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(["", *parts])
        parts["val"].append(bag)
        for k in range(len(parts["train"])):
            writer.writerow([k, *(v[k] if k < len(v) else "" for v in parts.values())])
    yield Fault(
        what="a test bag in validation of CLAM's splits_0.csv: train",
        command=shop.train(folder, "--split", table),
        words=(bag, "test", "val"),
    )
    for what, change in (
        ("a test bag added to validation", lambda p: p["val"].append(bag)),
        ("a test bag moved to validation", lambda p: (p["test"].remove(bag), p["val"].append(bag))),
        ("a test bag moved to training", lambda p: (p["test"].remove(bag), p["train"].append(bag))),
    ):
        command = shop.benchmark(folder)
        file = Path(command[-1]) / "splits" / folder.name / "splits_1.csv"

        yield Fault(
            what=f"{what} of a stored split: grid",
            command=command,
            before=partial(spoil, command, file, change),
            words=(bag, "splits_1.csv"),
        )


def marked_folds(path: Path) -> str:
    """Return the folds that the data of the figure marks as outliers, in words."""
    with path.open(newline="") as f:
        outliers = sorted({r["split"] for r in csv.DictReader(f) if r["odd"] == "True"})
    return "; ".join(f"fold {k} is marked" for k in outliers)


def flipped(shop: Workshop) -> Iterator[Fault]:
    """Yield a control without, and faults with a fold whose labels are flipped."""
    grid = shop.grid(epochs=15, seeds=2, standardize=True, learning_rate=0.001)
    for folds in ((), (str(FLIPPED),)):
        rows = [
            {**r, "label": str(1 - int(r["label"])) if r["fold"] in folds else r["label"]}
            for r in shop.rows("colon_tiles")
        ]
        folder = shop.cohort("colon_tiles", rows)
        command = shop.benchmark(folder, grid)
        out = Path(command[-1])
        table = partial(Path.read_text, out / "tables" / f"folds_{folder.name}.md")
        if not folds:
            words, never = ("fold 2",), ("labels flipped", "p = ")
            yield Fault(
                what="no flipped fold (control): the table of folds",
                command=command, status=0, look=table, words=words, never=never,
            )  # fmt: skip
            continue
        others = tuple(f"fold {k}: labels" for k in range(5) if k != FLIPPED)
        yield Fault(
            what="a fold with flipped labels: the table of folds",
            command=command, status=0, look=table,
            words=(f"fold {FLIPPED}: labels flipped?",), never=others,
        )  # fmt: skip
        yield Fault(
            what="a fold with flipped labels: the output of the command",
            command=command, status=0, words=(f"fold {FLIPPED}", "labels flipped?"), never=others,
        )  # fmt: skip
        yield Fault(
            what="a fold with flipped labels: the data of the figure",
            command=[*command, "--tables-only"], status=0,
            look=partial(marked_folds, out / "figures" / "splits.csv"),
            words=(f"fold {FLIPPED} is marked",),
            never=tuple(f"fold {k} " for k in range(5) if k != FLIPPED),
        )  # fmt: skip


def one_class(shop: Workshop) -> Iterator[Fault]:
    """Yield faults with a test part, or all bags, of one class."""
    rows = shop.rows("ct_ich")
    remaining = [r for r in fixed(rows) if not (r["split"] == "test" and r["label"] == "1")]
    folder = shop.cohort("ct_ich", remaining)
    for r in rows:
        if r["bag"] not in {k["bag"] for k in remaining}:
            (folder / "features" / f"{r['bag']}.h5").unlink()
    words = ("one class", "class 0")
    yield Fault(what="a test part of one class: grid", command=shop.benchmark(folder), words=words)
    yield Fault(
        what="a test part of one class: train (AUROC is reported as undefined)",
        command=shop.train(folder), status=0, words=("one class",),
    )  # fmt: skip
    all_one = [{**r, "label": "0"} for r in rows]
    yield Fault(
        what="all bags of one class: grid",
        command=shop.benchmark(shop.cohort("ct_ich", all_one)),
        words=("one class",),
    )

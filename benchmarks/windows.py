"""Train on windows and on whole bags, and compare what they predict and how long they take.

    python benchmarks/windows.py OUT [--data DIR] [--sets ct_ich,simulated] [--models abmil]

DIR holds bag sets with folds (features/ and labels.csv). `simulated` are two cohorts of slides of
10,000 patches, of which 10 % are lesion in positive slides. Rows that OUT/windows.csv has are not
computed again. Kinds of training, with the same settings, seed and order of the bags:

- whole: whole bags;
- half, quarter: windows of a half and a quarter of the median bag (simulated: 4,096 and 1,024);
- quarter-sample: as many patches as in `quarter`, drawn at random all over the bag (abmil only).

The first layer of both models has 128 units, with which a small machine trains them in minutes.
Times are CPU seconds of one thread.

Criterion, written before the first run. Differences are to whole bags, means over folds. A window
is worth its price if, on the mean of the five sets, bag AUROC falls by at most .01, NLL rises by at
most .02 and average precision within positive bags falls by at most .02, no set loses more than .03
AUROC, and an epoch of training on the simulated slides takes at most half the time. Otherwise the
page on large cohorts says what it costs.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from probsa import Bag
from probsa.core import (
    GraphOptions,
    TextTable,
    random_stream,
    seed_of,
    select_instances,
    write_bag,
    write_csv,
)
from probsa.datasets import BagSet
from probsa.evaluation import load
from probsa.models import arguments
from probsa.training import (
    DataConfig,
    Reporter,
    RunConfig,
    RunFolder,
    TrainingConfig,
    open_data,
    prepare,
    read_split,
    train,
)
from probsa.training.windows import draw_window, window_rows

EPOCHS = {"ct_ich": 30, "colon_tiles": 20, "magnetic_tiles": 6, "lgg_tiles": 2, "simulated": 12}
MODELS = ("evidence-field", "abmil")
ARGUMENTS = {"embed": 128, "predict_samples": 100}
"""Arguments of the models that have them; all others are their defaults."""
KINDS = ("whole", "half", "quarter", "quarter-sample")
SIMULATED_WINDOWS = {"half": 4096, "quarter": 1024}
PARTS = {"train": 36, "val": 8, "test": 40}
"""Slides of each part of a simulated cohort; every other one is positive."""
SIDE = 110
PATCHES = 10_000
LESION = 0.1
FEATURES = 64
STRIDE = 256
SIGNAL = 1.2
"""Distance of lesion from normal tissue in standard deviations of a patch."""
BAG_EFFECT = 0.1
"""Standard deviation of a slide's own shift, in each feature."""
COLUMNS = ("set", "model", "fold", "kind", "window", "auroc", "nll", "ap", "seconds", "all_seconds")

Row = dict[str, str]


def main() -> None:
    """Train what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--data", type=Path, help="folder of the bag sets")
    parser.add_argument("--sets", default=",".join(EPOCHS), help="names, separated by commas")
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="names, separated by commas")
    parser.add_argument("--folds", default="0,1", help="test folds, or simulated cohorts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    path = given.out / "windows.csv"
    rows = list(TextTable.read(path).rows) if path.is_file() else []
    done = {(row["set"], row["model"], row["fold"], row["kind"]) for row in rows}
    for name in given.sets.split(","):
        for fold in map(int, given.folds.split(",")):
            folder = simulated(given.out, fold) if name == "simulated" else given.data / name
            for model in given.models.split(","):
                for kind in given.kinds.split(","):
                    is_control = kind.endswith("-sample")
                    if (name, model, str(fold), kind) in done or (is_control and model != "abmil"):
                        continue
                    row = trained(given.out, name, folder, model=model, fold=fold, kind=kind)
                    rows.append(row)
                    write_csv(path, COLUMNS, rows)
                    print(*row.values(), flush=True)
    print(markdown(rows))
    for name in given.sets.split(","):
        folder = simulated(given.out, 0) if name == "simulated" else given.data / name
        shares = [f"{kind} {empty_share(folder, kind):.0%}" for kind in ("half", "quarter")]
        print(f"{name}: windows of positive bags without a positive instance: {', '.join(shares)}")


def window_of(folder: Path, bags: BagSet, names: Sequence[str], kind: str) -> int | None:
    """Return the size of the windows of a kind of training; None for whole bags."""
    size = kind.partition("-")[0]
    if size == "whole":
        return None
    if folder.name.startswith("simulated"):
        return SIMULATED_WINDOWS[size]
    median = float(np.median([bags.size(bag) for bag in names]))
    return round(median / {"half": 2, "quarter": 4}[size])


def empty_share(folder: Path, kind: str) -> float:
    """Return the share of windows of positive bags that hold no positive instance."""
    bags = open_data(DataConfig(features=folder / "features", labels=folder / "labels.csv"))
    size = window_of(folder, bags, bags.names, kind)
    assert size is not None
    is_empty: list[bool] = []
    for name in bags.names:
        bag = bags.bag(name)
        assert bag.instance_labels is not None
        if bool((bag.instance_labels == 1).any()):
            for epoch in range(5):
                generator = random_stream(0, "window", epoch, name)
                window = draw_window(bag, size=size, generator=generator)
                assert window.instance_labels is not None
                is_empty.append(not bool((window.instance_labels == 1).any()))
    return float(np.mean(is_empty))


def simulated(out: Path, cohort: int) -> Path:
    """Write a simulated cohort, unless it is there, and return its folder."""
    folder = out / f"simulated-{cohort}"
    if (folder / "labels.csv").is_file():
        return folder
    direction = np.random.default_rng(seed_of(cohort, "direction")).normal(size=FEATURES)
    direction *= SIGNAL / np.linalg.norm(direction)
    rows = []
    for part, count in PARTS.items():
        for k in range(count):
            name = f"{part}_{k:03d}"
            rng = np.random.default_rng(seed_of(cohort, name))
            y, x = np.divmod(np.arange(SIDE * SIDE), SIDE)
            # tissue: the cells nearest to the middle of the slide, with a ragged edge
            radius = np.hypot(x - SIDE / 2, y - SIDE / 2) + rng.normal(size=len(x))
            tissue = np.sort(np.argsort(radius)[:PATCHES])
            place = np.stack([x[tissue], y[tissue]], axis=1)
            lesion = np.zeros(PATCHES, dtype=np.int8)
            if k % 2:
                centre = place[rng.integers(PATCHES)]
                distance = np.hypot(*(place - centre).T)
                lesion[np.argsort(distance)[: round(LESION * PATCHES)]] = 1
            features = rng.normal(size=(PATCHES, FEATURES)) + lesion[:, None] * direction
            features += BAG_EFFECT * rng.normal(size=FEATURES)
            write_bag(
                folder / "features" / f"{name}.h5",
                features=features.astype(np.float16),
                coords=place * STRIDE,
                kind="slide",
                instance_labels=lesion,
                attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
            )
            rows.append({"bag": name, "label": k % 2, "split": part})
    write_csv(folder / "labels.csv", ("bag", "label", "split"), rows)
    return folder


class Watch(Reporter):
    """Measures the CPU time of the steps of each epoch, without validation and files."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0
        self._last_step = 0.0

    def start(self, *, done: int, epochs: int) -> None:
        del done, epochs
        self._begin = time.process_time()

    def step(self, *, epoch: int, share: float) -> None:
        del epoch, share
        self._last_step = time.process_time()

    def epoch(self, row: Mapping[str, object]) -> None:
        del row
        self.seconds.append(self._last_step - self._begin)
        self._begin = time.process_time()


def random_window(bag: Bag, *, size: int, generator: torch.Generator) -> Bag:
    """Return a random sample of a bag instead of a connected part."""
    if len(bag) <= size:
        return bag
    without_graph = replace(bag, coords=None, edges=bag.edges[:, :0], weights=bag.weights[:0])
    rows = window_rows(without_graph, size=size, generator=generator)
    return select_instances(bag, torch.from_numpy(rows))


def trained(out: Path, name: str, folder: Path, *, model: str, fold: int, kind: str) -> Row:
    """Train a model, and return its row of the table, measured on the test bags."""
    is_simulated = name == "simulated"
    config = RunConfig(
        data=DataConfig(
            features=folder / "features",
            labels=folder / "labels.csv",
            test_fold=None if is_simulated else fold,
            standardize=True,
            graph=GraphOptions(weight_scale="median"),
        ),
        model=model,
        model_arguments={k: v for k, v in ARGUMENTS.items() if k in arguments(model)},
        training=TrainingConfig(
            epochs=EPOCHS[name],
            batch_size=2 if is_simulated else 4,
            learning_rate=2e-3 if is_simulated else 1e-3,
            warmup_epochs=1,
            kl_weight=0.1,
            select="ema-nll",
            # there are few steps on the simulated slides, so that 0.99 would lag behind
            ema_decay=0.9 if is_simulated else 0.99,
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
    )
    prepared = prepare(config)
    window = window_of(folder, prepared.bags, prepared.split.train, kind)
    config = replace(config, training=replace(config.training, window=window))
    watch = Watch()
    run = out / "runs" / f"{name}-{model}-{fold}-{kind}"
    start = time.process_time()
    if kind.endswith("-sample"):
        with patch("probsa.training.batching.draw_window", random_window):
            train(config, run, overwrite=run.exists(), reporter=watch)
    else:
        train(config, run, overwrite=run.exists(), reporter=watch)
    all_seconds = time.process_time() - start
    scores = test_scores(config, run)
    numbers = {**scores, "seconds": float(np.median(watch.seconds[1:])), "all_seconds": all_seconds}
    row = {"set": name, "model": model, "fold": str(fold), "kind": kind, "window": str(window or 0)}
    return row | {key: f"{value:.4f}" for key, value in numbers.items()}


def test_scores(config: RunConfig, run: Path) -> dict[str, float]:
    """Return AUROC and NLL of the test bags, and average precision within the positive ones."""
    predictor = load(run, device="cpu")
    predictor.model.explains = False
    bags = open_data(config.data)
    names = read_split(RunFolder(run)).test
    labels = {row["bag"]: int(row["label"]) for row in TextTable.read(config.data.labels).rows}
    p: list[float] = []
    precisions: list[float] = []
    for name in names:
        bag = bags.bag(name)
        (prediction,) = predictor.predict([bag])
        p.append(float(prediction.probability[-1]))
        assert bag.instance_labels is not None
        truth = (bag.instance_labels == 1).numpy()
        if labels[name] and truth.any() and not truth.all():
            precisions.append(float(average_precision_score(truth, prediction.attention_mean)))
    y = [labels[name] for name in names]
    return {
        "auroc": float(roc_auc_score(y, p)),
        "nll": float(log_loss(y, np.clip(p, 1e-6, 1 - 1e-6))),
        "ap": float(np.mean(precisions)),
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return a table of means over the folds, and of the differences to whole bags."""
    lines = [
        "| set | model | training | window | AUROC | NLL | AP within bags | s an epoch |",
        "|---" * 8 + "|",
    ]
    for name in EPOCHS:
        for model in MODELS:
            for kind in KINDS:
                same = [r for r in rows if (r["set"], r["model"], r["kind"]) == (name, model, kind)]
                if same:
                    cells = [name, f"`{model}`", kind, same[0]["window"]]
                    for key, digits in {"auroc": 3, "nll": 3, "ap": 3, "seconds": 2}.items():
                        cells.append(_cell(rows, same, key, digits=digits))
                    lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(rows: Sequence[Row], same: Sequence[Row], key: str, *, digits: int) -> str:
    """Return the mean of a column, and its differences to whole bags in each fold."""
    values = [float(row[key]) for row in same]
    mean = f"{np.mean(values):.{digits}f}"
    if same[0]["kind"] == "whole" or key == "seconds":
        return mean
    differences: list[str] = []
    for row, value in zip(same, values, strict=True):
        for other in rows:
            place = [other["set"], other["model"], other["fold"], other["kind"]]
            if place == [row["set"], row["model"], row["fold"], "whole"]:
                differences.append(f"{value - float(other[key]):+.{digits}f}")
    return f"{mean} ({', '.join(differences)})"


if __name__ == "__main__":
    main()

"""Whole commands as functions: predict a folder; train, predict, evaluate and draw a run."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .core import Bag, write_csv, write_json
from .datasets import BagSet, Split, Stated, open_bags, read_table
from .errors import BagError
from .evaluation import (
    Prediction,
    Predictor,
    Report,
    best_threshold,
    evaluate,
    load,
    write_predictions,
)
from .maps import render_folder
from .training import Reporter, RunConfig, RunFolder, open_data, read_split, train

Failures = list[tuple[str, str]]
"""(bag, reason) of what was left out."""
OnBag = Callable[[int, int], None]
"""Told how many bags of how many are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A folder of predictions."""

    folder: Path
    bags: int
    failures: Failures = field(default_factory=list)
    other: Failures = field(default_factory=list)
    """(bag, how) of those that were predicted although they are like no training bag."""


def predict_folder(  # noqa: PLR0913 - each is a choice of its own
    run: Path,
    features: Path,
    *,
    out: Path,
    labels: Path | None = None,
    checkpoint: str = "best",
    device: str = "auto",
    other_features: bool = False,
    overwrite: bool = False,
    on_bag: OnBag | None = None,
) -> Predicted:
    """Predicts every bag of `features` with a trained run, or with a converted model's file.

    A bag that cannot be read is left out and named with its reason in `failed.csv`; so is one that
    states another encoder, kind, resolution or patch size than all training bags, unless
    `other_features` is set. Which part of the run's split a bag was in goes into the table, so that
    no evaluation mixes training bags in.

    Raises:
        OutputExists: `out` is there and `overwrite` is not set, or it holds something else.
        InputError: no run folder; features of another width.
        BagError: no bag can be predicted.
    """
    predictor = load(run, checkpoint=checkpoint, device=device)
    if predictor.config is None:  # a model by itself: how its bags were read is not known
        bags, classes = open_bags(features), predictor.classes
    else:
        bags = open_data(predictor.config.data, features=features)
        classes = predictor.config.data.classes
    table = None
    if labels is not None:
        table = read_table(labels, classes=classes, labels_required=False)
    known = {} if table is None else dict(zip(table.bags, table.labels, strict=True))
    return _predict(
        predictor,
        Source(bags, bags.names, expected=predictor.stated, strict=not other_features),
        out=out,
        labels=known,
        split=_split_of(run),
        threshold=_stored_threshold(run),
        overwrite=overwrite,
        on_bag=on_bag,
    )


def _split_of(run: Path) -> Split | None:
    folder = RunFolder(run)
    return read_split(folder) if folder.split_file.is_file() else None


def _stored_threshold(run: Path) -> float | None:
    file = RunFolder(run).path / "threshold.json"
    if not file.is_file():
        return None
    return json.loads(file.read_text())["threshold"]


@dataclass(frozen=True, slots=True)
class Source:
    """Which bags of a set, and what they should be."""

    bags: BagSet
    names: Sequence[str]
    expected: Stated | None = None
    strict: bool = True
    """Whether bags that are something else are left out."""

    def difference(self, name: str) -> str | None:
        """How a bag is not what it should be."""
        if self.expected is None:
            return None
        try:
            return self.expected.difference(self.bags.metadata(name))
        except BagError:  # said where the bag is read, if that fails too
            return None


def _predict(
    predictor: Predictor,
    source: Source,
    *,
    out: Path,
    labels: dict[str, int | None],
    split: Split | None,
    threshold: float | None,
    overwrite: bool,
    on_bag: OnBag | None,
) -> Predicted:
    failures: Failures = []
    other: Failures = []
    names = source.names
    done = 0

    def readable() -> Iterator[Bag]:
        nonlocal done
        for name in names:
            different = source.difference(name)
            try:
                if different is not None and source.strict:
                    raise BagError(different)
                yield source.bags.bag(name)
                if different is not None:
                    other.append((name, different))
            except BagError as e:
                failures.append((name, str(e)))
            done += 1
            if on_bag is not None:
                on_bag(done, len(names))
        if failures and len(failures) == len(names):
            first, reason = failures[0]
            raise BagError(
                f"none of the {len(names)} bags of {source.bags.folder} can be predicted. "
                f"{first!r}: {reason}"
            )

    parts = {n: "new" if split is None else split.part_of(n) for n in names}
    write_predictions(
        out,
        predictor.predict(readable()),
        labels={n: labels.get(n) for n in names},
        parts=parts,
        classes=predictor.classes,
        threshold=threshold,
        metadata=predictor.metadata,
        overwrite=overwrite,
    )
    if failures:
        rows = [{"bag": b, "reason": r} for b, r in failures]
        write_csv(out / "failed.csv", ["bag", "reason"], rows)
    predicted = len(names) - len(failures)
    return Predicted(folder=out, bags=predicted, failures=failures, other=other)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A run with its report."""

    run: RunFolder
    report: Report
    maps: int
    failures: Failures

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run": str(self.run.path),
            "evaluation": self.report.to_dict(),
            "maps": self.maps,
            "failed": [{"bag": b, "reason": r} for b, r in self.failures],
        }


def train_and_report(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    maps: Literal["test", "all", "none"] = "test",
    reporter: Reporter | None = None,
    on_bag: OnBag | None = None,
) -> Trained | None:
    """Trains a run, then predicts, evaluates and draws its held-out bags, all in the run folder.

    Args:
        config: the run.
        out: the run folder.
        resume: go on with the run that is there.
        overwrite: remove the run that is there.
        maps: for which bags: the test part (the validation part where there is none), those of both
            parts, or none.
        reporter: told of every epoch.
        on_bag: told of every bag predicted or drawn.

    Returns: the run and its report; None in a process that only helped to train it.
    """
    run = train(config, out, resume=resume, overwrite=overwrite, reporter=reporter)
    if int(os.environ.get("RANK", "0")) != 0:
        return None
    return finish_run(run, maps=maps, on_bag=on_bag)


def finish_run(
    run: RunFolder,
    *,
    bootstrap: int = 2000,
    maps: Literal["test", "all", "none"] = "test",
    on_bag: OnBag | None = None,
) -> Trained:
    """Predicts, evaluates and draws the held-out bags of a trained run, in its folder.

    Args:
        run: trained to its end.
        bootstrap: resamples of the intervals; 0: none.
        maps: as in `train_and_report`.
        on_bag: told of every bag predicted or drawn.
    """
    data = run.config().data
    predicted = predict_run(run, on_bag=on_bag)
    report = evaluate(
        run.predictions, labels=data.labels, classes=data.classes, bootstrap=bootstrap
    )
    # the training bags have labels and, here, no predictions: nothing to report
    report = replace(report, without_prediction=())
    split = read_split(run)
    drawn = {"test": split.test or split.val, "all": split.val + split.test, "none": ()}[maps]
    failures = list(predicted.failures)
    if drawn:
        failures += render_folder(
            run.predictions, run.maps, bags=drawn, scale="per-bag", progress=on_bag
        )
    # last: what has it is finished
    write_json(run.path / "evaluation.json", report.to_dict())
    return Trained(run=run, report=report, maps=len(drawn), failures=failures)


def predict_run(run: RunFolder, *, on_bag: OnBag | None = None) -> Predicted:
    """Predicts the validation and test bags of a run; the threshold is chosen on validation."""
    config = run.config()
    predictor = load(run.path, device=config.training.device)
    bags = open_data(config.data)
    split = read_split(run)
    table = read_table(config.data.labels, classes=config.data.classes)
    labels = dict(zip(table.bags, table.labels, strict=True))
    threshold = None
    if len(predictor.classes) <= 2:
        held: list[Prediction] = list(predictor.predict(bags.bag(n) for n in split.val))
        y = np.array([labels[p.name] for p in held])
        score = np.array([p.probability[-1] for p in held], dtype=np.float64)
        threshold = best_threshold(y, score) if len(held) else None
        chosen = f"largest F1 on {len(held)} validation bags"
        write_json(run.path / "threshold.json", {"threshold": threshold, "chosen": chosen})
    return _predict(
        predictor,
        Source(bags, split.val + split.test),
        out=run.predictions,
        labels=labels,
        split=split,
        threshold=threshold,
        overwrite=True,
        on_bag=on_bag,
    )

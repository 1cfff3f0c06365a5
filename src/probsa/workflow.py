"""Whole workflows: predict a folder; train, predict, evaluate and draw a run."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .core import Bag, write_csv, write_json
from .datasets import BagSet, FeatureMetadata, LabelTable, Split, open_bags, read_table
from .errors import BagError
from .evaluation import (
    SEEN_BY_ALL,
    Ensemble,
    MapScoreChoice,
    Prediction,
    Predictor,
    Report,
    TrainingDistance,
    best_threshold,
    choose_map_score,
    evaluate,
    fit_run_distance,
    load,
    load_several,
    scale_run,
    write_predictions,
)
from .maps import render_folder
from .training import Reporter, RunConfig, RunFolder, open_data, read_split, train

Failures = list[tuple[str, str]]
"""(bag, reason) pairs of bags that could not be processed."""
OnBag = Callable[[int, int], None]
"""Called with (number of bags done, total number)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The result of predicting a folder of bags."""

    folder: Path
    bags: int
    failures: Failures = field(default_factory=list)
    other: Failures = field(default_factory=list)
    """(bag, difference) pairs of bags that were predicted although they differ from every training
    bag."""


def predict_folder(  # noqa: PLR0913 - the options are independent
    run: Path | Sequence[Path],
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
    """Predict every bag of a folder with a trained run, several runs, or a converted model.

    Several runs predict like the members of one, but each bag only by those that were neither
    trained nor validated on it. Bags that no run may predict, or that cannot be read, are left out
    and listed with the reason in `failed.csv`. The table of predictions states which part of the
    run's split each bag belongs to, so that an evaluation can exclude training bags.

    Args:
        run: the run folder, or the file of a converted model; or several of them.
        features: folder with the features of the bags.
        out: folder to write the predictions to.
        labels: table of labels to include in the table of predictions.
        checkpoint: `best` or `last` epoch of the run.
        device: device to predict on; `auto` chooses one.
        other_features: also predict bags whose encoder, kind, resolution or patch size no training
            bag has; otherwise they are left out.
        overwrite: replace existing predictions.
        on_bag: called after every bag.

    Raises:
        OutputExists: `out` exists and `overwrite` is not set, or it contains something else.
        InputError: `run` is not a run folder, the runs cannot be combined, or the features have
            another width.
        BagError: none of the bags can be predicted.
    """
    runs = (Path(run),) if isinstance(run, str | Path) else tuple(map(Path, run))
    predictor = _load_all(runs, checkpoint=checkpoint, device=device)
    if predictor.config is None:  # a converted model does not state how its bags were read
        bags, classes = open_bags(features), predictor.classes
    else:
        bags = open_data(predictor.config.data, features=features)
        classes = predictor.config.data.classes
    distance = TrainingDistance.of_run(RunFolder(runs[0])) if len(runs) == 1 else None
    known: dict[str, int | None] = {}
    if labels is not None:
        known = _labels(read_table(labels, classes=classes, labels_required=False))
    return _predict(
        predictor,
        BagSelection(bags, bags.names, predictor.stated, not other_features, distance),
        out=out,
        labels=known,
        split=_joint_split(runs),
        threshold=_stored_threshold(runs),
        overwrite=overwrite,
        on_bag=on_bag,
    )


def _labels(table: LabelTable) -> dict[str, int | None]:
    return dict(zip(table.bags, table.labels, strict=True))


def _load_all(runs: Sequence[Path], *, checkpoint: str, device: str) -> Predictor:
    if len(runs) == 1:
        predictor = load(runs[0], checkpoint=checkpoint, device=device)
        _note_map_score(predictor, _stored_map_score(runs[0]))
        return predictor
    return load_several(runs, checkpoint=checkpoint, device=device)


def _joint_split(runs: Sequence[Path]) -> Split | None:
    """Return the split of a run; of several, one whose test part are the bags that any tests.

    Whichever bag several runs predict, is a test bag or a new one for each of them.
    """
    folders = [RunFolder(run) for run in runs]
    splits = [read_split(f) for f in folders if f.split_file.is_file()]
    if len(runs) == 1 or not splits:
        return splits[0] if splits else None
    test = dict.fromkeys(name for split in splits for name in split.test)
    return Split(train=(), val=(), test=tuple(test), origin=f"the test parts of {len(runs)} runs")


def _stored_threshold(runs: Sequence[Path]) -> float | None:
    """Return the threshold of a run, or the mean of several if each has one."""
    files = [RunFolder(run).path / "threshold.json" for run in runs]
    stored = [json.loads(f.read_text())["threshold"] for f in files if f.is_file()]
    if len(stored) < len(runs) or None in stored:
        return None
    return stored[0] if len(runs) == 1 else sum(stored) / len(stored)


def _note_map_score(predictor: Predictor, chosen: MapScoreChoice | None) -> None:
    """State in the metadata of the predictions which score their maps show."""
    if chosen is not None:
        predictor.metadata["map_score"] = chosen.to_dict()


def _stored_map_score(run: Path) -> MapScoreChoice | None:
    file = RunFolder(run).map_score_file
    if not file.is_file():
        return None
    return MapScoreChoice.from_dict(json.loads(file.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class BagSelection:
    """Some bags of a set, and the metadata that they are expected to have."""

    bags: BagSet
    names: Sequence[str]
    expected: FeatureMetadata | None = None
    strict: bool = True
    """Whether bags with other metadata are left out."""
    distance: TrainingDistance | None = None
    """What the bags' distances from training are computed with."""

    def read(self, name: str, distances: dict[str, dict[str, Any]]) -> Bag:
        """Read a bag, and add its distances from training to `distances`."""
        bag = self.bags.bag(name)
        # the model refuses another width
        if self.distance is not None and bag.x.shape[1] == self.distance.width:
            distances[name] = self.distance.of(bag)
        return bag

    def difference(self, name: str) -> str | None:
        """Return how the metadata of a bag differ from what is expected, or None."""
        if self.expected is None:
            return None
        try:
            return self.expected.difference(self.bags.metadata(name))
        except BagError:  # reading the bag reports the problem
            return None


def _predict(
    predictor: Predictor,
    selection: BagSelection,
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
    names = selection.names
    distances: dict[str, dict[str, Any]] = {}
    done = 0

    def readable() -> Iterator[Bag]:
        nonlocal done
        for name in names:
            difference = selection.difference(name)
            try:
                if difference is not None and selection.strict:
                    raise BagError(difference)
                if isinstance(predictor, Ensemble) and not predictor.may_predict(name):
                    raise BagError(SEEN_BY_ALL)
                yield selection.read(name, distances)
                if difference is not None:
                    other.append((name, difference))
            except BagError as e:
                failures.append((name, str(e)))
            done += 1
            if on_bag is not None:
                on_bag(done, len(names))
        if failures and len(failures) == len(names):
            first, reason = failures[0]
            raise BagError(
                f"none of the {len(names)} bags of {selection.bags.folder} can be predicted. "
                f"{first!r}: {reason}"
            )

    parts = {n: "new" if split is None else split.part_of(n) for n in names}
    if isinstance(predictor, Ensemble) and any(predictor.seen):  # runs that are combined
        parts = {n: "test" if part == "test" else "new" for n, part in parts.items()}
    write_predictions(
        out,
        (replace(p, **distances.pop(p.name, {})) for p in predictor.predict(readable())),
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
    """A trained run and its evaluation."""

    run: RunFolder
    report: Report
    maps: int
    failures: Failures

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
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
    """Train a run, then predict, evaluate and draw its held-out bags, all in the run folder.

    Args:
        config: the configuration of the run.
        out: the run folder to write.
        resume: continue an interrupted run in `out`.
        overwrite: delete an existing run in `out`.
        maps: which bags to draw: those of the test part (of the validation part if there is no test
            part), of both parts, or none.
        reporter: informed of every epoch.
        on_bag: called after every bag that is predicted or drawn.

    Returns:
        The run and its evaluation; None in all but the first of several training processes.
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
    map_score: bool = True,
    distance: bool = True,
    on_bag: OnBag | None = None,
) -> Trained:
    """Predict, evaluate and draw the held-out bags of a trained run, in its folder.

    Args:
        run: the folder of a run whose training has finished.
        bootstrap: number of resamples for the confidence intervals; 0 for none.
        maps: which bags to draw, as in `train_and_report`.
        map_score: choose the score of the maps on the validation bags, as `predict_run` does.
        distance: fit the distances from the training features, as `predict_run` does.
        on_bag: called after every bag that is predicted or drawn.
    """
    data = run.config().data
    predicted = predict_run(run, map_score=map_score, distance=distance, on_bag=on_bag)
    report = evaluate(
        run.predictions, labels=data.labels, classes=data.classes, bootstrap=bootstrap
    )
    # the training bags have labels but are not predicted: they are not missing
    report = replace(report, without_prediction=())
    split = read_split(run)
    drawn = {"test": split.test or split.val, "all": split.val + split.test, "none": ()}[maps]
    failures = list(predicted.failures)
    if drawn:
        failures += render_folder(
            run.predictions, run.maps, bags=drawn, scale="per-bag", progress=on_bag
        )
    # written last, because this file marks a run as finished
    write_json(run.path / "evaluation.json", report.to_dict())
    return Trained(run=run, report=report, maps=len(drawn), failures=failures)


def predict_run(
    run: RunFolder,
    *,
    map_score: bool = True,
    distance: bool = True,
    on_bag: OnBag | None = None,
) -> Predicted:
    """Predict the validation and test bags of a run; validation determines the threshold.

    If the run asks for it, the temperature is fitted first, so that the threshold is one of scaled
    probabilities.

    Args:
        run: the folder of a run whose training has finished.
        map_score: also choose, on at most 50 validation bags, the score that maps show, and store
            it as `map_score.json`; False for experiments, which draw no maps.
        distance: also fit the distances from the training features, and store them; False for
            experiments.
        on_bag: called after every bag.
    """
    config = run.config()
    predictor = load(run.path, device=config.training.device)
    bags = open_data(config.data)
    split = read_split(run)
    labels = _labels(read_table(config.data.labels, classes=config.data.classes))
    threshold = None
    validation: list[Prediction] = []
    predictor.temperature = 1.0  # that of an earlier call
    scaling = config.training.temperature_scaling
    if len(predictor.classes) <= 2 or "kappa" in predictor.metadata or scaling:
        validation += predictor.predict(bags.bag(n) for n in split.val)
        shares = [p.neighbour_share for p in validation if p.neighbour_share is not None]
        if shares:
            predictor.metadata["neighbour_share"] = float(np.mean(shares))
    y = np.array([labels[p.name] for p in validation], dtype=np.int64)
    validation = scale_run(run, predictor, validation, y=y)
    if len(predictor.classes) <= 2:
        score = np.array([p.probability[-1] for p in validation], dtype=np.float64)
        threshold = best_threshold(y, score) if validation else None
        chosen = f"largest F1 on {len(validation)} validation bags"
        write_json(run.path / "threshold.json", {"threshold": threshold, "chosen": chosen})
    if map_score:
        shown = choose_map_score(predictor, split.val, read=bags.bag, threshold=threshold)
        if shown is None:
            run.map_score_file.unlink(missing_ok=True)
        else:
            write_json(run.map_score_file, shown.to_dict())
        _note_map_score(predictor, shown)
    measured = fit_run_distance(run, bags.bag, split=split) if distance else None
    return _predict(
        predictor,
        BagSelection(bags, split.val + split.test, distance=measured),
        out=run.predictions,
        labels=labels,
        split=split,
        threshold=threshold,
        overwrite=True,
        on_bag=on_bag,
    )

"""Train a run; predict, evaluate and draw its held-out bags."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from ..core import (
    TextTable,
    counted,
    enumerated,
    ledger_of,
    named_file,
    read_json,
    remove_written,
    write_csv,
    write_json,
)
from ..datasets import NO_TEST, SPLIT_PARTS, BagSet, Leak, find_leaks, telling_metadata
from ..evaluation import (
    FEW_TRAINING_BAGS,
    METADATA,
    Prediction,
    PredictionsMetadata,
    Predictor,
    Report,
    Reservation,
    StoredRule,
    choose_map_score,
    evaluate,
    fit_null_maps,
    fit_run_distance,
    labelled_bags,
    load,
    null_maps_file,
    scale_run,
    write_null_scores,
)
from ..maps import OverlaySettings, render_folder, sources_of_features
from ..statistics import choose_threshold
from ..tasks import TASKS, Target, as_written
from ..training import (
    DataConfig,
    PreparedData,
    Reporter,
    RunConfig,
    RunFolder,
    as_two_classes,
    attach_covariates,
    open_units,
    read_split,
    targets_of,
    thread_count,
    train,
)
from .mean_features import fit_run_means
from .writing import BagSelection, Failures, OnBag, Predicted


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A trained run and its evaluation."""

    run: RunFolder
    report: Report
    maps: int
    failures: Failures
    leaks: tuple[dict[str, str], ...] = ()
    """The rows of leaks.csv: patients, bags and copies of bags in several parts of the split."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "run": str(self.run.path),
            "evaluation": self.report.to_dict(),
            "maps": self.maps,
            "leaks": list(self.leaks),
            "failed": [{"bag": b, "reason": r} for b, r in self.failures],
        }


def train_and_report(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    overwrite: bool = False,
    maps: Literal["test", "all", "none"] = "test",
    reporter: Reporter | None = None,
    on_bag: OnBag | None = None,
    note: str = "",
) -> Trained | None:
    """Train a run, then predict, evaluate and draw its held-out bags, all in the run folder.

    Args:
        config: the configuration of the run.
        out: the run folder to write.
        resume: continue an interrupted run in `out`.
        overwrite: delete an existing run in `out`.
        maps: which bags to draw: the first `MOST_MAPS` of the test part (of the validation part if
            there is no test part), all of both parts, or none. Maps that a run has already are not
            drawn again when it is resumed.
        reporter: informed of every epoch.
        on_bag: called after every bag that is predicted or drawn.
        note: what the reporter is told once labels and bags are checked.

    Returns:
        The run and its evaluation; None in all but the first of several training processes.
    """
    with thread_count(config.training.threads):
        run = train(
            config,
            Path(out),
            resume=resume,
            overwrite=overwrite,
            reporter=reporter,
            check=partial(_check, data=config.data, reporter=reporter or Reporter(), note=note),
        )
        if int(os.environ.get("RANK", "0")) != 0:
            return None
        return finish_run(run, maps=maps, reporter=reporter, on_bag=on_bag, keep_maps=resume)


MOST_MAPS = 12
"""Largest number of maps that a run draws unless maps of all bags are asked for."""
LEAK_COLUMNS: tuple[str, ...] = ("kind", "first", "first_part", "second", "second_part", "what")
"""The columns of leaks.csv."""

NO_GROUP = "the table of labels has no column 'group': each bag counts as a patient of its own"


def _check(
    run: RunFolder, prepared: PreparedData, *, data: DataConfig, reporter: Reporter, note: str
) -> None:
    """State what is doubtful about the data of a run, and write the leaks of its split."""
    bags, _ = open_units(data)  # those that are prepared refuse the test part
    remove_written(run.leaks_file)
    rows: list[dict[str, str]] = []
    for leak in find_leaks(bags, prepared.table, prepared.split):
        if leak.across:
            rows += _leak_rows(leak)
    if rows:
        write_csv(run.leaks_file, LEAK_COLUMNS, rows)
    table = prepared.table
    remarks = list(_leaks(run)[1])
    if not prepared.split.test:
        remarks.append(NO_TEST)
    if not table.groups:
        remarks.append(NO_GROUP)
    if table.of_task.has_classes:
        remarks.append(telling_metadata(bags, table))
    remarks.append(note)
    for remark in remarks:
        if remark:
            reporter.remark(remark)


def _leak_rows(leak: Leak) -> Iterator[dict[str, str]]:
    """Yield the rows of a leak in leaks.csv: its first bag with each other one."""
    first, *rest = zip(leak.bags, leak.parts, strict=True)
    for second in rest:
        yield dict(zip(LEAK_COLUMNS, (leak.kind, *first, *second, leak.what), strict=True))


def _leaks(run: RunFolder) -> tuple[tuple[dict[str, str], ...], tuple[str, ...]]:
    """Return the rows of leaks.csv, and the warning that they give; both empty without a leak."""
    if not run.leaks_file.is_file():
        return (), ()
    rows = tuple(TextTable.read(run.leaks_file).rows)
    phrases = []
    for kind in ("patient", "bag", "copy", "near-copy"):
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        if rows_of_kind:
            phrases.append(_leaks_in_words(kind, rows_of_kind))
    warning = f"{'; '.join(phrases)}: the evaluation may be too good, see {run.leaks_file}"
    return rows, (warning,)


def _leaks_in_words(kind: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return how many leaks there are of a kind, and between which parts."""
    connected = DisjointSet()
    for row in rows:
        connected.add(row["first"])
        connected.add(row["second"])
        connected.merge(row["first"], row["second"])
    leaks = len(connected.subsets())
    if kind in ("patient", "bag"):
        subject = counted(leaks, kind)
    else:
        copies = "copies" if kind == "copy" else "near-copies"
        originals = "one bag" if leaks == 1 else f"{leaks} bags"
        subject = f"{len(connected)} {copies} of {originals}"
    parts = {row[column] for row in rows for column in ("first_part", "second_part")}
    return f"{subject}, in {enumerated([part for part in SPLIT_PARTS if part in parts])}"


def finish_run(
    run: RunFolder,
    *,
    bootstrap: int = 2000,
    maps: Literal["test", "all", "none"] = "test",
    extras: bool = True,
    reporter: Reporter | None = None,
    on_bag: OnBag | None = None,
    keep_maps: bool = False,
) -> Trained:
    """Predict, evaluate and draw the held-out bags of a trained run, in its folder.

    Args:
        run: the folder of a run whose training has finished.
        bootstrap: number of resamples for the confidence intervals; 0 for none.
        maps: which bags to draw, as in `train_and_report`.
        extras: see `predict_run`.
        reporter: informed of each stage.
        on_bag: called after every bag that is predicted or drawn.
        keep_maps: whether maps that were drawn from the same weights are not drawn again.
    """
    data = run.config().data
    reporter = reporter or Reporter()
    predicted = predict_run(run, extras=extras, on_bag=on_bag, reporter=reporter)
    reporter.remark("evaluating the predictions")
    report = evaluate(
        run.predictions,
        labels=data.labels,
        classes=data.classes,
        bootstrap=bootstrap,
    )
    training_bags = len(read_split(run).train)
    reservations = [*report.reservations]
    if training_bags < FEW_TRAINING_BAGS:
        text = (
            f"The model was trained on {counted(training_bags, 'bag')}: ± does not span what other "
            "training bags would change, which is much with so few."
        )
        reservations.append(Reservation(kind="few training bags", text=text))
    file = run.predictions / METADATA
    stored = read_json(file, advice="predict again")
    evaluated = PredictionsMetadata(
        reservations=tuple(reservations),
        map_trust=report.map_trust.stored,
        training_bags=training_bags,
    )
    write_json(file, {**stored, **evaluated.to_dict()})
    # the training bags have labels but are not predicted: they are not missing
    leaks, warnings = _leaks(run)
    report = replace(report, without_prediction=(), warnings=(*report.warnings, *warnings))
    split = read_split(run)
    drawn = {"test": split.test or split.val, "all": split.val + split.test, "none": ()}[maps]
    failures = list(predicted.failures)
    if maps == "test" and len(drawn) > MOST_MAPS:
        reporter.remark(
            f"drawing maps of {MOST_MAPS} of {len(drawn)} bags; for the others: "
            f"probsa map {run.predictions} --out {run.maps}"
        )
        drawn = drawn[:MOST_MAPS]
    missing = [bag for bag in drawn if not (keep_maps and _has_map(run, bag))]
    if len(missing) < len(drawn):
        reporter.remark(f"{counted(len(drawn) - len(missing), 'map')} drawn earlier, and kept")
    if missing:
        reporter.remark(f"drawing {counted(len(missing), 'map')}")

        def progress(done: int, total: int) -> None:
            reporter.count("drawing maps", done, total)
            if on_bag is not None:
                on_bag(done, total)

        sources = sources_of_features(data.features)
        over = None if sources is None else (sources, OverlaySettings(where_at_hand=True))
        failures += render_folder(
            run.predictions, run.maps, bags=missing, over=over, progress=progress
        )
    # written last, because this file marks a run as finished
    write_json(run.path / "evaluation.json", report.to_dict())
    return Trained(run=run, report=report, maps=len(drawn), failures=failures, leaks=leaks)


def _has_map(run: RunFolder, bag: str) -> bool:
    """Return whether a map of a bag was drawn, unaltered, from the weights that the run has."""
    picture = named_file(run.maps, bag, ".png")
    weights = [member.best for member in run.members()]
    if not picture.is_file() or not all(file.is_file() for file in weights):
        return False
    ledger = ledger_of(picture)
    drawn_later = picture.stat().st_mtime_ns > max(file.stat().st_mtime_ns for file in weights)
    return drawn_later and ledger is not None and ledger.owns(picture)


def predict_run(
    run: RunFolder,
    *,
    extras: bool = True,
    on_bag: OnBag | None = None,
    reporter: Reporter | None = None,
) -> Predicted:
    """Predict the validation and test bags of a run; validation determines the threshold.

    If the run asks for it, the temperature is fitted first, so that the threshold is one of scaled
    probabilities.

    Args:
        run: the folder of a run whose training has finished.
        extras: also choose, on at most 50 validation bags, the score that maps show; fit the
            distances from the training features and the rival of the mean features; and, if a
            predicted bag has instance labels, fit null maps. False for experiments, which draw no
            maps, and fit null maps once for all runs of a split.
        on_bag: called after every bag.
        reporter: informed of each stage.
    """
    config = run.config()
    reporter = reporter or Reporter()
    predictor = load(run.path, device=config.training.device)
    bags, table = open_units(config.data)
    split = read_split(run)
    attach_covariates(run, bags, names=split.val + split.test, table=table)
    targets = targets_of(table)
    threshold = None
    task = TASKS[predictor.task]
    has_threshold = task.unordered_classes or task.has_findings
    chosen = "the threshold and what maps show" if has_threshold else "what maps show"
    reporter.remark(f"choosing {chosen}, on the validation bags")
    if task.unordered_classes:
        threshold = _choose_threshold(run, predictor, bags, names=split.val, labels=targets)
    if task.has_findings and split.val:
        _choose_findings(run, predictor, bags, names=split.val, targets=targets)
    rival = distance = None
    if extras:
        shown = choose_map_score(predictor, split.val, read=bags.bag, threshold=threshold)
        remove_written(run.map_score_file)
        if shown is not None:
            predictor.metadata = replace(predictor.metadata, map_score=shown)
            write_json(run.map_score_file, asdict(shown))
        rival = fit_run_means(run, predictor, read=bags.stored, split=split, targets=targets)
        patients = {bag: table.group(row) for row, bag in enumerate(table.bags)}
        distance = fit_run_distance(run, bags.bag, split=split, patients=patients)

    def null_maps(new: Path) -> None:
        if any(True for _ in labelled_bags(new)):
            reporter.remark("fitting null maps")
            classes = as_two_classes(table, split.train)
            maps = fit_null_maps(
                bags.stored, labels=classes, train=split.train, validation=split.val
            )
            maps.save(null_maps_file(run.path))
            write_null_scores(new, maps, read=bags.stored)

    reporter.remark(f"predicting {counted(len(split.val + split.test), 'bag')}")
    selection = BagSelection(
        bags=bags,
        names=split.val + split.test,
        out=run.predictions,
        labels=targets,
        groups=table.group_of,
        split=split,
        threshold=threshold,
        distance=distance,
        rival=rival,
        on_bag=on_bag,
        more=null_maps if extras else None,
    )
    return selection.predict(predictor)


def _choose_findings(
    run: RunFolder,
    predictor: Predictor,
    bags: BagSet,
    *,
    names: Sequence[str],
    targets: Mapping[str, Target],
) -> None:
    """Choose a threshold for each finding on the validation bags in which it is known."""
    predictions = predictor.predict(bags.bag(n) for n in names)
    p = as_written(np.stack([v.probability for v in predictions]))
    y = np.array([targets[name] for name in names], dtype=np.float64)
    thresholds = []
    for truth, probability in zip(y.T, p.T, strict=True):
        is_known = np.isfinite(truth)
        choice = choose_threshold(truth[is_known] == 1, probability[is_known])
        thresholds.append(choice.value)
    chosen = f"largest F1 of each finding on up to {len(names)} validation bags"
    write_json(run.threshold_file, {"threshold": None, "chosen": chosen, "findings": thresholds})
    predictor.metadata = replace(predictor.metadata, thresholds=tuple(thresholds))


def _choose_threshold(
    run: RunFolder,
    predictor: Predictor,
    bags: BagSet,
    *,
    names: Sequence[str],
    labels: Mapping[str, Target],
) -> float | None:
    """Fit the temperature and the threshold on the validation bags, and return the threshold."""
    threshold = None
    has_threshold = len(predictor.classes) <= 2
    validation: list[Prediction] = []
    predictor.temperature = 1.0  # that of an earlier call
    training = run.config().training
    if has_threshold or predictor.metadata.kappa is not None or training.temperature_scaling:
        validation += predictor.predict(bags.bag(n) for n in names)
        weights = [p.neighbour_weight for p in validation if p.neighbour_weight is not None]
        if weights:
            neighbour_weight = float(np.mean(weights))
            predictor.metadata = replace(predictor.metadata, neighbour_weight=neighbour_weight)
    y = np.array([labels[p.name] for p in validation], dtype=np.int64)
    validation = scale_run(run, predictor, validation, y=y)
    if has_threshold:
        score = np.array([as_written(p.probability)[-1] for p in validation], dtype=np.float64)
        rule = "largest F1" if training.threshold == "f1" else training.threshold
        if validation:
            choice = choose_threshold(y == 1, score, rule=training.threshold)
            threshold = choice.value
            stored_rule = StoredRule.of(choice)
            predictor.metadata = replace(predictor.metadata, threshold_rule=stored_rule)
        chosen = f"{rule} on {len(validation)} validation bags"
        write_json(run.threshold_file, {"threshold": threshold, "chosen": chosen})
    return threshold

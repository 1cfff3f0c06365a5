"""What a folder of predictions is worth: which bags were judged, at which threshold, how well.

Bags that the model was trained on are never mixed in unsaid: the report names the part it judges.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as Grid

from ..datasets import read_table
from ..errors import InputError
from ..statistics import Metric
from .instances import instance_metrics
from .lesion_report import TITLES as LESION_TITLES
from .lesion_report import LesionReport, lesion_report, lines
from .metrics import bag_metrics, choose_threshold, error_metrics
from .tables import Predictions, read_predictions

Part = Literal["auto", "test", "val", "train", "all"]

INSTANCE_RESAMPLES = 500
"""At most: instances are many, and their ranks cost more than the bags'."""

SHOWN = 5
"""Names that are listed for people; programs get all of them."""

TITLES = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "f1": "F1",
    "f1_at_0.5": "F1 at 0.5",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "ECE (15 bins; its interval lies high)",
    "nll": "negative log-likelihood",
    "error_auroc_spread": "wrong bags found by the spread (AUROC)",
    "error_auroc_margin": "… by -|p - threshold| (null)",
    "auroc_positive_bags": "AUROC within positive bags",
    "average_precision_positive_bags": "average precision within positive bags",
    "error_rate": "wrong calls within positive bags",
    "error_auroc_variance": "wrong calls found by σ² (AUROC)",
    "error_auroc_degree": "… by 1/degree (null)",
    "dice": "Dice, mean over positive bags",
    "dice_pooled": "Dice of all their instances",
    "authors_auroc": "authors' protocol: AUROC",
    "authors_average_precision": "authors' protocol: average precision",
    "authors_f1": "authors' protocol: F1",
    "authors_accuracy": "authors' protocol: accuracy",
}
INSTANCE_TITLES = {**TITLES, "error_auroc_margin": "… by -|s| (null)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The metrics of one part of a folder of predictions, and what they were computed from."""

    folder: Path
    part: str
    """test (with bags that the run does not know), val, train or all."""
    parts: dict[str, int]
    """Judged bags by the part of the run they belong to."""
    bags: int
    classes: tuple[str, ...]
    per_class: dict[str, int]
    threshold: float | None
    """None with three classes or more: the most probable one is called."""
    threshold_source: str
    metrics: dict[str, Metric]
    instances: dict[str, Metric] | None
    """None where no judged bag has instance labels."""
    instance_bags: int
    without_label: tuple[str, ...]
    without_prediction: tuple[str, ...]
    warnings: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    lesions: LesionReport | None = None
    """None where no annotations were given."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "folder": str(self.folder),
            "part": self.part,
            "parts": self.parts,
            "bags": self.bags,
            "classes": list(self.classes),
            "per_class": self.per_class,
            "threshold": self.threshold,
            "threshold_source": self.threshold_source,
            "metrics": {k: m.to_dict() for k, m in self.metrics.items()},
            "instances": None
            if self.instances is None
            else {k: m.to_dict() for k, m in self.instances.items()},
            "instance_bags": self.instance_bags,
            "without_label": list(self.without_label),
            "without_prediction": list(self.without_prediction),
            "warnings": list(self.warnings),
            "about": self.metadata,
            **({} if self.lesions is None else {"lesions": self.lesions.to_dict()}),
        }

    def render(self, console: Console) -> None:
        """Prints the report for people."""
        parts = ", ".join(f"{n} {part}" for part, n in self.parts.items())
        kinds = ", ".join(f"{n} of class {c}" for c, n in self.per_class.items())
        console.print(
            f"{self.folder}: {self.bags} bags ({parts}; {kinds})", markup=False, soft_wrap=True
        )
        console.print(f"threshold: {self.threshold_source}", markup=False, soft_wrap=True)
        console.print(_grid("bags", self.metrics, titles=TITLES))
        if self.instances is not None:
            title = f"instances of {self.instance_bags} bags"
            console.print(_grid(title, self.instances, titles=INSTANCE_TITLES))
        if self.lesions is not None:
            title = f"lesions of {self.lesions.slides} slides"
            console.print(_grid(title, self.lesions.metrics, titles=LESION_TITLES))
            for line in lines(self.lesions, listed=_listed):
                console.print(line, markup=False, soft_wrap=True)
        for what, names in (
            ("predicted without a label", self.without_label),
            ("labels without a prediction", self.without_prediction),
        ):
            if names:
                console.print(f"{what}: {_listed(names)}", markup=False, soft_wrap=True)
        for warning in self.warnings:
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)


def evaluate(
    folder: Path,
    *,
    labels: Path | None = None,
    classes: Sequence[str] | None = None,
    part: Part = "auto",
    lesions: Path | None = None,
    mpp: float | None = None,
    bootstrap: int = 2000,
    seed: int = 0,
) -> Report:
    """Judges a folder of predictions.

    Args:
        folder: that `probsa predict` or a run wrote.
        labels: table `bag,label[,group]`; none: the labels stored with the predictions. Its groups
            (patients) are what the intervals resample.
        classes: names in the order of their index, where the table's labels are names.
        part: `auto` takes the test bags (and bags that the run does not know), else the validation
            bags, else all there are.
        lesions: folder of annotations of the slides' tumour; none: lesions are not judged.
        mpp: micrometres of the slides' level-0 pixels, for `lesions`; none: the organisers' 0.243.
        bootstrap: resamples of the intervals, drawn with `seed`; 0: none.

    Raises:
        InputError: no such folder, no judged bag has a label, or a label is no class.
        TableError: one of the tables cannot be used.
        BagError: lesions are to be judged of a bag without coordinates.
    """
    predictions = read_predictions(folder)
    truth = _truth(predictions, labels, classes=classes)
    chosen, rows = _rows(predictions, truth, part=part)
    report = _report(predictions, truth, chosen=chosen, rows=rows, bootstrap=bootstrap, seed=seed)
    if lesions is None:
        return report
    found = lesion_report(
        predictions,
        lesions,
        bags=[predictions.bags[i] for i in rows],
        positive={b: y > 0 for b, y in truth.label.items()},
        groups=truth.group,
        mpp=mpp,
        bootstrap=min(bootstrap, INSTANCE_RESAMPLES),
        seed=seed,
    )
    return replace(report, lesions=found)


def _report(
    predictions: Predictions,
    truth: "_Truth",
    *,
    chosen: str,
    rows: Sequence[int],
    bootstrap: int,
    seed: int,
) -> Report:
    """Of bags and instances."""
    warnings = list(truth.warnings)
    threshold, source = _threshold(predictions, truth, judged=chosen)
    counts = Counter(predictions.parts[i] for i in rows)
    warnings += _warnings(counts, source, part=chosen)
    y = [truth.label[predictions.bags[i]] for i in rows]
    groups = [truth.group.get(predictions.bags[i], predictions.bags[i]) for i in rows]
    p, sd = predictions.probability[rows], predictions.std[rows]
    bag = bag_metrics(y, p, threshold=threshold, groups=groups, bootstrap=bootstrap, seed=seed)
    errors = error_metrics(
        y, p, std=sd, threshold=threshold, groups=groups, bootstrap=bootstrap, seed=seed
    )
    instances, held, missing = _instances(
        predictions, truth, rows=rows, judged=chosen, bootstrap=bootstrap, seed=seed
    )
    warnings += [f"no per-instance outputs of {_listed(missing)}"] if missing else []
    names = _class_names(predictions)
    return Report(
        folder=predictions.folder,
        part=chosen,
        parts=dict(counts),
        bags=len(rows),
        classes=names,
        per_class={c: y.count(i) for i, c in enumerate(names)},
        threshold=threshold,
        threshold_source=source,
        metrics={**bag, **errors},
        instances=instances,
        instance_bags=held,
        without_label=tuple(b for b in predictions.bags if b not in truth.label),
        without_prediction=tuple(b for b in truth.label if b not in set(predictions.bags)),
        warnings=tuple(warnings),
        metadata=predictions.metadata,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Truth:
    label: dict[str, int]
    group: dict[str, str]
    warnings: tuple[str, ...] = ()


def _truth(predictions: Predictions, path: Path | None, *, classes: Sequence[str] | None) -> _Truth:
    stored = {
        b: y for b, y in zip(predictions.bags, predictions.labels, strict=True) if y is not None
    }
    if path is None:
        return _checked(stored, predictions, group={}, where="predictions.csv", warnings=())
    names = _class_names(predictions)
    if classes is None and names != tuple(str(i) for i in range(len(names))):
        classes = names
    table = read_table(path, classes=classes, labels_required=False)
    given = {b: y for b, y in zip(table.bags, table.labels, strict=True) if y is not None}
    group = dict(zip(table.bags, table.groups, strict=True)) if table.groups is not None else {}
    other = [b for b, y in stored.items() if b in given and given[b] != y]
    warnings = ()
    if other:
        warnings = (
            f"{path} has another label than the predictions' table for {_listed(other)}: "
            "the former is used",
        )
    return _checked(given, predictions, group=group, where=str(path), warnings=warnings)


def _checked(
    label: dict[str, int],
    predictions: Predictions,
    *,
    group: dict[str, str],
    where: str,
    warnings: tuple[str, ...],
) -> _Truth:
    top = len(_class_names(predictions)) - 1
    high = [b for b in predictions.bags if label.get(b, 0) > top]
    if high:
        raise InputError(
            f"{where} gives bag {high[0]!r} class {label[high[0]]}, but {predictions.folder} was "
            f"predicted by a model of classes 0 to {top}"
        )
    return _Truth(label=label, group=group, warnings=warnings)


def _class_names(predictions: Predictions) -> tuple[str, ...]:
    """One name a class; the classes of one logit are two."""
    if predictions.probability.shape[1] > 1 or len(predictions.classes) == 2:
        return predictions.classes
    positive = predictions.classes[-1]
    return ("0", "1") if positive == "1" else (f"not {positive}", positive)


def _rows(predictions: Predictions, truth: _Truth, *, part: Part) -> tuple[str, list[int]]:
    """The judged part and its labelled rows."""
    labelled = [i for i, b in enumerate(predictions.bags) if b in truth.label]
    if not labelled:
        raise InputError(
            f"none of the {len(predictions.bags)} bags predicted in {predictions.folder} has a "
            f"label ({_listed(predictions.bags)}): give --labels with these names in column 'bag'"
        )
    of = {
        "test": [i for i in labelled if predictions.parts[i] not in ("train", "val")],
        "val": [i for i in labelled if predictions.parts[i] == "val"],
        "train": [i for i in labelled if predictions.parts[i] == "train"],
        "all": labelled,
    }
    if part == "auto":
        part = "test" if of["test"] else "val" if of["val"] else "all"
    if not of[part]:
        there = Counter(predictions.parts[i] for i in labelled)
        raise InputError(
            f"{predictions.folder} has no labelled {part} bags; it has "
            + ", ".join(f"{n} {name}" for name, n in there.items())
        )
    return part, of[part]


def _threshold(predictions: Predictions, truth: _Truth, *, judged: str) -> tuple[float | None, str]:
    """Where p(Y = 1) becomes a call, and in words where that comes from."""
    if predictions.probability.shape[1] > 2:
        return None, "none: the most probable class is called"
    if predictions.threshold is not None:
        t = predictions.threshold
        return t, f"{t:.4g}, stored with the predictions (chosen on validation bags)"
    rows = [
        i
        for i, b in enumerate(predictions.bags)
        if predictions.parts[i] == "val" and b in truth.label
    ]
    if not rows:
        return 0.5, "0.5: none was stored, and no validation bag with a label was predicted"
    y = [truth.label[predictions.bags[i]] for i in rows]
    t = choose_threshold(y, predictions.probability[rows, -1])
    if t.reason is not None:
        return t.value, f"{t.value:.4g}: {t.reason}"
    same = ", which are the judged ones" if judged == "val" else ""
    return t.value, f"{t.value:.4g}, the best F1 on {len(rows)} validation bags{same}"


def _warnings(counts: Mapping[str, int], source: str, *, part: str) -> list[str]:
    out = []
    if counts["train"] == sum(counts.values()):
        out.append("only training bags were judged: this says how well they are remembered")
    elif counts["train"]:
        out.append(f"{counts['train']} training bags are among the judged ones")
    if part == "val":
        out.append("model and threshold were chosen on these validation bags: figures flatter them")
    if source.startswith("0.5: "):
        out.append("F1 and accuracies are at 0.5, which nobody chose for these predictions")
    return out


def _instances(
    predictions: Predictions,
    truth: _Truth,
    *,
    rows: Sequence[int],
    judged: str,
    bootstrap: int,
    seed: int,
) -> tuple[dict[str, Metric] | None, int, list[str]]:
    """Instance metrics, how many bags they are of, and the bags without per-instance outputs."""
    names = [predictions.bags[i] for i in rows]
    missing = [b for b in names if not predictions.instance_path(b).is_file()]
    held = [predictions.instances(b) for b in names if b not in set(missing)]
    held = [p for p in held if p.instance_labels is not None]
    if not held:
        return None, 0, missing
    validation = None
    if judged in ("test", "train"):
        validation = [
            predictions.instances(b)
            for b, part in zip(predictions.bags, predictions.parts, strict=True)
            if part == "val" and truth.label.get(b) and predictions.instance_path(b).is_file()
        ]
    found = instance_metrics(
        held,
        positive={b: y > 0 for b, y in truth.label.items()},
        validation=validation,
        groups=truth.group,
        bootstrap=min(bootstrap, INSTANCE_RESAMPLES),
        seed=seed,
    )
    return found, len(held), missing


def _grid(title: str, metrics: Mapping[str, Metric], *, titles: Mapping[str, str]) -> Grid:
    grid = Grid(title=title, title_justify="left")
    grid.add_column("metric")
    grid.add_column("value", justify="right")
    grid.add_column("95 % interval")
    for name, m in metrics.items():
        if m.value is None:
            grid.add_row(titles.get(name, name), "-", m.reason)
            continue
        span = "" if m.low is None or m.high is None else f"[{m.low:.3f}, {m.high:.3f}]"
        left = f" ({m.left_out} resamples undefined)" if m.left_out else ""
        grid.add_row(titles.get(name, name), f"{m.value:.3f}", span + left)
    return grid


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(n) for n in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} bag{'' if len(names) == 1 else 's'} ({shown}{more})"

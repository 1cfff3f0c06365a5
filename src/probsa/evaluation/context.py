"""What is evaluated: predictions of some bags, what is true of them, and resamples of their groups.

A predictions folder is read once; all parts of a report are computed from the same `Context`.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from ..core import TextTable, group_keys
from ..datasets import check_bag_table, match_bags, patient_table, read_table
from ..errors import InputError
from ..statistics import Draws, Threshold
from ..tasks import Stated, TargetData, TargetOptions, Task
from ..training import RunFolder
from .prediction import Prediction
from .storage import (
    MEAN_FEATURES,
    PREDICTIONS_TABLE,
    Predictions,
    call_threshold,
    choose_on_validation,
    listed,
    read_predictions,
    stated_of,
)

SEEN = ("train", "val")
"""Parts of a run whose bags the run has seen."""
INSTANCE_RESAMPLES = 500
"""Upper limit of the resamples for instances, which are many and slow to rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """Targets and groups by bag, and warnings about them."""

    targets: Mapping[str, tuple[float, ...]]
    """The class index of a bag, or a value for each column of the target, nan if not known."""
    group: Mapping[str, str] = field(default_factory=dict)
    """Groups (patients); a bag that is missing is its own group, see `group_keys`."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Context:
    """The evaluated bags of a predictions folder, with their targets and groups."""

    predictions: Predictions
    truth: Truth
    part: str
    """test, val, train, all, or new (bags whose targets are not used)."""
    rows: tuple[int, ...]
    """The rows of the evaluated bags in `predictions`."""
    threshold: float | None
    """p(Y = 1) from which a bag is called positive; None where another rule decides calls."""
    bootstrap: int
    """Number of resamples of intervals; 0 for none."""
    seed: int

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.predictions.of_task

    @cached_property
    def names(self) -> list[str]:
        """The names of the evaluated bags."""
        return [self.predictions.bags[i] for i in self.rows]

    @cached_property
    def groups(self) -> list[str]:
        """The group of each evaluated bag."""
        return group_keys(self.names, self.truth.group)

    @cached_property
    def targets(self) -> Float[np.ndarray, "bags targets"]:
        """The targets of the evaluated bags; see `Truth.targets`."""
        targets = [self.truth.targets[name] for name in self.names]
        return np.array(targets, dtype=np.float64).reshape(len(targets), -1)

    @cached_property
    def y(self) -> Int[np.ndarray, " bags"]:
        """The class index of the evaluated bags, for tasks with classes."""
        return self.targets[:, 0].astype(np.int64)

    @cached_property
    def p(self) -> Float[np.ndarray, "bags classes"]:
        """The probabilities of all classes, with two columns for a single logit."""
        p = self.predictions.probability[list(self.rows)].astype(np.float64)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 and self.task.has_classes else p

    @cached_property
    def stated(self) -> Stated:
        """What is stated of the model, with the threshold of the evaluation."""
        return stated_of(self.predictions)._replace(threshold=self.threshold)

    @cached_property
    def called(self) -> Int[np.ndarray, " bags"]:
        """The called class of the evaluated bags, for tasks with classes."""
        return self.task.call(self.p, self.threshold)[0]

    def output(self, name: str) -> Float[np.ndarray, " bags"]:
        """Return a predicted column by its name, for tasks without classes."""
        return self.p[:, self.predictions.outputs.index(name)]

    @cached_property
    def data(self) -> TargetData:
        """The evaluated bags as their task sees them."""
        data = target_data(self.predictions, self.rows, self.targets)
        return replace(data, threshold=self.threshold)

    @cached_property
    def draws(self) -> Draws:
        """The resamples of the evaluated bags' groups, stratified by target."""
        return self.sample(self.task.labels.strata(self.targets), groups=self.groups)

    def resamples(
        self, names: Sequence[str], positive: np.ndarray, *, at_most: int = INSTANCE_RESAMPLES
    ) -> Draws:
        """Return resamples of the groups of some bags, stratified by whether a bag is positive."""
        groups = group_keys(names, self.truth.group)
        return self.sample(positive, groups=groups, at_most=at_most)

    def sample(
        self,
        strata: np.ndarray,
        *,
        groups: Sequence[Hashable],
        at_most: int | None = None,
    ) -> Draws:
        """Return resamples of groups as the evaluation makes all of them.

        Args:
            strata: the stratum of each item.
            groups: the group (patient) of each item.
            at_most: the largest number of resamples; None for that of the evaluation.
        """
        count = self.bootstrap if at_most is None else min(self.bootstrap, at_most)
        return Draws.patients(strata, groups=groups, resamples=count, seed=self.seed)

    @cached_property
    def validation(self) -> "Context":
        """The labelled validation bags of the same predictions, unless they are evaluated."""
        rows = labelled_rows(self.predictions, self.truth)["val"]
        return replace(self, part="val", rows=() if self.part in ("val", "all") else rows)

    def instances(self) -> Iterator[Prediction]:
        """Read the instances of the bags, one bag at a time; bags without any are left out."""
        for name in self.names:
            if self.predictions.has_instances(name):
                yield self.predictions.instances(name)

    def is_positive(self, p: Prediction) -> bool:
        """Return whether a bag is positive: any class but the first, else a positive instance."""
        if self.task.has_classes:
            return self.truth.targets.get(p.name, (0.0,))[0] > 0
        return p.instance_labels is not None and bool((p.instance_labels > 0).any())


def target_data(
    predictions: Predictions, rows: Sequence[int], y: Float[np.ndarray, "bags targets"]
) -> TargetData:
    """Return some rows of a table of predictions with their targets, as their task sees them.

    Raises:
        InputError: the stored predictions of the mean of the features are of other bags.
    """
    indices = list(rows)
    training = predictions.metadata.training_targets
    if training is not None:
        training = np.array(training, dtype=np.float64).reshape(len(training), -1)
    return TargetData(
        task=predictions.task,
        y=y,
        predicted=predictions.probability[indices].astype(np.float64),
        outputs=predictions.outputs,
        names=predictions.class_names,
        scores={name: values[indices] for name, values in predictions.scores.items()},
        training=training,
        thresholds=predictions.metadata.thresholds,
        of_means=_predicted_by_means(predictions, rows),
    )


def _predicted_by_means(
    predictions: Predictions, rows: Sequence[int]
) -> Float[np.ndarray, "bags columns"] | None:
    """Return what the linear model of the mean features predicts; None if that is not stored."""
    path = None if predictions.path is None else predictions.path / MEAN_FEATURES
    if path is None or not path.is_file():
        return None
    columns = predictions.outputs.names or predictions.classes
    columns = columns[-predictions.probability.shape[1] :]
    stored_rows = {row.get("bag"): row for row in TextTable.read(path).rows}
    values = np.zeros((len(rows), len(columns)))
    try:
        for k, row in enumerate(rows):
            cells = stored_rows[predictions.bags[row]]
            values[k] = [float(cells[column]) for column in columns]
        if not np.isfinite(values).all():
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path} is damaged or belongs to other predictions: predict again, or remove it to "
            "evaluate without the mean of the features"
        ) from None
    return values


def labelled_rows(predictions: Predictions, truth: Truth) -> dict[str, tuple[int, ...]]:
    """Return the rows of the bags with a target, by part: `test` with new bags, val, train, all."""
    rows = [i for i, name in enumerate(predictions.bags) if name in truth.targets]
    rows_of_parts: dict[str, list[int]] = {"test": [], **{part: [] for part in SEEN}}
    for i in rows:
        part = predictions.parts[i]
        rows_of_parts[part if part in SEEN else "test"].append(i)
    rows_of_parts["all"] = rows
    return {part: tuple(rows) for part, rows in rows_of_parts.items()}


def default_part(labelled: Mapping[str, Sequence[int]]) -> Literal["test", "val", "all"]:
    """Return the part that is evaluated unless another is asked for; see `labelled_rows`."""
    if labelled["test"]:
        return "test"
    return "val" if labelled["val"] else "all"


def threshold_of(
    predictions: Predictions, truth: Truth, *, rule: str | None = None
) -> Threshold | None:
    """Return the threshold of positive calls, see `call_threshold`, by the labels of `truth`.

    With a rule, it is chosen anew on the labelled validation bags.

    Raises:
        InputError: the rule cannot choose, see `choose_on_validation`.
    """
    if rule is not None:
        positive = {bag: y[0] > 0 for bag, y in truth.targets.items()}
        return choose_on_validation(predictions, positive, rule=rule)
    stored = predictions.call_threshold
    targets = [truth.targets.get(bag) for bag in predictions.bags]
    threshold = call_threshold(
        predictions.of_task,
        stored=stored.value if stored is not None and stored.origin == "stored" else None,
        parts=predictions.parts,
        positive=[None if y is None else y[0] > 0 for y in targets],
        p=predictions.probability,
    )
    chosen = predictions.metadata.threshold_rule
    if threshold is None or threshold.origin != "stored" or chosen is None:
        return threshold
    return replace(
        threshold,
        rule=chosen.rule,
        reached=chosen.reached,
        bags=chosen.bags,
        of_class=chosen.of_class,
    )


def stored_targets(predictions: Predictions) -> dict[str, tuple[float, ...]]:
    """Return the targets that are stored with predictions, of the bags that have some."""
    if predictions.targets is None:
        labels = zip(predictions.bags, predictions.labels, strict=True)
        return {bag: (float(y),) for bag, y in labels if y is not None}
    rows = zip(predictions.bags, predictions.targets.tolist(), strict=True)
    return {bag: tuple(row) for bag, row in rows if any(map(math.isfinite, row))}


def read_truth(
    predictions: Predictions, path: Path | None, *, classes: Sequence[str] | None = None
) -> Truth:
    """Read the targets of a table, or those stored with the predictions.

    Args:
        predictions: the predictions.
        path: table with the columns of the run's target, and perhaps `group`; None for the stored
            targets. Stored groups are used unless the table has groups.
        classes: names of the classes in the order of their index, if the labels are names.

    Raises:
        InputError: a label is not one of the classes of the model.
        TableError: the table cannot be used.
    """
    if path is None:
        truth = Truth(targets=stored_targets(predictions), group=predictions.group_of)
    else:
        truth = _truth_of_table(predictions, path, classes=classes)
    if predictions.of_task.has_classes:
        _check_classes(predictions, truth, where=path or "predictions.csv")
    return truth


def _truth_of_table(
    predictions: Predictions, path: Path, *, classes: Sequence[str] | None
) -> Truth:
    """Read the targets of a table; see `read_truth`."""
    task = predictions.of_task
    metadata = predictions.metadata
    columns = metadata.target or (predictions.classes if task.has_findings else None)
    table = read_table(
        path,
        classes=_names_of_classes(predictions, classes) if task.has_classes else None,
        labels_required=False,
        target=TargetOptions(
            task="auto" if task.unordered_classes else task.name,
            target=None if columns is None else tuple(columns),
        ),
        covariates=metadata.covariates,
    )
    if metadata.unit == "patient":
        table = patient_table(table)
    else:
        table = match_bags(table, predictions.bags)
    rows = zip(table.bags, table.values, strict=True)
    targets = {bag: value for bag, value in rows if value is not None}
    warnings = list(table.notes)
    if task.has_classes:
        stored = stored_targets(predictions)
        changed = [bag for bag, y in stored.items() if bag in targets and targets[bag] != y]
        if changed:
            warnings.append(
                f"{path} replaces different labels in predictions.csv for {listed(changed)}"
            )
    group = table.group_of or predictions.group_of
    return Truth(targets=targets, group=group, warnings=tuple(warnings))


def _check_classes(predictions: Predictions, truth: Truth, *, where: Path | str) -> None:
    """Refuse a class that the model does not have."""
    top = len(predictions.class_names) - 1
    for bag in predictions.bags:
        if bag in truth.targets and truth.targets[bag][0] > top:
            raise InputError(
                f"{where} gives bag {bag!r} class {truth.targets[bag][0]:g}, but the model of "
                f"{predictions.title} has classes 0 to {top}"
            )


def check_truth(folder: Path, labels: Path | None, *, classes: Sequence[str] | None = None) -> None:
    """Refuse a table of labels that does not fit the predictions in a folder, or of a run.

    Of a run without predictions, and of a model that is a file, only the columns are checked.

    Raises:
        InputError, TableError: see `read_truth`.
    """
    if labels is None:
        return
    is_run = not (folder / PREDICTIONS_TABLE).is_file()
    if is_run and not RunFolder(folder).predictions.is_dir():
        check_bag_table(labels)
    else:
        read_truth(read_predictions(folder), labels, classes=classes)


def _names_of_classes(
    predictions: Predictions, classes: Sequence[str] | None
) -> Sequence[str] | None:
    """Return the names that labels of a table may have; None if the model's are only numbers."""
    names = predictions.class_names
    unnamed = names == tuple(map(str, range(len(names))))
    if classes is None:
        return None if unnamed else names
    if len(classes) != len(names) or not (unnamed or tuple(classes) == names):
        raise InputError(
            f"the classes are {', '.join(classes)}, but those of the model of "
            f"{predictions.title} are {', '.join(names)}, in this order: leave classes out"
        )
    return classes

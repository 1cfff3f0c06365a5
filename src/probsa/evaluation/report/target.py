"""The sections on what is predicted: metrics by class, cut, finding, interval or time; patients.

Beside the model stand rivals. Some look at no bag: mean and median of the training bags, and
the survival curve of Kaplan and Meier. One is linear in the mean of the features of a bag.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float
from rich.table import Table as Grid

from ...core import counted
from ...errors import InputError
from ...statistics import Draws, Metric, TargetMetrics
from ...tasks import MEAN_RIVAL
from ..context import Context
from ..section import Section, metric_columns, metric_grid
from ..words import METRIC_TITLES


def target_section(context: Context) -> tuple[dict[str, Metric], Section | None]:
    """Return the metrics over all bags, and the section with the others, if there are any.

    Raises:
        InputError: the targets cannot be compared with the predictions.
    """
    found = context.task.metrics(context.data, context.draws)
    rivals = context.task.rivals(context.data, context.draws)
    gain = _gain(context, found, rivals.get(MEAN_RIVAL))
    overall = dict(found.overall)
    if not (found.by_part or rivals or found.notes):
        return overall, None
    text: list[Grid | str] = []
    if found.by_part:
        part = context.task.words.part
        text.append(metric_columns(part, found.by_part, titles=METRIC_TITLES))
    of_rivals = {name: rival.overall for name, rival in rivals.items()}
    if of_rivals:
        text.append(metric_columns("rival", of_rivals, titles=METRIC_TITLES))
    if gain is not None:
        title = METRIC_TITLES[context.task.primary.name]
        text.append(f"{title}, better than the {MEAN_RIVAL} by: {gain}")
    notes = tuple(dict.fromkeys(found.notes))
    values = {
        "task": context.task.name,
        "by_part": found.by_part,
        "rivals": of_rivals,
        "gain_over_mean_features": gain and {"metric": context.task.primary.name, **gain.to_dict()},
        "notes": notes,
    }
    text += [f"note: {note}" for note in notes]
    return overall, Section(key="target", values=values, text=text)


def _gain(context: Context, model: TargetMetrics, means: TargetMetrics | None) -> Metric | None:
    """Return by how much the model is better than the mean of the features."""
    primary = context.task.primary
    if means is None or primary.name not in model.overall:
        return None
    one, other = model.overall[primary.name], means.overall[primary.name]
    better = one - other if primary.higher_is_better else other - one
    return better.student(groups=len(set(context.groups)))


def patients_section(context: Context) -> Section | None:
    """Return the metrics of patients; None if no patient has several bags.

    The rule is fixed: the mean of the bags' predictions, compared with the patient's target. A
    patient has the highest class or grade of its bags. For other tasks all bags of a patient must
    have the same target.
    """
    data, groups = context.data, context.groups
    member, names = pd.factorize(np.array(groups, dtype=object))
    names = list(names)
    if len(names) == len(groups):
        return None
    y = np.stack([_highest(data.y[member == k]) for k in range(len(names))])
    counts = f"{counted(len(names), 'patient')} with {counted(len(groups), 'bag')}"
    values = {"patients": len(names), "slides": len(groups), "rule": "mean"}
    differ = [
        names[m]
        for k, m in enumerate(member)
        if not np.array_equal(data.y[k], y[m], equal_nan=True)
    ]
    if differ and not context.task.patient_has_highest:
        reason = f"no metrics, as the bags of {differ[0]!r} differ in their targets"
        values |= {"metrics": {}, "reason": reason}
        return Section(key="patients", values=values, text=[f"{counts}: {reason}"])
    predicted = np.zeros((len(names), data.predicted.shape[1]))
    np.add.at(predicted, member, data.predicted)
    of_patients = replace(
        data, y=y, predicted=predicted / np.bincount(member)[:, None], scores={}, of_means=None
    )
    draws = Draws.stratified(
        context.task.strata(y), groups=names, resamples=context.bootstrap, seed=context.seed
    )
    try:
        metrics: Mapping[str, Metric] = context.task.metrics(of_patients, draws).overall
    except InputError as error:
        return Section(key="patients", values=values, text=[f"{counts}: {error}"])
    title = f"{counts}: the mean over the bags of a patient"
    return Section(
        key="patients",
        values={**values, "metrics": metrics},
        text=[metric_grid(title, metrics, titles=METRIC_TITLES)],
        metrics={"patients": metrics},
    )


def _highest(y: Float[np.ndarray, "bags targets"]) -> Float[np.ndarray, " targets"]:
    """Return the highest value in each column; nan where no bag has a value."""
    return np.where(np.isnan(y).all(0), np.nan, np.where(np.isnan(y), -np.inf, y).max(0))

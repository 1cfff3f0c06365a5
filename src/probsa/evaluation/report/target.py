"""The sections on what is predicted: metrics by class, cut, finding, interval or time; patients.

Beside the model stand rivals. Some look at no bag: mean and median of the training bags, and
the survival curve of Kaplan and Meier. One is linear in the mean of the features of a bag.
"""

from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd
from rich.table import Table as Grid

from ...core import counted
from ...errors import InputError
from ...statistics import Draws, Metric
from ...tasks import MEAN_RIVAL
from ..context import Context
from ..section import Section, metric_columns, metric_grid
from ..words import METRIC_TITLES, metric_titles


def target_section(context: Context) -> tuple[dict[str, Metric], Section | None]:
    """Return the metrics over all bags, and the section with the others, if there are any.

    Raises:
        InputError: the targets cannot be compared with the predictions.
    """
    task = context.task
    found = task.metrics(context.data, context.draws)
    of_rivals = {k: m.overall for k, m in task.rivals(context.data, context.draws).items()}
    overall, primary, gain = dict(found.overall), task.primary, None
    if MEAN_RIVAL in of_rivals and primary.name in overall:
        gain = overall[primary.name] - of_rivals[MEAN_RIVAL][primary.name]
        gain = gain if primary.higher_is_better else gain.map(np.negative)
    if not (found.by_part or of_rivals or found.notes):
        return overall, None
    tables = {task.words.part: found.by_part, "rival": of_rivals}
    text: list[Grid | str] = [
        metric_columns(part, rows, titles=metric_titles(dict.fromkeys(chain(*rows.values()))))
        for part, rows in tables.items()
        if rows
    ]
    if gain is not None:
        text.append(f"{METRIC_TITLES[primary.name]}, better than the {MEAN_RIVAL} by: {gain}")
    notes = tuple(dict.fromkeys(found.notes))
    values = {
        "task": task.name,
        "by_part": found.by_part,
        "rivals": of_rivals,
        "gain_over_mean_features": gain and {"metric": primary.name, **gain.to_dict()},
        "notes": notes,
    }
    return overall, Section("target", values, text=text, warnings=notes)


def patients_section(context: Context) -> Section | None:
    """Return the metrics of patients; None if no patient has several bags.

    The rule is fixed: the mean of the bags' predictions, compared with the patient's target. A
    patient has the highest class or grade of its bags. For other tasks all bags of a patient must
    have the same target.
    """
    data, groups, task = context.data, context.groups, context.task
    member, unique = pd.factorize(np.array(groups, dtype=object))
    names = list(unique)
    if len(names) == len(groups):
        return None
    y = pd.DataFrame(data.y).groupby(member).max().to_numpy()
    predicted = pd.DataFrame(data.predicted).groupby(member).mean().to_numpy()
    counts = f"{counted(len(names), 'patient')} with {counted(len(groups), 'bag')}"
    values = {"patients": len(names), "slides": len(groups), "rule": "mean"}
    pairs = zip(member, data.y, strict=True)
    differ = [names[m] for m, of_bag in pairs if not np.array_equal(of_bag, y[m], equal_nan=True)]
    try:
        if differ and not task.patient_has_highest:
            raise InputError(f"no metrics, as the bags of {differ[0]!r} differ in their targets")
        of_patients = replace(data, y=y, predicted=predicted, scores={}, of_means=None)
        draws = Draws.patients(
            task.labels.strata(y), groups=names, resamples=context.bootstrap, seed=context.seed
        )
        metrics = task.metrics(of_patients, draws).overall
    except InputError as error:
        values |= {"metrics": {}, "reason": str(error)}
        return Section("patients", values, text=[f"{counts}: {error}"])
    title = f"{counts}: the mean over the bags of a patient"
    text = [metric_grid(title, metrics, titles=metric_titles(metrics))]
    values["metrics"] = metrics
    return Section("patients", values, text=text, metrics={"patients": metrics})

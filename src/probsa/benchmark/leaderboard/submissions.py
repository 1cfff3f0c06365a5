"""Rows that others made (`evaluation/submission.py`), as entries of the leaderboard."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...evaluation import Submission, SubmittedSet, read_submission
from ..grid.methods_and_cells import Method
from ..results.results import Scores
from .entries import Entry, values_of

FOLDER = "submissions"
"""Folder below the experiment's that is searched for `*.json`."""


def submitted(out: Path, own: Mapping[str, Scores]) -> tuple[list[Entry], list[str]]:
    """Return the entries of all rows, and why some were left out.

    A row is checked against the runs: it has each of their test bags once, with their labels.

    Args:
        out: the experiment's folder.
        own: the scores of any method on each data set.
    """
    entries: list[Entry] = []
    notes: list[str] = []
    for path in sorted((out / FOLDER).glob("*.json")):
        try:
            row = read_submission(path)
        except InputError as error:
            notes.append(f"Left out: {error}.")
            continue
        for data, results in row.sets.items():
            if data not in own:
                notes.append(f"{path.name}: no method was run on {data}.")
                continue
            found = _entry(row, data, results, own[data])
            if isinstance(found, str):
                notes.append(f"{path.name} on {data}: left out, because {found}.")
            else:
                entries.append(found)
    return entries, notes


def _entry(row: Submission, data: str, results: SubmittedSet, own: Scores) -> Entry | str:
    labels = dict(zip(own.bags, own.y.tolist(), strict=True))
    for replicate, bags in results.replicates.items():
        reason = results.missing(replicate)
        if reason is None and {bag: b.y for bag, b in bags.items()} != labels:
            reason = "its bags or labels differ from those of the runs here"
        if reason is not None:
            return f"in replicate {replicate} {reason}"
    name = f"{row.method} (submitted)"
    replicates = list(results.replicates.values())
    p = np.array([[bags[b].p for b in own.bags] for bags in replicates])
    scores = Scores(
        data=data,
        method=Method(label=name, model="submitted"),
        bags=own.bags,
        y=own.y,
        groups=own.groups,
        p=p,
        calls=p >= 0.5,
        split=np.broadcast_to(own.split[:1], p.shape),
        seed=np.array([int(r) for r in results.replicates]),
        folds=own.folds,
    )
    measures = [{b: v.measures for b, v in bags.items()} for bags in replicates]
    return Entry(
        data=data,
        name=name,
        bags=own.bags,
        groups=tuple(map(str, own.groups.tolist())),
        values=values_of(measures, bags=own.bags),
        scores=scores,
    )

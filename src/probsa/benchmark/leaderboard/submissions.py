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

    A row is checked against its own fingerprint and against the runs: it has each of their test
    bags once, with their labels. Rows may also bring a data set that was not run here.

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
            found = _entry(row, data, results, own.get(data))
            if isinstance(found, str):
                notes.append(f"{path.name} on {data}: left out, because {found}.")
            else:
                entries.append(found)
    return entries, notes


def _entry(row: Submission, data: str, results: SubmittedSet, own: Scores | None) -> Entry | str:
    for replicate, bags in results.replicates.items():
        reason = results.missing(replicate)
        if reason is None and own is not None:
            labels = dict(zip(own.bags, own.y.tolist(), strict=True))
            if {bag: b.y for bag, b in bags.items()} != labels:
                reason = "its bags or labels differ from those of the runs here"
        if reason is not None:
            return f"in replicate {replicate} {reason}"
    replicates = list(results.replicates.values())
    first = replicates[0]
    names = tuple(sorted(first)) if own is None else own.bags
    p = np.array([[bags[b].p for b in names] for bags in replicates])
    scores = Scores(
        data=data,
        method=Method(label=f"{row.method} (submitted)", model="submitted"),
        bags=names,
        y=np.array([first[b].y for b in names]),
        groups=np.array([first[b].group for b in names]) if own is None else own.groups,
        p=p,
        calls=p >= 0.5,
        split=np.broadcast_to(np.array([first[b].fold for b in names]), p.shape),
        seed=np.array([int(r) for r in results.replicates]),
        folds=True,
    )
    measures = [{b: v.measures for b, v in bags.items()} for bags in replicates]
    return Entry(
        data=data,
        name=scores.method.name,
        bags=names,
        groups=tuple(map(str, scores.groups.tolist())),
        values=values_of(measures, bags=names),
        scores=scores,
    )

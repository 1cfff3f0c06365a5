"""Rows that others made (`evaluation/submission.py`), as entries of the leaderboard."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...evaluation import SubmittedSet, read_submission
from ..grid.methods_and_cells import Method
from ..results.results import Scores
from .entries import Entry, values_of
from .known_bags import KnownBag, KnownSet, known_sets

FOLDER = "submissions"
"""Folder below the experiment's that is searched for `*.json`."""


def submitted(out: Path, own: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    """Return the entries of all rows, and why some were left out.

    Each bag of a row is compared with the runs: its label, group, fold and numbers of instances.
    Rows may also bring a data set that was not run here; the first row defines its bags. A name
    belongs to one file.

    Args:
        out: the experiment's folder.
        own: the entries of the experiment's own methods and null maps.
    """
    entries: list[Entry] = []
    notes: list[str] = []
    known = known_sets(own)
    owner = dict.fromkeys((e.name for e in own), "a method of this experiment")
    for path in sorted((out / FOLDER).glob("*.json")):
        try:
            row = read_submission(path)
        except InputError as error:
            # the page may be published, without the folders of its author
            notes.append(f"Left out: {str(error).replace(str(path), path.name)}.")
            continue
        name = f"{row.method} (submitted)"
        if name in owner:
            notes.append(
                f"{path.name}: left out, because {owner[name]} has the name {name!r}: names are "
                "unique, so give another one with --method."
            )
            continue
        for data, results in row.sets.items():
            reason = _difference(results, known.get(data))
            if reason is not None:
                notes.append(f"{path.name} on {data}: left out, because {reason}.")
                continue
            of_set = known.setdefault(data, _known(results, origin=path.name))
            entries.append(_entry(name, data, results, bags=tuple(of_set.bags)))
            owner[name] = path.name
    return entries, notes


def _difference(results: SubmittedSet, known: KnownSet | None) -> str | None:
    """Return where a row differs from the set, or its replicates from each other, in words."""
    known = known or _known(results, origin="its other replicates")
    for replicate, bags in results.replicates.items():
        reason = known.difference(bags) or results.missing(replicate)
        if reason is not None:
            return f"in replicate {replicate} {reason}"
    return None


def _known(results: SubmittedSet, *, origin: str) -> KnownSet:
    first = next(iter(results.replicates.values()))
    bags = {bag: KnownBag.of(first[bag]) for bag in sorted(first)}
    return KnownSet(bags=bags, origin=origin)


def _entry(name: str, data: str, results: SubmittedSet, *, bags: tuple[str, ...]) -> Entry:
    """Return the entry of a checked row, with its bags in the order of the other entries."""
    replicates = list(results.replicates.values())
    first = replicates[0]
    groups = tuple(first[b].group for b in bags)
    p = np.array([[of_bag[b].p for b in bags] for of_bag in replicates])
    scores = Scores(
        data=data,
        method=Method(label=name, model="submitted"),
        bags=bags,
        y=np.array([first[b].y for b in bags]),
        groups=np.array(groups),
        p=p,
        calls=p >= 0.5,
        split=np.broadcast_to(np.array([first[b].fold for b in bags]), p.shape),
        seed=np.array([int(r) for r in results.replicates]),
        folds=True,
    )
    measures = [{b: v.measures for b, v in of_bag.items()} for of_bag in replicates]
    values = values_of(measures, bags=bags)
    return Entry(data=data, name=name, bags=bags, groups=groups, values=values, scores=scores)

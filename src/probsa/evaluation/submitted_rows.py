"""The file of a row of the LocalMIL leaderboard, and what can be checked in the file alone.

A row is a JSON file with, for each data set and replicate, the measures of every test bag.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets import fingerprint_line
from ..errors import InputError
from .bag_measures import BagMeasures

FORMAT = "probsa-localmil-1"
ROUNDING = 1e-9
"""By how much a measure may leave its range: the AP of a perfect map is 1 up to rounding."""
LOWEST = {"auroc": 0, "average_precision": 0, "doubt_gain": -1, "faithfulness": -1}
"""The lowest value of each field of `BagMeasures`; the highest is 1."""
ADVICE = "make the row with `probsa evaluate PREDICTIONS --submit FILE --set DIR`"


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedBag:
    """The result of one test bag."""

    y: int
    group: str
    fold: int
    n: int
    """Number of instances."""
    labelled: int
    """Number of instances with a label."""
    positive: int
    """Number of positive instances."""
    p: float
    """p(Y = 1)."""
    measures: BagMeasures

    def fault(self) -> str | None:
        """Return why no bag can have these values; None if one can."""
        if self.y not in (0, 1):
            return f"y is {self.y}, expected 0 or 1"
        if not 0 <= self.positive <= self.labelled <= self.n or self.n == 0:
            return (
                f"n, labelled and positive are {self.n}, {self.labelled} and {self.positive}: "
                "expected at least one instance, and no more positive than labelled ones"
            )
        if not 0 <= self.p <= 1:
            return f"p is {self.p}, expected 0 to 1"
        for name, lowest in LOWEST.items():
            value = getattr(self.measures, name)
            if value is not None and not lowest - ROUNDING <= value <= 1 + ROUNDING:
                return f"{name} is {value}, expected {lowest} to 1"
        return self._misplaced()

    def _misplaced(self) -> str | None:
        """Return which measure is missing, or given although no bag of these counts has it."""
        measures = self.measures
        counts = f"y is {self.y}, and {self.positive} of {self.labelled} labels are positive"
        for name in ("auroc", "average_precision"):
            value = getattr(measures, name)
            if self.is_mixed and value is None:
                return f"{name} is null, expected a number from 0 to 1, as {counts}"
            if not self.is_mixed and value is not None:
                return (
                    f"{name} is {value}, expected null: only positive bags with instances of both "
                    f"labels have one, but {counts}"
                )
        if measures.doubt_gain is not None and not (self.y and self.labelled):
            return (
                f"doubt_gain is {measures.doubt_gain}, expected null: only positive bags with "
                f"instance labels have one, but {counts}"
            )
        if measures.faithfulness is not None and not self.y:
            return (
                f"faithfulness is {measures.faithfulness}, expected null: only positive bags have "
                f"one, but {counts}"
            )
        return None

    @property
    def is_mixed(self) -> bool:
        """Whether the bag is positive and has instances of both labels, hence AUROC and AP."""
        return self.y == 1 and 0 < self.positive < self.labelled


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedSet:
    """All replicates of one data set."""

    fingerprint: str
    replicates: dict[str, dict[str, SubmittedBag]]
    """By replicate (a seed) and bag."""

    def missing(self, replicate: str) -> str | None:
        """Return why a replicate is not the whole set; None if it is."""
        digest = hashlib.sha256()
        bags = self.replicates[replicate]
        for name in sorted(bags):
            b = bags[name]
            digest.update(fingerprint_line(name, y=b.y, n=b.n, positive=b.positive))
        if digest.hexdigest() == self.fingerprint:
            return None
        return f"its {len(bags)} bags do not have the fingerprint of the set: test every fold once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A row of the leaderboard."""

    method: str
    sets: dict[str, SubmittedSet]


def read_submission(path: Path) -> Submission:
    """Read a row, and check that each bag by itself has possible values.

    Raises:
        InputError: the file cannot be read, is not a row, or has a bag with impossible values.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["format"] != FORMAT:
            raise ValueError(f"its format is {given['format']!r}, expected {FORMAT!r}")
        row = Submission(
            method=str(given["method"]).strip(),
            sets={
                str(name): SubmittedSet(
                    fingerprint=str(s["fingerprint"]),
                    replicates={
                        str(int(r)): {str(b): _bag(v) for b, v in bags.items()}
                        for r, bags in s["replicates"].items()
                    },
                )
                for name, s in given["sets"].items()
            },
        )
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, RecursionError),  # an infinite label; lists nested too deeply
    ) as error:
        raise InputError(
            f"{path} is not a row of the leaderboard ({type(error).__name__}: {error}): {ADVICE}"
        ) from error
    _check(row, path)
    return row


def _bag(v: Mapping[str, Any]) -> SubmittedBag:
    measures = {k: None if v["measures"][k] is None else float(v["measures"][k]) for k in LOWEST}
    return SubmittedBag(
        y=int(v["y"]),
        group=str(v["group"]),
        fold=int(v["fold"]),
        n=int(v["n"]),
        labelled=int(v.get("labelled", v["n"])),  # early rows have only bags with all labels
        positive=int(v["positive"]),
        p=float(v["p"]),
        measures=BagMeasures(**measures),
    )


def _check(row: Submission, path: Path) -> None:
    """Refuse a row without a name or without bags, and bags with impossible values.

    Raises:
        InputError: see above.
    """
    if not row.method:
        raise InputError(f"{path} has an empty name of the method: {ADVICE} and --method NAME")
    if not row.sets:
        raise InputError(f"{path} has no data set, expected at least one: {ADVICE}")
    for name, results in row.sets.items():
        if not results.replicates or not all(results.replicates.values()):
            raise InputError(f"{path} has no bags of {name}, expected all of its bags: {ADVICE}")
        for replicate, bags in results.replicates.items():
            for bag, values in bags.items():
                if (fault := values.fault()) is not None:
                    raise InputError(
                        f"{path}, {name}, replicate {replicate}, bag {bag!r}: {fault}: {ADVICE}"
                    )

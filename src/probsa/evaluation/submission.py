"""A row of the LocalMIL leaderboard, made from the predictions of any model.

A row is a JSON file with, for each data set and replicate, the measures of every test bag. It is
filled fold by fold: each call adds the test bags of one predictions folder.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..core import write_json
from ..datasets import LabelTable, fingerprint_line, read_card, read_table
from ..errors import InputError
from .bag_measures import BagMeasures, bag_measures
from .tables import Predictions, read_predictions

FORMAT = "probsa-localmil-1"
ROUNDING = 1e-9
"""By how much a measure may exceed 1: the AP of a perfect map is 1 up to rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedBag:
    """The result of one test bag."""

    y: int
    group: str
    fold: int
    n: int
    """Number of instances."""
    positive: int
    """Number of positive instances."""
    p: float
    """p(Y = 1)."""
    measures: BagMeasures


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
        return f"its {len(bags)} bags are not those of the set: test every fold once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A row of the leaderboard."""

    method: str
    sets: dict[str, SubmittedSet]


def submit(
    predictions: Path, row: Path, *, folder: Path, method: str | None = None, replicate: int = 0
) -> Submission:
    """Add the test bags of a predictions folder to a row; a new file is begun if there is none.

    Args:
        predictions: predictions with instance outputs; its training and validation bags are not
            used.
        row: the JSON file of the row.
        folder: the prepared set (`probsa dataset localmil`), which gives the labels.
        method: name of the row; None for the model of the predictions.
        replicate: number of the replicate, for example the seed.

    Raises:
        InputError: the folder is no prepared set, a bag is not in it, has another number of
            instances labelled or another label, has no instance labels, or is already in the row.
    """
    card = read_card(folder)
    if card is None:
        raise InputError(
            f"{folder} is not a set of LocalMIL: give a folder that `probsa dataset localmil` wrote"
        )
    table = read_table(folder / "labels.csv")
    if table.folds is None:
        raise InputError(f"{table.where} has no column 'fold': prepare the set again")
    given = read_predictions(predictions)
    name = method or str(given.metadata.get("model", ""))
    if not name:
        raise InputError(f"{predictions} does not name its model: give the name of the row")
    earlier = read_submission(row) if row.is_file() else Submission(method=name, sets={})
    if earlier.method != name:
        raise InputError(f"{row} is the row of {earlier.method!r}, not of {name!r}")
    bags = _bags(given, table)
    sets = dict(earlier.sets)
    old = sets.get(card.name)
    if old is not None and old.fingerprint != card.fingerprint:
        raise InputError(f"{row} was made with another version of {card.name}: begin a new file")
    replicates = {} if old is None else dict(old.replicates)
    present = replicates.get(str(replicate), {})
    twice = sorted(present.keys() & bags.keys())
    if twice:
        raise InputError(
            f"bag {twice[0]!r} and {len(twice) - 1} others are already in replicate {replicate} of "
            f"{row}: a bag is tested once per replicate"
        )
    replicates[str(replicate)] = present | bags
    sets[card.name] = SubmittedSet(fingerprint=card.fingerprint, replicates=replicates)
    submission = Submission(method=name, sets=sets)
    write_json(row, {"format": FORMAT, **asdict(submission)})
    return submission


def _bags(given: Predictions, table: LabelTable) -> dict[str, SubmittedBag]:
    """Return the test bags of the predictions."""
    place = {bag: k for k, bag in enumerate(table.bags)}
    bags: dict[str, SubmittedBag] = {}
    for row, bag in enumerate(given.bags):
        if given.parts[row] in ("train", "val"):
            continue
        k = place.get(bag)
        y = None if k is None else table.labels[k]
        if k is None or y is None:
            raise InputError(f"bag {bag!r} of {given.folder} is not in {table.where}")
        p = given.instances(bag)
        if p.instance_labels is None:
            raise InputError(
                f"the predictions of bag {bag!r} have no instance labels: predict with the "
                "features of the prepared set"
            )
        if len(p.probability) > 2:
            raise InputError(f"bag {bag!r} has {len(p.probability)} classes: LocalMIL has two")
        none = BagMeasures(auroc=None, average_precision=None, doubt_gain=None, faithfulness=None)
        bags[bag] = SubmittedBag(
            y=y,
            group=table.group(k),
            fold=0 if table.folds is None else table.folds[k],
            n=len(p.instance_labels),
            positive=int((p.instance_labels > 0).sum()),
            p=float(p.probability[-1]),
            measures=bag_measures(p) if y else none,
        )
    if not bags:
        raise InputError(f"{given.folder} has no test bags: all of them are training bags")
    return bags


def read_submission(path: Path) -> Submission:
    """Read a row.

    Raises:
        InputError: the file cannot be read, or is not a row.
    """
    names = [f.name for f in fields(BagMeasures)]
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["format"] != FORMAT:
            raise ValueError(f"its format is {given['format']!r}, expected {FORMAT!r}")
        sets = {
            str(name): SubmittedSet(
                fingerprint=str(s["fingerprint"]),
                replicates={
                    str(int(r)): {str(b): _submitted(v, names) for b, v in bags.items()}
                    for r, bags in s["replicates"].items()
                },
            )
            for name, s in given["sets"].items()
        }
        return Submission(method=str(given["method"]), sets=sets)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not a row of the leaderboard ({type(error).__name__}: {error}): make it "
            "with `probsa evaluate PREDICTIONS --submit FILE --set DIR`"
        ) from error


def _submitted(v: Mapping[str, Any], names: list[str]) -> SubmittedBag:
    p = float(v["p"])
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}, expected 0 to 1")
    measures = {k: None if v["measures"][k] is None else float(v["measures"][k]) for k in names}
    if any(m is not None and not abs(m) <= 1 + ROUNDING for m in measures.values()):
        raise ValueError(f"measures are {measures}, expected values from −1 to 1")
    return SubmittedBag(
        y=int(v["y"]),
        group=str(v["group"]),
        fold=int(v["fold"]),
        n=int(v["n"]),
        positive=int(v["positive"]),
        p=p,
        measures=BagMeasures(**measures),
    )

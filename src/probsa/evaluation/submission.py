"""Make a row of the LocalMIL leaderboard from the predictions of any model.

A row is filled fold by fold: each call adds the test bags of one predictions folder. The labels of
bags and instances are those of the prepared set; those in the predictions must agree with them.
"""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ..core import StoredBag, write_json
from ..datasets import BagSet, LabelTable, open_bags, read_card, read_table
from ..errors import InputError
from .bag_measures import BagMeasures, bag_measures
from .prediction import Prediction
from .submitted_rows import FORMAT, Submission, SubmittedBag, SubmittedSet, read_submission
from .tables import Predictions, read_predictions

NO_MEASURES = BagMeasures(auroc=None, average_precision=None, doubt_gain=None, faithfulness=None)


def submit(
    predictions: Path, row: Path, *, folder: Path, method: str | None = None, replicate: int = 0
) -> Submission:
    """Add the test bags of a predictions folder to a row; a new file is begun if there is none.

    Args:
        predictions: predictions with instance outputs; its training and validation bags are not
            used.
        row: the JSON file of the row.
        folder: the prepared set (`probsa dataset localmil`), which gives all labels. Its bags
            without instance labels have no measures that need them.
        method: name of the row; None for the model of the predictions.
        replicate: number of the replicate, for example the seed.

    Raises:
        InputError: the folder is no prepared set; a bag is not in it, or is already in the row; or
            the predictions of a bag have another label, or other instances or labels of them.
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
    name = (method or str(given.metadata.get("model", ""))).strip()
    if not name:
        raise InputError(f"{predictions} does not name its model: give the name of the row")
    earlier = read_submission(row) if row.is_file() else Submission(method=name, sets={})
    if earlier.method != name:
        raise InputError(f"{row} is the row of {earlier.method!r}, not of {name!r}")
    bags = _bags(given, table, features=open_bags(folder / "features"))
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


def _bags(given: Predictions, table: LabelTable, *, features: BagSet) -> dict[str, SubmittedBag]:
    """Return the test bags of the predictions."""
    if not given.of_task.two_classes or given.probability.shape[1] > 2:
        raise InputError(
            f"{given.folder} predicts {given.probability.shape[1]} values per bag (task "
            f"{given.task}): LocalMIL has two classes"
        )
    place = {bag: k for k, bag in enumerate(table.bags)}
    bags: dict[str, SubmittedBag] = {}
    for row, bag in enumerate(given.bags):
        if given.parts[row] in ("train", "val"):
            continue
        k = place.get(bag)
        y = None if k is None else table.labels[k]
        if k is None or y is None:
            raise InputError(f"bag {bag!r} of {given.folder} is not in {table.where}")
        if given.labels[row] not in (None, y):
            raise InputError(
                f"bag {bag!r} has the label {given.labels[row]} in {given.folder}, but {y} in "
                f"{table.where}: predict with the labels of the prepared set"
            )
        p = _with_labels(given.instances(bag), features.stored(bag), given=given)
        labels = p.instance_labels
        bags[bag] = SubmittedBag(
            y=y,
            group=table.group(k),
            fold=0 if table.folds is None else table.folds[k],
            n=len(p.attention_mean),
            labelled=0 if labels is None else int((labels >= 0).sum()),
            positive=0 if labels is None else int((labels > 0).sum()),
            p=float(given.probability[row, -1]),
            measures=bag_measures(p) if y else NO_MEASURES,
        )
    if not bags:
        raise InputError(f"{given.folder} has no test bags: all of them are training bags")
    return bags


def _with_labels(p: Prediction, stored: StoredBag, *, given: Predictions) -> Prediction:
    """Return a prediction with the instance labels of the prepared set.

    Raises:
        InputError: its instances, or their labels, are not those of the set.
    """
    what = f"the predictions of bag {p.name!r} in {given.folder}"
    advice = "predict with the features of the prepared set"
    n, expected = len(p.attention_mean), len(stored.features)
    if n != expected:
        raise InputError(f"{what} have {n} instances, but the set has {expected}: {advice}")
    a, b = p.coords, stored.coords
    if a is not None and b is not None and not np.array_equal(a, b):
        raise InputError(f"{what} have other coordinates of instances than the set: {advice}")
    labels = stored.instance_labels
    if p.instance_labels is not None and labels is not None:
        differ = np.flatnonzero(np.sign(p.instance_labels) != np.sign(labels))
        if len(differ):
            k = int(differ[0])
            raise InputError(
                f"{what} have the label {p.instance_labels[k]} of instance {k}, but the set has "
                f"{labels[k]} ({len(differ)} of {n} labels differ): {advice}"
            )
    return replace(p, instance_labels=labels)

"""LocalMIL: check sets of bags with instance labels, and write them in one form for a benchmark.

OUT/<set>/features      a link to the folder of the feature files
OUT/<set>/labels.csv    bag,label[,group],fold
OUT/<set>/card.json     what the set is, its counts, and a fingerprint of its bags; written last
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core import write_csv, write_json
from ..errors import InputError, TableError
from .bag_set import BagSet
from .labels import LabelTable, read_table
from .localmil_description import SetDescription, describe
from .opening import open_bags

CARD, LABELS, FEATURES = "card.json", "labels.csv", "features"
OnSet = Callable[[str], None]
"""Called with the name of a set before it is prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetCard:
    """A prepared set: its description, counts and fingerprint."""

    name: str
    description: SetDescription
    bags: int
    positive_bags: int
    groups: int | None
    """Number of groups; None if labels.csv has no column `group`, so that each bag is its own."""
    folds: int
    labelled_bags: int
    """Number of bags with instance labels."""
    instances: int
    positive_instances: int
    features: int
    """Length of a feature vector."""
    fingerprint: str
    """SHA-256 of every bag's name, label, and numbers of instances and of positive ones."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def prepare_localmil(
    root: Path, out: Path, *, sets: Sequence[str] | None = None, on_set: OnSet | None = None
) -> list[SetCard]:
    """Check every set below a folder, and write it to `out`/<set>.

    A set is a folder with `features/` and `labels.csv` (bag,label[,group],fold). It needs a
    `set.yaml` with the fields of `SetDescription`, unless `localmil.yaml` of this package knows it
    by name. The features stay where they are: they are linked, or copied where the file system has
    no links.

    Args:
        root: the folder of the sets.
        out: where they are written; sets that are already there are checked and written again.
        sets: names of the sets; None for all.
        on_set: called before each set.

    Raises:
        InputError: there is no set, a name is unknown, a set has no or an invalid description, no
            instance labels, no negative bags, or coordinates that do not fit its graph.
        TableError: labels.csv is invalid, has no folds, or a group in two folds.
    """
    found = {p.parent.name: p.parent for p in sorted(root.glob(f"*/{LABELS}"))}
    if not found:
        raise InputError(
            f"{root} has no sets: expected folders with {FEATURES}/ and {LABELS}, as "
            f"{root / 'my_set' / LABELS}"
        )
    unknown = [name for name in sets or () if name not in found]
    if unknown:
        raise InputError(f"{root} has no set {unknown[0]!r}: it has {', '.join(found)}")
    cards = []
    for name in sets or found:
        if on_set is not None:
            on_set(name)
        cards.append(_prepare(name, found[name], out / name))
    return cards


def read_card(folder: Path) -> SetCard | None:
    """Return the card of a prepared set; None if the folder has none.

    Raises:
        InputError: the card is damaged.
    """
    path = folder / CARD
    if not path.is_file():
        return None
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        return SetCard(**{**given, "description": SetDescription(**given["description"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not the card of a set of LocalMIL ({error}): prepare the set again with "
            "`probsa dataset localmil`"
        ) from error


def _prepare(name: str, source: Path, out: Path) -> SetCard:
    description = describe(name, source)
    table = read_table(source / LABELS)
    if table.folds is None:
        raise TableError(
            f"{table.where} has no column 'fold': LocalMIL tests each bag once, so give every bag "
            "the number of its fold"
        )
    bags = open_bags(source / FEATURES)
    _check_labels(table)
    _check_folds(table)
    card = _card(name, description, bags, table)
    out.mkdir(parents=True, exist_ok=True)
    _link(source / FEATURES, out / FEATURES)
    columns = ["bag", "label", *(["group"] if table.groups else []), "fold"]
    rows = [
        {"bag": bag, "label": table.labels[k], "group": table.group(k), "fold": table.folds[k]}
        for k, bag in enumerate(table.bags)
    ]
    write_csv(out / LABELS, columns, [{c: row[c] for c in columns} for row in rows])
    write_json(out / CARD, card.to_dict())
    return card


def _check_labels(table: LabelTable) -> None:
    if set(table.labels) != {0, 1}:
        raise InputError(
            f"{table.where} has the labels {sorted({str(y) for y in table.labels})}: LocalMIL "
            "needs negative (0) and positive (1) bags, and no others"
        )


def _check_folds(table: LabelTable) -> None:
    """Refuse too few folds, a fold with one class, and a group in two folds.

    Raises:
        TableError: see above.
    """
    assert table.folds is not None
    folds = sorted(set(table.folds))
    if len(folds) < 3:
        raise TableError(
            f"{table.where} has {len(folds)} folds: LocalMIL tests on one, validates on another "
            "and trains on the rest, so give three or more"
        )
    for fold in folds:
        labels = {y for y, f in zip(table.labels, table.folds, strict=True) if f == fold}
        if labels != {0, 1}:
            raise TableError(
                f"fold {fold} of {table.where} has bags of class {sorted(map(str, labels))} only: "
                "each fold needs positive and negative bags"
            )
    fold_of: dict[str, int] = {}
    for k, fold in enumerate(table.folds):
        if fold_of.setdefault(table.group(k), fold) != fold:
            raise TableError(
                f"group {table.group(k)!r} of {table.where} is in folds "
                f"{fold_of[table.group(k)]} and {fold}: give all its bags one fold"
            )


def _card(name: str, description: SetDescription, bags: BagSet, table: LabelTable) -> SetCard:
    """Read every bag, check it, and count.

    Raises:
        InputError: see `prepare_localmil`.
    """
    assert table.folds is not None
    digest, counts = hashlib.sha256(), dict.fromkeys(("labelled", "n", "positive"), 0)
    for k in sorted(range(len(table.bags)), key=lambda k: table.bags[k]):
        bag, y = bags.bag(table.bags[k]), table.labels[k]
        _check_coords(bag.name, None if bag.coords is None else bag.coords.shape[1], description)
        labels = bag.instance_labels
        positive = 0 if labels is None else int((labels > 0).sum())
        digest.update(f"{bag.name},{y or 0},{len(bag)},{positive}\n".encode())
        counts["n"] += len(bag)
        if labels is None:
            continue
        if positive and not y:
            raise InputError(
                f"bag {bag.name!r} of {name} is negative, but {positive} of its instances are "
                "positive: correct labels.csv or the instance labels"
            )
        counts["labelled"] += 1
        counts["positive"] += positive
    if counts["positive"] == 0:
        raise InputError(
            f"no bag of {name} has a positive instance label: LocalMIL measures where a model sees "
            "evidence, so store instance_labels in the feature files"
        )
    return SetCard(
        name=name,
        description=description,
        bags=len(table.bags),
        positive_bags=sum(1 for y in table.labels if y),
        groups=None if table.groups is None else len(set(table.groups)),
        folds=len(set(table.folds)),
        labelled_bags=counts["labelled"],
        instances=counts["n"],
        positive_instances=counts["positive"],
        features=bags.in_dim,
        fingerprint=digest.hexdigest(),
    )


def _check_coords(bag: str, axes: int | None, description: SetDescription) -> None:
    wanted = {"chain": (1,), "grid": (2,), "knn": (1, 2, 3), "none": (None, 1, 2, 3)}
    if axes not in wanted[description.graph]:
        has = "no coordinates" if axes is None else f"coordinates with {axes} axes"
        raise InputError(
            f"bag {bag!r} has {has}, but the description says graph: {description.graph}"
        )


def _link(source: Path, target: Path) -> None:
    """Link a folder, or copy it where links are impossible; an earlier link is replaced."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)
    try:
        target.symlink_to(source.resolve(), target_is_directory=True)
    except OSError:
        shutil.copytree(source, target)

"""The sets of LocalMIL: where they come from, and what is checked before models are compared.

A set is a folder with `features/` and `labels.csv` (bag,label[,group],fold); the feature files hold
`instance_labels`. `sets.yaml` beside this file describes the known ones by the name of the folder;
any other set brings the same keys in a `set.yaml` of its own.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from probsa.core import GraphOptions, as_record
from probsa.datasets import LabelTable, open_bags, read_table
from probsa.errors import InputError

KNOWN = Path(__file__).with_name("sets.yaml")
AXES = {"chain": (1,), "grid": (2,), "knn": (1, 2, 3), "none": (None, 1, 2, 3)}
"""The numbers of columns of coordinates that each graph can use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetDescription:
    """Where a set comes from, and the graph of its bags."""

    title: str
    source: str
    licence: str
    commit: str
    """Version of the source: a commit, a release or a date."""
    graph: str
    """`chain` needs coordinates with one axis, `grid` with two, `knn` any; or `none`."""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedSet:
    """A set that was read, with its counts."""

    name: str
    folder: Path
    description: SetDescription
    bags: int
    positive_bags: int
    groups: int | None
    """Number of groups; None if labels.csv has no column `group`, so that each bag is its own."""
    folds: int
    instances: int
    positive_instances: int
    fingerprint: str
    """SHA-256 of every bag's name, label, and numbers of instances and of positive ones."""

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self) | {"folder": str(self.folder)}

    def keys(self) -> dict[str, str]:
        """Return the set's entry in the `data` of a grid."""
        features = self.folder / "features"
        labels = self.folder / "labels.csv"
        return {
            "features": str(features),
            "labels": str(labels),
            "graph": self.description.graph,
        }


def check_sets(root: Path, names: Sequence[str] = ()) -> list[CheckedSet]:
    """Read and check every set below a folder, or those that are named.

    Raises:
        InputError: there is no set, a name is unknown, a set has no description, no folds with
            both classes, no instance labels, a negative bag with positive instances, or coordinates
            that do not fit its graph.
    """
    folders = {path.parent.name: path.parent for path in sorted(root.glob("*/labels.csv"))}
    if not folders:
        raise InputError(f"{root} has no sets: expected folders with features/ and labels.csv")
    for name in names:
        if name not in folders:
            raise InputError(f"{root} has no set {name!r}: it has {', '.join(folders)}")
    return [_checked(name, folders[name].resolve()) for name in names or folders]


def describe(name: str, folder: Path) -> SetDescription:
    """Return the description of a set, from its `set.yaml` or from the known sets."""
    file = folder / "set.yaml"
    if file.is_file():
        description = yaml.safe_load(file.read_text(encoding="utf-8"))
    else:
        description = yaml.safe_load(KNOWN.read_text(encoding="utf-8")).get(name)
    if not isinstance(description, dict):
        keys = ", ".join(SetDescription.__dataclass_fields__)
        raise InputError(f"the set {name!r} has no description: write {file} with the keys {keys}")
    texts = {key: str(value).strip() for key, value in description.items()}
    return as_record(SetDescription, texts, where=str(file), advice="correct it")


def _checked(name: str, folder: Path) -> CheckedSet:
    description = describe(name, folder)
    if description.graph not in AXES:
        raise InputError(f"graph of {name} is {description.graph!r}: expected {', '.join(AXES)}")
    table = read_table(folder / "labels.csv")
    _check_table(table)
    bags = open_bags(folder / "features", graph=GraphOptions(kind=description.graph))
    digest = hashlib.sha256()
    instances = 0
    positive_instances = 0
    for bag_name, y in sorted(zip(table.bags, table.labels, strict=True)):
        bag = bags.bag(bag_name)
        axes = None if bag.coords is None else bag.coords.shape[1]
        if axes not in AXES[description.graph]:
            raise InputError(
                f"bag {bag_name!r} has coordinates with {axes or 'no'} axes, but the description "
                f"says graph: {description.graph}"
            )
        labels = bag.instance_labels
        positive = 0 if labels is None else int((labels > 0).sum())
        if positive and not y:
            raise InputError(
                f"bag {bag_name!r} of {name} is negative, but {positive} of its instances are "
                "positive: correct labels.csv or the instance labels"
            )
        digest.update(f"{bag_name},{y or 0},{len(bag)},{positive}\n".encode())
        instances += len(bag)
        positive_instances += positive
    if not positive_instances:
        raise InputError(
            f"no bag of {name} has a positive instance label: store instance_labels in the feature "
            "files"
        )
    return CheckedSet(
        name=name,
        folder=folder,
        description=description,
        bags=len(table.bags),
        positive_bags=table.labels.count(1),
        groups=None if table.groups is None else len(set(table.groups)),
        folds=len(set(table.folds or ())),
        instances=instances,
        positive_instances=positive_instances,
        fingerprint=digest.hexdigest(),
    )


def _check_table(table: LabelTable) -> None:
    """Refuse a table without folds, or with a fold or labels other than of both classes."""
    if table.folds is None:
        raise InputError(f"{table.where} has no column 'fold': each bag is tested once")
    for fold in sorted(set(table.folds)):
        rows = zip(table.labels, table.folds, strict=True)
        classes = {y for y, bag_fold in rows if bag_fold == fold}
        if classes != {0, 1}:
            raise InputError(
                f"fold {fold} of {table.where} has the classes {sorted(map(str, classes))}: "
                "expected negative (0) and positive (1) ones"
            )

"""The data sets of a grid: those that it names, or those found in given folders."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import as_record, read_json
from ...datasets import LabelTable, check_bag_table
from ...errors import InputError, UnknownName
from ...training import plain
from ..tables.table import key
from .entries import number_list, run_keys

if TYPE_CHECKING:
    from ...datasets import Study

FEATURES = "features"
LABELS = "labels.csv"
INSTANCES = "instance_labels"
"""Names that make a folder a data set; instance labels are optional."""
SINGLE = ("features", "labels", "dataset")
"""Keys by which the `data` of a grid is a single set, not sets by their names."""
PATHS = ("labels", "partition", "duplicates", "test_scans", "train_scans", "instance_labels")
"""Keys of a study that are paths, besides its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set of a grid."""

    name: str
    keys: Mapping[str, Any]
    """Dotted keys of all its runs: paths, reading and training options."""
    table: LabelTable
    splits: tuple[int, ...]
    """The folds used as test parts, or the numbers of the splits of the training part."""
    made: int
    """Number of splits to make of the training part; 0 if the labels have folds."""

    @property
    def folds(self) -> bool:
        """Return whether each bag is tested by the run of its own fold."""
        return self.table.folds is not None

    @property
    def test_bags(self) -> tuple[str, ...]:
        """Return the test bags of all splits."""
        if self.table.folds is None and self.table.splits is not None:
            rows = zip(self.table.bags, self.table.splits, strict=True)
            return tuple(bag for bag, part in rows if part == "test")
        return self.table.bags

    @property
    def groups(self) -> dict[str, str] | None:
        """Return the patient of each bag."""
        return self.table.group_of or None


def find_sets(given: str) -> dict[str, dict[str, Any]]:
    """Return the data sets of a folder (`DIR` or `NAME=DIR`) as a grid would name them.

    Raises:
        InputError: The folder holds none; the message lists what was expected.
    """
    name, folder = named_folder(given)
    keys = _keys_of_folder(folder)
    if keys is not None:
        return {name or folder.name: keys}
    sets: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        keys = _keys_of_folder(path) if path.is_dir() else None
        if keys is not None:
            sets[path.name] = keys
    if not sets:
        from ...datasets import recognise_study

        try:
            study = recognise_study(folder)
        except InputError as e:
            raise InputError(
                f"{folder}, which --data names, is not a data set: expected {FEATURES}/ and "
                f"{LABELS} in it or in folders below it; and {e}. Features that lie elsewhere "
                "are named in the grid: data: {features: DIR, labels: FILE}"
            ) from e
        return {name or study: {"dataset": study, "root": str(folder)}}
    if not name:
        return sets
    if len(sets) > 1:
        raise InputError(
            f"{folder} holds {len(sets)} data sets ({', '.join(sets)}), which cannot all be "
            f"called {name!r}: give --data {folder}, or one of them"
        )
    return {name: next(iter(sets.values()))}


def _keys_of_folder(folder: Path) -> dict[str, Any] | None:
    """Return the keys of a features folder with labels, or of a study's folder, else None."""
    from ...datasets import STUDY_RECORD, read_study

    if (folder / STUDY_RECORD).is_file():
        return {"dataset": read_study(folder).name, "root": str(folder)}
    features = folder / FEATURES
    labels = folder / LABELS
    instances = folder / INSTANCES
    if not (features.is_dir() and labels.is_file()):
        return None
    keys = {"features": str(features), "labels": str(labels)}
    if instances.is_dir():
        keys["instance_labels"] = str(instances)
    return keys


def shared_keys(data: Any) -> dict[str, Any]:
    """Return the keys of a grid's `data` that hold for all sets, where it names no folder."""
    if not isinstance(data, dict):
        return {}
    for name, value in data.items():
        if isinstance(value, dict) or name in ("features", "labels", "dataset", "root"):
            return {}
    return dict(data)


def named_sets(data: Any, *, where: str) -> dict[str, dict[str, Any]]:
    """Return the keys of a grid's `data` by data set name, with absolute paths.

    Raises:
        InputError: The value names no paths, or a name cannot be that of a folder.
    """
    if not isinstance(data, dict) or not data:
        raise InputError(
            f"data in {where} is {data!r}: expected {{features: DIR, labels: FILE}}, "
            "{dataset: NAME, root: DIR}, or a name with such a mapping for each of several"
        )
    # with mappings as their values, these keys are the names of data sets
    is_single = any(k in data and not isinstance(data[k], dict) for k in SINGLE)
    if is_single:
        keys = _absolute(data, where=where)
        name = keys.pop("name", None) or keys.get("dataset") or _name(Path(keys["features"]))
        sets = {name: keys}
    else:
        for name, keys in data.items():
            if not isinstance(keys, dict):
                raise InputError(
                    f"data in {where} has {name}: {keys!r}; expected a mapping of keys"
                )
        sets = data
    _check_names(list(sets), where=where)
    return {str(n): _absolute(keys, where=f"{where} (data {n})") for n, keys in sets.items()}


def _check_names(names: Sequence[Any], *, where: str) -> None:
    """Refuse names of data sets that cannot be those of folders, or whose tables share a file."""
    name_of_file: dict[str, Any] = {}
    for name in names:
        text = str(name)
        if not re.fullmatch(r"[\w.-]+", text) or not re.search(r"\w", text):
            raise InputError(
                f"data in {where} has the name {name!r}, which becomes a folder: give letters, "
                "digits, . - and _"
            )
        other = name_of_file.setdefault(key(text), name)
        if other is not name:
            raise InputError(
                f"data in {where} has the names {other!r} and {name!r}, whose tables would share "
                "a file: rename one"
            )


def check_paths(grid_data: Any, *, data: Sequence[str], where: str) -> None:
    """Refuse folders and tables of data sets that are not there; no study is opened.

    Args:
        grid_data: The value of `data` in a grid.
        data: `DIR` or `NAME=DIR` each, which replace it.
        where: Path of the grid's file, for error messages.

    Raises:
        InputError, TableError, BagError: Names the path.
    """
    for text in data:
        named_folder(text)
    if data or grid_data is None or shared_keys(grid_data):
        return
    for name, keys in named_sets(grid_data, where=where).items():
        folder = Path(keys["root"] if "dataset" in keys else keys["features"])
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}, which {where} (data {name}) names")
        if "dataset" not in keys:
            check_bag_table(Path(keys["labels"]))


def named_folder(given: str) -> tuple[str, Path]:
    """Return the name and the folder of `DIR` or `NAME=DIR`; the name is empty if none is given.

    Raises:
        InputError: There is no such folder.
    """
    name, equals, path = given.partition("=")
    has_name = bool(equals) and re.fullmatch(r"[\w.-]+", name) is not None
    if not has_name or Path(given).exists():  # a folder's own name may contain =
        name = ""
        path = given
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}, which --data names")
    return name, folder


def prepare_set(
    keys: Mapping[str, Any], *, out: Path, feature_set: str | None, where: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the dotted keys of a data set's runs, and notes.

    A study is opened with its folder of features, and its labels are written to `out`.

    Raises:
        InputError, TableError, BagError: The folder is not as expected.
    """
    from ...datasets import STUDY_NAMES, StudyOptions, open_study

    if "dataset" not in keys:
        chosen = {} if feature_set is None else {"feature_set": feature_set}
        return run_keys({**keys, **chosen}, where=where), ()
    name = keys["dataset"]
    if name not in STUDY_NAMES:
        raise UnknownName(f"dataset in {where}", str(name), STUDY_NAMES)
    root = Path(keys["root"])
    study = _read_made_study(out, root) or open_study(
        name,
        root,
        out=out,
        features=Path(keys["features"]) if "features" in keys else None,
        feature_set=feature_set,
        options=as_record(StudyOptions, keys, where=where, advice="correct this key"),
    )
    study_keys = ("dataset", "root", *StudyOptions.__dataclass_fields__, "features")
    other_keys = {k: v for k, v in keys.items() if k not in study_keys}
    settings = {k: plain(v) for k, v in study.settings().items() if v is not None}
    return run_keys(other_keys | settings, where=where), study.notes


def _read_made_study(out: Path, root: Path) -> "Study | None":
    """Return the study that an earlier call made of the same folder, if any is finished."""
    from ...datasets import STUDY_RECORD, read_study

    if not (out / STUDY_RECORD).is_file():
        return None
    path = out / STUDY_RECORD
    record = as_record(dict[str, Any], read_json(path), where=str(path))
    if record.get("unfinished"):
        return None
    if record.get("root") != str(root.absolute()):
        raise InputError(
            f"{out} was made from {record.get('root')}, not from {root}: give another --out"
        )
    return read_study(out)


def _absolute(keys: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the keys of a data set with absolute paths."""
    keys = dict(keys)
    needed = ("root",) if "dataset" in keys else ("features", "labels")
    for name in needed:
        if not isinstance(keys.get(name), str | Path):
            needs = " and ".join(needed)
            raise InputError(f"{where} gives no {name}: data needs {needs}, as paths")
    for name in ("root", "features", *PATHS):
        if keys.get(name) is not None:
            keys[name] = str(Path(keys[name]).expanduser().resolve())
    return keys


def _name(features: Path) -> str:
    """Name a data set after the location of its features."""
    folder = features.parent if features.name.startswith(FEATURES) else features
    return re.sub(r"[^\w.-]+", "-", folder.name) or "data"


def chosen_splits(
    table: LabelTable, splits: int | tuple[int, ...], *, where: str
) -> tuple[int, ...]:
    """Return the splits of a data set: its folds, or the numbers of those to be made.

    Raises:
        InputError: A requested fold does not exist.
    """
    if table.folds is None:
        return number_list(splits)
    folds = tuple(sorted(set(table.folds)))
    if isinstance(splits, int):
        return folds
    for number in splits:
        if number not in folds:
            raise InputError(
                f"splits in {where} has {number}, but the folds of {table.where} are "
                f"{', '.join(map(str, folds))}"
            )
    return splits

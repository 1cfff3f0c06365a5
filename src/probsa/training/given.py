"""What is given for a run, checked before PyTorch is imported: names of keys and of models, values
of the sections, the folder of features and the tables.

What only a model knows, as which values of its arguments fit one another, is checked by `runfile`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import TextTable, hdf5_files
from ..datasets import (
    LabelTable,
    bag_names,
    check_labels_match,
    label_files,
    match_bags,
    read_covariates,
    read_table,
)
from ..errors import InputError, UnknownName
from ..models import known_arguments, known_names
from ..tasks import TASKS
from .config import (
    SECTIONS,
    DataConfig,
    RunConfig,
    flatten,
    load_yaml,
    section_keys,
)
from .recipes import default_recipe

FROM_DATA = {"in_dim", "class_weights", "seed"}
"""Arguments of a model that are not keys of a run: the data or the run's seed determine them."""
BY_RECIPE = " in the default recipe"
"""The source of values that no one gave, in messages."""

Given = Mapping[str, tuple[Any, str]]
"""Values and their sources by key; a source is ` in run.yaml`, or empty for a flag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenRun:
    """The model of a run, and the values that a run file, flags and the default recipe give."""

    model: str
    values: Given
    """By the full names of their keys, which all exist."""

    def data(self) -> DataConfig:
        """Return the section data, with the values of the sections checked.

        Raises:
            InputError: a value has the wrong type, or a path is missing.
        """
        known = section_keys()
        values = {
            key: known[key].read(value, where=where)
            for key, (value, where) in self.values.items()
            if key in known
        }
        return RunConfig.of_keys(values | {"model.name": self.model}).data


def given_run(file: Path | str | None, flags: Mapping[str, Any]) -> GivenRun:
    """Return the model and the values of a run; see `runfile.read_run`.

    Raises:
        UnknownName: a key or a model does not exist; suggests the nearest.
        InputError: the run file cannot be read, or a key is given twice.
    """
    layers = [
        {k: (v, where) for k, v in values.items() if v is not None or k != "model.name"}
        for values, where in sources(file, flags)
    ]
    if not any("model.name" in layer for layer in layers):
        layers.insert(0, {k: (v, BY_RECIPE) for k, v in default_recipe().items()})
    model = registered_model({k: v for layer in layers for k, v in layer.items()})
    own = known_arguments(model) - FROM_DATA
    given: dict[str, tuple[Any, str]] = {}
    for layer in layers:  # in full: a key overrides another spelling of itself
        given |= flatten(layer, own)
    task = TASKS.get(given.get("data.task", ("", ""))[0])  # None for `auto` and unknown names
    by_recipe = given.get("training.members", (1, ""))[1] == BY_RECIPE
    if by_recipe and task is not None and task.averages is None:
        given["training.members"] = (1, BY_RECIPE)
    check_keys(model, given)
    return GivenRun(model=model, values=given)


def check_files(data: DataConfig) -> None:
    """Refuse folders and tables of a run that cannot be read.

    Raises:
        BagError: there is no folder of features, or it holds no bags.
        TableError: a table cannot be used.
    """
    names = bag_names(data.features, features=data.feature_set)
    table = read_label_table(data)
    if not {*match_bags(table, names).bags} & {*names}:
        check_labels_match(table, names, allow_unlabelled=True)
    if data.split is not None:
        TextTable.read(data.split)
    if data.instance_labels is not None:
        label_files(data.instance_labels, names)
    if data.covariates.columns:
        read_covariates(data.covariates.covariates or data.labels, data.covariates)


def read_label_table(data: DataConfig, path: Path | None = None) -> LabelTable:
    """Read the labels of a run, or another table with its classes.

    Bags need a label only in a run that refuses those without, and in no other table.

    Raises:
        TableError: the table is invalid.
    """
    is_own = path is None
    return read_table(
        path or data.labels,
        classes=data.classes,
        target=data.targets,
        covariates=data.covariates.columns,
        labels_required=is_own and data.unlabelled == "refuse",
        columns_required=is_own,
    )


def chosen_set(data: DataConfig, features: Path) -> str | None:
    """Return which of several folders of features at a path has the name that the run chose."""
    # a folder of files is given where the run chose one of several by its name
    has_files = any(p.parent == features for p in hdf5_files(features))
    is_own = features.resolve() == data.features.resolve()
    return None if has_files and not is_own else data.feature_set


def names_model(file: Path | None, flags: Mapping[str, Any]) -> bool:
    """Return whether a run file or flags name a model; otherwise the run has the default recipe."""
    return any(values.get("model.name") is not None for values, _ in sources(file, flags))


def sources(file: Path | str | None, flags: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the values of a run file and of flags, each with its source in messages."""
    of_file = [] if file is None else [(flatten(load_yaml(Path(file))), f" in {file}")]
    return [*of_file, (flatten(flags), "")]


def registered_model(given: Given) -> str:
    """Return the name of the model, which must be registered."""
    known = known_names()
    if "model.name" not in given:
        raise InputError(f"no model is given: add --model NAME, one of {', '.join(known)}")
    name, where = given["model.name"]
    if name not in known:
        raise UnknownName(f"model{where}", str(name), known)
    return name


def check_keys(model: str, given: Given) -> None:
    """Refuse keys that runs of a model do not have, and a run without features or labels.

    Raises:
        UnknownName: there is no such key; suggests the nearest.
        InputError: only other models have the key, or a necessary one is missing.
    """
    of_model = {f"model.{argument}" for argument in known_arguments(model) - FROM_DATA}
    known = {"model.name", *of_model, *section_keys()}
    for key, (_, where) in given.items():
        if key not in known:
            _refuse_of_other_models(model, key, where=where)
            short = [*(k.rpartition(".")[2] for k in known), *SECTIONS, "model"]
            raise UnknownName(f"key of a run{where}", key, known if "." in key else short)
    for short in ("features", "labels"):
        if given.get(f"data.{short}", (None,))[0] is None:
            raise InputError(f"no {short} given: add --{short} PATH")


def _refuse_of_other_models(model: str, key: str, *, where: str) -> None:
    """Raise an InputError if only other models have this argument."""
    argument = key.removeprefix("model.")
    others = [n for n in known_names() if argument in known_arguments(n) - FROM_DATA]
    if others:
        some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        raise InputError(
            f"the model {model} has no argument {argument}{where}, but {some} "
            f"{'has' if len(others) == 1 else 'have'}: remove it, or give another --model"
        )

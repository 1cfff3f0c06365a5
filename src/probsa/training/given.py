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
        keys = section_keys()
        values: dict[str, Any] = {"model.name": self.model}
        for name, (value, where) in self.values.items():
            if name in keys:
                values[name] = keys[name].read(value, where=where)
        return RunConfig.of_keys(values).data


def given_run(file: Path | str | None, flags: Mapping[str, Any]) -> GivenRun:
    """Return the model and the values of a run; see `runfile.read_run`.

    Raises:
        UnknownName: a key or a model does not exist; suggests the nearest.
        InputError: the run file cannot be read, or a key is given twice.
    """
    layers: list[dict[str, tuple[Any, str]]] = []
    for values, where in sources(file, flags):
        layer = {key: (value, where) for key, value in values.items()}
        if values.get("model.name") is None:  # no model, or a null in its place
            layer.pop("model.name", None)
        layers.append(layer)
    names_no_model = not any("model.name" in layer for layer in layers)
    if names_no_model:
        layers.insert(0, {key: (value, BY_RECIPE) for key, value in default_recipe().items()})
    merged: dict[str, tuple[Any, str]] = {}
    for layer in layers:
        merged |= layer
    model = registered_model(merged)
    model_arguments = known_arguments(model) - FROM_DATA
    settings: dict[str, tuple[Any, str]] = {}
    for layer in layers:  # in full: a key overrides another spelling of itself
        settings |= flatten(layer, model_arguments)
    if "data.task" in settings and "training.members" in settings:
        task = TASKS.get(settings["data.task"][0])  # None for `auto` and unknown names
        _, members_source = settings["training.members"]
        if members_source == BY_RECIPE and task is not None and task.averages is None:
            settings["training.members"] = (1, BY_RECIPE)
    check_keys(model, settings)
    return GivenRun(model=model, values=settings)


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
    is_folder_of_run = features.resolve() == data.features.resolve()
    holds_files = any(file.parent == features for file in hdf5_files(features))
    # another folder that holds files itself is one set, so that there is nothing to choose
    return None if holds_files and not is_folder_of_run else data.feature_set


def names_model(file: Path | None, flags: Mapping[str, Any]) -> bool:
    """Return whether a run file or flags name a model; otherwise the run has the default recipe."""
    return any(values.get("model.name") is not None for values, _ in sources(file, flags))


def sources(file: Path | str | None, flags: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the values of a run file and of flags, each with its source in messages."""
    from_flags = (flatten(flags), "")
    if file is None:
        return [from_flags]
    return [(flatten(load_yaml(Path(file))), f" in {file}"), from_flags]


def registered_model(given: Given) -> str:
    """Return the name of the model, which must be registered."""
    models = known_names()
    if "model.name" not in given:
        raise InputError(f"no model is given: add --model NAME, one of {', '.join(models)}")
    name, where = given["model.name"]
    if name not in models:
        raise UnknownName(f"model{where}", str(name), models)
    return name


def check_keys(model: str, given: Given) -> None:
    """Refuse keys that runs of a model do not have, and a run without features or labels.

    Raises:
        UnknownName: there is no such key; suggests the nearest.
        InputError: only other models have the key, or a necessary one is missing.
    """
    arguments = known_arguments(model) - FROM_DATA
    names = {"model.name", *(f"model.{argument}" for argument in arguments), *section_keys()}
    for key, (_, where) in given.items():
        if key not in names:
            _refuse_argument_of_other_models(model, key, where=where)
            short_names = [*(name.rpartition(".")[2] for name in names), *SECTIONS, "model"]
            raise UnknownName(f"key of a run{where}", key, names if "." in key else short_names)
    for short in ("features", "labels"):
        if given.get(f"data.{short}", (None,))[0] is None:
            raise InputError(f"no {short} given: add --{short} PATH")


MOST_MODELS = 3
"""Number of models that a message names."""


def _refuse_argument_of_other_models(model: str, key: str, *, where: str) -> None:
    """Raise an InputError if only other models have this argument."""
    argument = key.removeprefix("model.")
    models = [name for name in known_names() if argument in known_arguments(name) - FROM_DATA]
    if models:
        listed = ", ".join(models[:MOST_MODELS]) + (", …" if len(models) > MOST_MODELS else "")
        raise InputError(
            f"the model {model} has no argument {argument}{where}, but {listed} "
            f"{'has' if len(models) == 1 else 'have'}: remove it, or give another --model"
        )

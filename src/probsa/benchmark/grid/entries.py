"""The records of a grid's file: the grid, its exceptions and its models; and the methods they give.

Each key is read as the keys of a run are, by its annotation: errors name the key and the file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar, get_args

from ...core import NonNegativeInt, PositiveInt
from ...errors import InputError, UnknownName
from ...models import known_arguments, known_names
from ...training import RunKey, flatten, section_keys
from ...variational import KLWeight
from .methods_and_cells import Family, Method

Keep = Literal["best", "all", "none"]
Numbers = PositiveInt | tuple[NonNegativeInt, ...]
"""Some whole numbers; n stands for 0 to n − 1."""
Names = str | tuple[str, ...]
WORDS = ("all", *get_args(Family))
"""Words that stand for many models."""
SET_BY_GRID = {
    "training.kl_weight": "kl_weight of the grid, or of an entry of models",
    "data.test_fold": "splits",
    "data.split": "splits",
    "seed": "seeds",
    "data_seed": "data_seed of the grid",
}
"""Keys of a run that no cell may set, with what sets them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GridFile:
    """The keys of a grid; `others` are keys of its runs, with their section."""

    name: str = ""
    data: Any = None
    models: Any = ()
    kl_weight: Any = "cyclical"
    seeds: Numbers = 1
    splits: Numbers = 5
    data_seed: NonNegativeInt | None = 0
    keep: Keep = "best"
    """Checkpoints that remain when a cell is done."""
    f1_at_half: bool = False
    """Whether tables of several data sets, ranks and figures have F1 at p ≥ 0.5, as the paper,
    instead of F1 at the threshold that each run chose."""
    leaks: Literal["refuse", "note"] = "refuse"
    """Whether to reject or only report a patient or a copied bag in two parts."""
    exceptions: list[dict[str, Any]] | None = None
    slurm: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExceptionRule:
    """Keys of runs (`others`) that apply to some methods on some data sets; no names mean all."""

    data: Names = ()
    models: Names = ()
    seeds: Numbers | None = None
    others: dict[str, Any]

    def holds(self, data: str, method: Method) -> bool:
        """Return whether the rule applies to a method on a data set."""
        if self.data and data not in listed(self.data):
            return False
        if not self.models:
            return True
        return any(
            fnmatchcase(method.model, pattern) or fnmatchcase(method.label, pattern)
            for pattern in listed(self.models)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """An item of `models`; `others` are arguments of the model."""

    name: str
    label: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    kl_weight: Any = None
    others: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """A method, with the training keys for which its runs differ from the grid."""

    method: Method
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training keys with their section, such as `training.epochs`."""


R = TypeVar("R", GridFile, ExceptionRule, ModelEntry)


def read_record(kind: type[R], given: Mapping[str, Any], *, where: str) -> R:
    """Read keys and values into a record; those that are not its own become its `others`.

    Raises:
        InputError: A value is wrong; names the key, and `where` it was given.
    """
    types = {f.name: f.type for f in fields(kind) if f.name != "others"}
    values: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name in types:
            key = RunKey(name=name, annotation=types[name], help="")
            values[name] = key.read(value, where=f" in {where}")
        else:
            others[name] = value
    for name in ("seeds", "splits"):
        numbers = values.get(name)
        if isinstance(numbers, tuple) and (not numbers or len(set(numbers)) < len(numbers)):
            raise InputError(f"{name} in {where} is {[*numbers]}; expected different numbers")
    return kind(**values, others=others)


def exceptions_of(grid: GridFile, *, where: str) -> list[ExceptionRule]:
    """Read the exceptions of a grid.

    Raises:
        UnknownName: A run has no such key.
        InputError: A value is invalid.
    """
    where = f"{where} (exceptions)"
    rules = [read_record(ExceptionRule, e, where=where) for e in grid.exceptions or []]
    return [replace(r, others=run_keys(r.others, where=where)) for r in rules]


def listed(values: Any) -> list[Any]:
    """Return several values, or a single one, as a list."""
    return list(values) if isinstance(values, list | tuple) else [values]


def number_list(numbers: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return whole numbers one by one."""
    return tuple(range(numbers)) if isinstance(numbers, int) else numbers


def kl_weights(given: Any, *, where: str) -> list[KLWeight]:
    """Return the λ that a grid lists, without repeats.

    >>> kl_weights([0, 0.1, "cyclical", 0.0], where="grid.yaml")
    [0.0, 0.1, 'cyclical']
    """
    key = section_keys()["training.kl_weight"]
    return list(dict.fromkeys(key.read(λ, where=f" in {where}") for λ in listed(given)))


def run_keys(
    given: Mapping[str, Any], *, where: str, section: str = "", others: Sequence[str] = ()
) -> dict[str, Any]:
    """Add the section to the keys of a run: `{epochs: 5}` becomes `{training.epochs: 5}`.

    Only keys of `section` are allowed, if it is given; `others` are suggested as well.

    Raises:
        UnknownName: A run has no such key.
        InputError: A key is set by the grid for every cell.
    """
    flat = flatten(dict(given))
    allowed = [key for key in section_keys().values() if key.section]
    if section:
        allowed = [key for key in allowed if key.section == section]
    allowed_names = {key.name for key in allowed}
    for name in flat:
        if name in SET_BY_GRID:
            short = name.rpartition(".")[2]
            raise InputError(f"{short} in {where} is set by the grid: give {SET_BY_GRID[name]}")
        if name not in allowed_names:
            short_names = [key.short for key in allowed]
            raise UnknownName(f"key in {where}", name, [*others, *short_names])
    return flat


def methods_of(given: Any, weights: Sequence[KLWeight], *, where: str) -> tuple[MethodEntry, ...]:
    """Return the methods of a grid, one per model and λ; λ = 0 gives the plain baseline, once.

    Args:
        given: Names, words or mappings {name, label, training, kl_weight, <arguments>}.
        weights: λ of the models that have a KL term and do not set their own.
        where: Path of the grid's file, for error messages.

    Raises:
        UnknownName: A model or an argument does not exist.
        InputError: Two methods share a folder, or an entry is invalid.
    """
    items: list[ModelEntry] = []
    for item in listed(given):
        items += _model_entries(item, where=where)
    if not items:
        raise InputError(
            f"{where} names no models: give some, for example models: [abmil, abmil-probsa-diag]"
        )
    from ...models import look_up

    has_kl = {item.name: look_up(item.name).model.has_kl for item in items}
    plain = [_method_entry(item, None, where=where) for item in items if not has_kl[item.name]]
    entries: list[MethodEntry] = []
    for item in items:
        item_weights: Sequence[KLWeight | None] = weights
        if item.kl_weight is not None:
            item_weights = kl_weights(item.kl_weight, where=where)
        if not has_kl[item.name]:
            item_weights = [None]
        for λ in item_weights:
            entry = _method_entry(item, λ, where=where)
            if λ == 0 and entry.method.baseline is not None:
                entry = _baseline(entry, [*plain, *entries])
            if entry not in entries:
                entries.append(entry)
    _check_folders([entry.method for entry in entries], where=where)
    return tuple(entries)


def _check_folders(methods: Sequence[Method], *, where: str) -> None:
    """Refuse labels that cannot name a folder, and methods that would share one."""
    by_slug: dict[str, Method] = {}
    for method in methods:
        if not re.search(r"\w", method.label):
            raise InputError(f"the label {method.label!r} in {where} has no letter or digit")
        other = by_slug.setdefault(method.slug, method)
        if other is not method:
            raise InputError(
                f"two methods of {where} are called {method.name!r} and {other.name!r}, which "
                f"share a folder ({method.slug}): give one of them another label"
            )


def check_models(given: Any, *, where: str) -> None:
    """Check the names of models and of their arguments, which `methods_of` does as well.

    Raises:
        UnknownName: A model or an argument does not exist.
        InputError: An entry is invalid.
    """
    for item in listed(given):
        if item not in WORDS:
            _model_entries(item, where=where)


def check_exceptions(
    rules: Sequence[ExceptionRule], data: Mapping[str, Any], entries: Sequence[MethodEntry]
) -> tuple[str, ...]:
    """Return a note on exceptions for data sets that the grid does not have.

    Raises:
        UnknownName: An exception names a model that does not exist.
    """
    names = [*known_names(), *(e.method.label for e in entries)]
    absent: dict[str, None] = {}
    for rule in rules:
        for pattern in listed(rule.models):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UnknownName("model in an exception", pattern, names)
        absent |= dict.fromkeys(name for name in listed(rule.data) if name not in data)
    if not absent:
        return ()
    # grids often omit models, but a data set under another name may be a mistake
    return (f"no data is called {', '.join(absent)}: exceptions for these have no effect",)


def _model_entries(item: Any, *, where: str) -> list[ModelEntry]:
    """Split an item of `models` into entries of one model each."""
    keys = {"name": item} if isinstance(item, str) else item
    if not isinstance(keys, dict) or not keys.get("name"):
        raise InputError(
            f"models in {where} has {item!r}: expected a name, {', '.join(WORDS)}, or a mapping "
            "with a name"
        )
    entry = read_record(ModelEntry, keys, where=f"{where} (models)")
    name = entry.name
    if name in known_names():
        arguments = known_arguments(name)
        for key in entry.others:
            if key not in arguments:
                entry_keys = [f.name for f in fields(ModelEntry) if f.name != "others"]
                suggested = [*arguments, *entry_keys]
                raise UnknownName(f"argument of {name} in {where}", key, suggested)
        return [entry]
    if name not in WORDS:
        raise UnknownName(f"model in {where}", name, [*known_names(), *WORDS])
    unexpected = list(entry.others)
    if entry.label:
        unexpected.append("label")
    if unexpected:
        raise InputError(
            f"the entry {name!r} of models in {where} has {unexpected[0]!r}: an entry for several "
            "models takes only training and kl_weight"
        )
    from ...models import look_up, names

    return [replace(entry, name=n) for n in names() if name in ("all", look_up(n).family)]


def _method_entry(item: ModelEntry, λ: KLWeight | None, *, where: str) -> MethodEntry:
    label = item.label or item.name
    method = Method(label=label, model=item.name, arguments=item.others, kl_weight=λ)
    training = run_keys(item.training, where=where, section="training")
    return MethodEntry(method=method, training=training)


def _baseline(entry: MethodEntry, listed_entries: Sequence[MethodEntry]) -> MethodEntry:
    """Return the plain baseline that replaces λ = 0: an equal listed one if any, else a new one."""
    from ...models import plain_model

    method = entry.method
    plain = plain_model(method.model, method.arguments)
    assert plain is not None
    base, shared_arguments = plain
    for other in listed_entries:
        if (
            other.method.model == base
            and other.method.kl_weight is None
            and other.method.arguments == shared_arguments
            and other.training == entry.training
        ):
            return other
    labels = {e.method.label for e in listed_entries}
    label = base if base not in labels else f"{base} of {method.label}"
    return replace(entry, method=Method(label=label, model=base, arguments=shared_arguments))

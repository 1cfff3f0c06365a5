"""Parse the methods of a grid: models (or the words all, local and global) and their λ."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, get_args

from ...errors import InputError, UnknownName
from ...models import arguments, look_up, names, plain_model
from ...training import flatten, section_keys
from ...variational import KLWeight
from .methods_and_cells import Family, Method

WORDS = ("all", *get_args(Family))
"""Words that stand for many models."""
ENTRY_KEYS = ("name", "label", "training", "kl_weight")
"""Keys of an entry that are not arguments of its model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """A method, with the training keys for which its runs differ from the grid."""

    method: Method
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training keys with their section, such as `training.epochs`."""


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
    listed = given if isinstance(given, list) else [given]
    items = [item for each in listed for item in _spread(each, where=where)]
    if not items:
        raise InputError(
            f"{where} names no models: give some, for example models: [abmil, abmil-probsa-diag]"
        )
    has_kl = {item["name"]: look_up(item["name"]).model.has_kl for item in items}
    plain_ones, entries = [_entry(r, None, where=where) for r in items if not has_kl[r["name"]]], []
    for item in items:
        for λ in _weights(item, weights, where=where) if has_kl[item["name"]] else [None]:
            entry = _entry(item, λ, where=where)
            if λ == 0 and entry.method.baseline is not None:
                entry = _baseline(entry, [*plain_ones, *entries])
            if entry not in entries:
                entries.append(entry)
    _refuse_duplicates(entries, where=where)
    return tuple(entries)


def kl_weights(given: Any, *, where: str) -> list[KLWeight]:
    """Return the λ that a grid lists, without repeats.

    >>> kl_weights([0, 0.1, "cyclical", 0.0], where="grid.yaml")
    [0.0, 0.1, 'cyclical']
    """
    listed = given if isinstance(given, list) else [given]
    weights: list[KLWeight] = []
    for λ in listed:
        λ = _as_number(λ)
        is_number = isinstance(λ, int | float) and not isinstance(λ, bool) and math.isfinite(λ)
        if not is_number and λ not in ("linear", "cyclical"):
            raise InputError(
                f"kl_weight in {where} has {λ!r}: expected numbers, 'linear' or 'cyclical'"
            )
        value: KLWeight = float(λ) if is_number else λ
        if value not in weights:
            weights.append(value)
    return weights


def _as_number(given: Any) -> Any:
    """Return a number that YAML has read as text, as it does with 1e-3."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def matches(method: Method, patterns: Sequence[str]) -> bool:
    """Return whether a pattern, which may contain `*`, matches a method's model or label."""
    return any(fnmatchcase(n, p) for p in patterns for n in (method.model, method.label))


def _spread(item: Any, *, where: str) -> list[dict[str, Any]]:
    """Split an item of `models` into entries of one model each."""
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise InputError(
            f"models in {where} has {item!r}: expected a name, {', '.join(WORDS)}, or a mapping "
            "with a name"
        )
    name = item["name"]
    if name not in WORDS:
        if name not in names():
            raise UnknownName(f"model in {where}", name, [*names(), *WORDS])
        known = [*arguments(name), *ENTRY_KEYS]
        for key in item:
            if key not in known:
                raise UnknownName(f"argument of {name} in {where}", str(key), known)
        return [item]
    if unexpected := set(item) - {"name", "training", "kl_weight"}:
        raise InputError(
            f"the entry {name!r} of models in {where} has {sorted(unexpected)[0]!r}: an "
            "entry for several models takes only training and kl_weight"
        )
    return [{**item, "name": n} for n in names() if name in ("all", look_up(n).family)]


def _weights(
    item: Mapping[str, Any], weights: Sequence[KLWeight], *, where: str
) -> Sequence[KLWeight]:
    return kl_weights(item["kl_weight"], where=where) if "kl_weight" in item else weights


def _entry(item: Mapping[str, Any], λ: KLWeight | None, *, where: str) -> MethodEntry:
    training = item.get("training") or {}
    if not isinstance(training, dict):
        raise InputError(f"training of {item['name']} in {where} is {training!r}: expected keys")
    method = Method(
        label=str(item.get("label", item["name"])),
        model=item["name"],
        arguments={k: v for k, v in item.items() if k not in ENTRY_KEYS},
        kl_weight=λ,
    )
    return MethodEntry(method=method, training=run_keys(training, where=where, section="training"))


def run_keys(
    given: Mapping[str, Any], *, where: str, section: str | None = None, others: Sequence[str] = ()
) -> dict[str, Any]:
    """Add the section to the keys of a run: `{epochs: 5}` becomes `{training.epochs: 5}`.

    Args:
        given: The keys and their values.
        where: Where the keys were given, for error messages.
        section: The only section that is allowed.
        others: Other keys that are allowed there, for the suggestions of an error message.

    Raises:
        UnknownName: A run has no such key.
        InputError: A key is set by the grid for every cell.
    """
    flat = flatten(dict(given))
    known = [key for key in section_keys() if "." in key]
    set_by_grid = {
        "training.kl_weight": "kl_weight of the grid, or of an entry of models",
        "data.test_fold": "splits",
        "data.split": "splits",
        "seed": "seeds",
        "data_seed": "data_seed of the grid",
    }
    for key in flat:
        if key in set_by_grid:
            short = key.rpartition(".")[2]
            raise InputError(f"{short} in {where} is set by the grid: give {set_by_grid[key]}")
        if key not in known or (section is not None and not key.startswith(f"{section}.")):
            short = [k.partition(".")[2] for k in known if k.startswith(section or "")]
            raise UnknownName(f"key in {where}", key, [*others, *short])
    return flat


def _baseline(entry: MethodEntry, known: Sequence[MethodEntry]) -> MethodEntry:
    """Return the plain baseline that replaces λ = 0: an equal listed one if any, else a new one."""
    method = entry.method
    plain = plain_model(method.model, method.arguments)
    assert plain is not None
    base, shared_arguments = plain
    for other in known:
        same = other.method.model == base and other.method.kl_weight is None
        if same and other.method.arguments == shared_arguments and other.training == entry.training:
            return other
    labels = {e.method.label for e in known}
    label = base if base not in labels else f"{base} of {method.label}"
    return MethodEntry(
        method=Method(label=label, model=base, arguments=shared_arguments),
        training=dict(entry.training),
    )


def _refuse_duplicates(entries: Sequence[MethodEntry], *, where: str) -> None:
    by_slug: dict[str, Method] = {}
    for entry in entries:
        method = entry.method
        if not re.search(r"\w", method.label):
            raise InputError(f"the label {method.label!r} in {where} has no letter or digit")
        if method.slug in by_slug:
            raise InputError(
                f"two methods of {where} are called {method.name!r} and "
                f"{by_slug[method.slug].name!r}, which share a folder ({method.slug}): give one "
                "of them another label"
            )
        by_slug[method.slug] = method

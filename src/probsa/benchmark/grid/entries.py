"""The methods of a grid: its entries, the words all, local and global, and λ laid over them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, get_args

from ...errors import InputError, UnknownName
from ...models import arguments, facts, names
from ...training import flatten, section_keys
from ...variational import KLWeight
from .methods_and_cells import Family, Method

WORDS = ("all", *get_args(Family))
"""What stands for many models."""
OWN = ("name", "label", "training", "kl_weight")
"""Keys of an entry that are not its model's arguments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A method with what its runs are trained with beside the grid's own keys."""

    method: Method
    training: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys."""


def methods_of(given: Any, weights: Sequence[KLWeight], *, where: str) -> tuple[Entry, ...]:
    """Every method of a grid, a model and λ each; λ = 0 is the plain baseline, once.

    Args:
        given: names, words or mappings {name, label, training, kl_weight, <arguments>}.
        weights: λ of the models that have a KL and say nothing else.
        where: the grid's file, as errors name it.

    Raises:
        UnknownName: no such model or argument.
        InputError: two methods that one folder would hold, or an entry that is none.
    """
    listed = given if isinstance(given, list) else [given]
    raw = [one for item in listed for one in _spread(item, where=where)]
    if not raw:
        raise InputError(f"{where} names no models: give models: [abmil, abmil-probsa-diag], say")
    plain_ones = [_entry(r, None, where=where) for r in raw if not facts(r["name"]).has_kl]
    found: list[Entry] = []
    for one in raw:
        for λ in _weights(one, weights, where=where) if facts(one["name"]).has_kl else [None]:
            entry = _entry(one, λ, where=where)
            if λ == 0 and entry.method.baseline is not None:
                entry = _baseline(entry, [*plain_ones, *found])
            if entry not in found:
                found.append(entry)
    _refuse_doubles(found, where=where)
    return tuple(found)


def kl_weights(given: Any, *, where: str) -> list[KLWeight]:
    """λ as a grid lists it, each once; whether a number is one is seen where a run is made.

    >>> kl_weights([0, 0.1, "cyclical", 0.0], where="grid.yaml")
    [0.0, 0.1, 'cyclical']
    """
    listed = given if isinstance(given, list) else [given]
    found: list[KLWeight] = []
    for λ in listed:
        λ = _number(λ)
        number = isinstance(λ, int | float) and not isinstance(λ, bool) and math.isfinite(λ)
        if not number and λ not in ("linear", "cyclical"):
            raise InputError(
                f"kl_weight in {where} has {λ!r}: expected numbers, 'linear' or 'cyclical'"
            )
        value: KLWeight = float(λ) if number else λ
        if value not in found:
            found.append(value)
    return found


def _number(given: Any) -> Any:
    """YAML reads 1e-3, which has no dot, as text."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def matches(method: Method, patterns: Sequence[str]) -> bool:
    """Whether a method is meant: by its model's name or its label, with `*` for anything."""
    return any(fnmatchcase(n, p) for p in patterns for n in (method.model, method.label))


def _spread(item: Any, *, where: str) -> list[dict[str, Any]]:
    """An item of `models` as entries of one model each."""
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
        known = [*arguments(name), *OWN]
        for key in item:
            if key not in known:
                raise UnknownName(f"argument of {name} in {where}", str(key), known)
        return [item]
    if unfit := set(item) - {"name", "training", "kl_weight"}:
        raise InputError(
            f"the entry {name!r} of models in {where} has {sorted(unfit)[0]!r}: what stands for "
            "many models takes training and kl_weight alone"
        )
    return [{**item, "name": n} for n in names() if name in ("all", facts(n).family)]


def _weights(
    one: Mapping[str, Any], weights: Sequence[KLWeight], *, where: str
) -> Sequence[KLWeight]:
    return kl_weights(one["kl_weight"], where=where) if "kl_weight" in one else weights


def _entry(one: Mapping[str, Any], λ: KLWeight | None, *, where: str) -> Entry:
    training = one.get("training") or {}
    if not isinstance(training, dict):
        raise InputError(f"training of {one['name']} in {where} is {training!r}: expected keys")
    method = Method(
        label=str(one.get("label", one["name"])),
        model=one["name"],
        arguments={k: v for k, v in one.items() if k not in OWN},
        kl_weight=λ,
    )
    return Entry(method=method, training=run_keys(training, where=where, section="training"))


def run_keys(
    given: Mapping[str, Any], *, where: str, section: str | None = None, others: Sequence[str] = ()
) -> dict[str, Any]:
    """Keys of runs with their sections: `{epochs: 5}` as `{training.epochs: 5}`.

    Args:
        given: the keys and their values.
        where: where they stand, as errors say it.
        section: the only one that is allowed.
        others: keys that could have stood there too, and may have been meant.

    Raises:
        UnknownName: a key that no run has.
        InputError: one that the grid itself says for every cell.
    """
    flat = flatten(dict(given))
    known = [key for key in section_keys() if "." in key]
    taken = {
        "training.kl_weight": "kl_weight of the grid, or of an entry of models",
        "data.test_fold": "splits",
        "data.split": "splits",
        "seed": "seeds",
        "data_seed": "data_seed of the grid",
    }
    for key in flat:
        if key in taken:
            short = key.rpartition(".")[2]
            raise InputError(f"{short} in {where} is not a run's to say: give {taken[key]}")
        if key not in known or (section is not None and not key.startswith(f"{section}.")):
            short = [k.partition(".")[2] for k in known if k.startswith(section or "")]
            raise UnknownName(f"key in {where}", key, [*others, *short])
    return flat


def _baseline(entry: Entry, known: Sequence[Entry]) -> Entry:
    """The plain model that λ = 0 stands for: a listed one if it is the same, else a new one."""
    method = entry.method
    base = method.baseline
    assert base is not None
    kept = {k: v for k, v in method.arguments.items() if k in arguments(base)}
    for other in known:
        same = other.method.model == base and other.method.kl_weight is None
        if same and other.method.arguments == kept and other.training == entry.training:
            return other
    taken = {e.method.label for e in known}
    label = base if base not in taken else f"{base} of {method.label}"
    return Entry(
        method=Method(label=label, model=base, arguments=kept), training=dict(entry.training)
    )


def _refuse_doubles(found: Sequence[Entry], *, where: str) -> None:
    seen: dict[str, Method] = {}
    for entry in found:
        method = entry.method
        if not re.search(r"\w", method.label):
            raise InputError(f"the label {method.label!r} in {where} has no letter or digit")
        if method.slug in seen:
            raise InputError(
                f"two methods of {where} are called {method.name!r} and {seen[method.slug].name!r},"
                f" which is one folder ({method.slug}): give one of them another label"
            )
        seen[method.slug] = method

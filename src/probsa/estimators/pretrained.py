"""Estimators in folders: those of `probsa.from_pretrained`, and what an estimator adds to them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from ..core import GraphOptions, PositiveInt, as_record, read_json
from ..errors import InputError
from ..evaluation import CONFIG, CardFacts, from_pretrained, local_folder

E = TypeVar("E", bound=BaseEstimator)
AGAIN = "copy the folder again, or save the model again"
MAIN_METRICS = {
    "val_auroc": "AUROC",
    "val_kappa": "quadratic kappa",
    "val_c_index": "c-index",
}
"""Columns of the history, of which the highest value chooses the epoch, and their titles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEstimator:
    """What config.json states of an estimator."""

    parameters: dict[str, Any]
    n_features_in: PositiveInt
    kind: str = "MILClassifier"
    """Name of its class."""
    labels: tuple[str | bool | int | float, ...] = ()
    """The labels of a classifier."""
    history: tuple[dict[str, float | None], ...] = ()
    bags: dict[str, int] = field(default_factory=dict)
    """Number of bags of each part; their names stay where they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    estimator: StoredEstimator


def save_estimator(estimator: Any, folder: Path, *, data: str) -> Path:
    """Write a fitted estimator; see `MILEstimator.save_pretrained`."""
    labels = getattr(estimator, "classes_", np.array([])).tolist()
    if not all(isinstance(label, str | bool | int | float) for label in labels):
        raise InputError(
            f"the labels are of type {type(labels[0]).__name__}; expected texts, numbers or "
            "booleans: fit with such labels to save the classifier"
        )
    stored = {
        "kind": type(estimator).__name__,
        "parameters": {k: _plain(k, v) for k, v in estimator.get_params(deep=False).items()},
        "labels": labels,
        "n_features_in": estimator.n_features_in_,
        "history": estimator.history_,
        "bags": estimator.n_bags_,
    }
    facts = CardFacts(data=data, parts=estimator.n_bags_, remark=_remark(estimator.history_))
    return estimator.predictor_.save_pretrained(folder, facts=facts, more={"estimator": stored})


def load_estimator(cls: type[E], source: Path | str, *, revision: str | None, device: str) -> E:
    """Load an estimator; see `MILEstimator.from_pretrained`."""
    folder = local_folder(source, revision=revision)
    where = folder / CONFIG
    values = read_json(where, advice=AGAIN)
    if isinstance(values, dict) and "estimator" not in values:
        raise InputError(
            f"{where} holds a model without an estimator: load it with probsa.from_pretrained"
        )
    stored = as_record(_Stored, values, where=str(where), advice=AGAIN).estimator
    if stored.kind not in {c.__name__ for c in cls.__mro__}:
        raise InputError(
            f"{where} holds a {stored.kind}, not a {cls.__name__}: load it with "
            f"{stored.kind}.from_pretrained"
        )
    known = cls().get_params(deep=False)
    unknown = sorted(set(stored.parameters) - set(known))
    if unknown:
        raise InputError(f"{where} is damaged: {cls.__name__} has no {unknown[0]!r}. {AGAIN}")
    estimator: Any = cls(**{**stored.parameters, "device": device})
    estimator.predictor_ = from_pretrained(folder, device=device)
    if len(stored.labels) != len(estimator.predictor_.classes):
        raise InputError(f"{where} is damaged: its numbers of labels and classes differ. {AGAIN}")
    if stored.labels:
        estimator.classes_ = np.asarray(stored.labels)
    estimator.n_features_in_ = stored.n_features_in
    estimator.history_ = list(stored.history)
    estimator.n_iter_ = len(stored.history)
    estimator.n_bags_ = stored.bags
    return estimator


def _remark(history: Sequence[Mapping[str, Any]]) -> str:
    """Return what is known of the results: those of the epoch that was kept, on validation bags."""
    about = "No figures on held-out bags are stored with this model."
    for column, title in MAIN_METRICS.items():
        found = [r[column] for r in history if r.get(column) is not None]
        if found:
            return (
                f"{about} The highest {title} of an epoch on the validation bags, which chose the "
                f"weights, was {max(v or 0.0 for v in found):.3f}; it is no estimate of the "
                "performance on new bags."
            )
    return about


def _plain(name: str, value: Any) -> Any:
    """Return an argument of the constructor as JSON can hold it.

    A generator of random numbers cannot be stored, and has no part in prediction.
    """
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, GraphOptions):
        return asdict(value)
    try:
        return json.loads(json.dumps(value, default=_number))
    except TypeError as error:
        raise InputError(f"the argument {name} is {value!r:.80}, which JSON cannot hold") from error


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "items"):
        return dict(value)
    raise TypeError

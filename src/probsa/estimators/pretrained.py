"""Classifiers in folders: those of `probsa.from_pretrained`, and what an estimator adds to them."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core import GraphOptions, PositiveInt, as_record, read_json
from ..errors import InputError
from ..evaluation import CONFIG, CardFacts, from_pretrained, local_folder, write_pretrained
from .classifier import MILClassifier

C = TypeVar("C", bound=MILClassifier)
AGAIN = "copy the folder again, or save the classifier again"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEstimator:
    """What config.json states of an estimator."""

    parameters: dict[str, Any]
    labels: tuple[str | bool | int | float, ...]
    n_features_in: PositiveInt
    history: tuple[dict[str, float | None], ...] = ()
    bags: dict[str, int] = field(default_factory=dict)
    """Number of bags of each part; their names stay where they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    estimator: StoredEstimator


def save_classifier(classifier: MILClassifier, folder: Path, *, data: str) -> Path:
    """Write a fitted classifier; see `MILClassifier.save_pretrained`."""
    labels = classifier.classes_.tolist()
    if not all(isinstance(label, str | bool | int | float) for label in labels):
        raise InputError(
            f"the labels are of type {type(labels[0]).__name__}; expected texts, numbers or "
            "booleans: fit with such labels to save the classifier"
        )
    stored = {
        "parameters": {k: _plain(k, v) for k, v in classifier.get_params(deep=False).items()},
        "labels": labels,
        "n_features_in": classifier.n_features_in_,
        "history": classifier.history_,
        "bags": classifier.n_bags_,
    }
    facts = CardFacts(
        data=data,
        parts=classifier.n_bags_,
        remark=_remark(classifier),
    )
    return write_pretrained(classifier.predictor_, folder, facts=facts, more={"estimator": stored})


def load_classifier(cls: type[C], source: Path | str, *, revision: str | None, device: str) -> C:
    """Load a classifier; see `MILClassifier.from_pretrained`."""
    folder = local_folder(source, revision=revision)
    where = folder / CONFIG
    values = read_json(where, advice=AGAIN)
    if isinstance(values, dict) and "estimator" not in values:
        raise InputError(
            f"{where} holds a model without an estimator: load it with probsa.from_pretrained"
        )
    stored = as_record(_Stored, values, where=str(where), advice=AGAIN).estimator
    known = cls().get_params(deep=False)
    unknown = sorted(set(stored.parameters) - set(known))
    if unknown:
        raise InputError(f"{where} is damaged: {cls.__name__} has no {unknown[0]!r}. {AGAIN}")
    classifier = cls(**{**stored.parameters, "device": device})
    classifier.predictor_ = from_pretrained(folder, device=device)
    if len(stored.labels) != len(classifier.predictor_.classes):
        raise InputError(f"{where} is damaged: its numbers of labels and classes differ. {AGAIN}")
    classifier.classes_ = np.asarray(stored.labels)
    classifier.n_features_in_ = stored.n_features_in
    classifier.history_ = list(stored.history)
    classifier.n_iter_ = len(stored.history)
    classifier.n_bags_ = stored.bags
    return classifier


def _remark(classifier: MILClassifier) -> str:
    """Return what is known of the results: those of the epoch that was kept, on validation bags."""
    about = "No figures on held-out bags are stored with this model."
    rows = [r for r in classifier.history_ if r.get("val_auroc") is not None]
    if not rows:
        return about
    best = max(row["val_auroc"] or 0.0 for row in rows)
    return (
        f"{about} The highest AUROC of an epoch on the validation bags, which chose the weights, "
        f"was {best:.3f}; it is no estimate of the performance on new bags."
    )


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

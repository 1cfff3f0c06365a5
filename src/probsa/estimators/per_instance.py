"""Transformers of instances for pipelines: scikit-learn's own work on tables, not on bags."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from ..core import Bag, as_array
from ..errors import BagError, InputError
from .inputs import items_of


class PerInstance(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """Apply a transformer of tables, such as `StandardScaler`, to the instances of all bags.

    It is fitted on the instances of all training bags in one table, and keeps bags, their order
    and their coordinates. The graph of a `Bag` stays as it is; that of an array is built later,
    from the transformed features.

    Args:
        transformer: a transformer of arrays (instances, features).
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> "PerInstance":
        """Fit a copy of the transformer; the labels of bags are not used.

        Raises:
            InputError: X is not a list of bags.
            BagError: the bags differ in width.
        """
        del y  # instances have no labels
        table, _ = _table(items_of(X))
        copy: Any = clone(self.transformer)
        self.transformer_ = copy.fit(table)
        self.n_features_in_ = int(table.shape[1])
        return self

    def transform(self, X: Any) -> list[Any]:
        """Return the bags with transformed features: of the kinds that were given, in a list."""
        check_is_fitted(self)
        items = items_of(X)
        table, sizes = _table(items)
        new = self.transformer_.transform(table)
        new = np.asarray(new.toarray() if hasattr(new, "toarray") else new)
        if len(new) != len(table):
            raise InputError(
                f"{type(self.transformer).__name__} made {len(new)} rows of {len(table)} "
                "instances: give a transformer that keeps rows"
            )
        parts = np.split(new, np.cumsum(sizes)[:-1])
        return [_with(item, part) for item, part in zip(items, parts, strict=True)]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "transformer_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def _table(items: Sequence[Any]) -> tuple[np.ndarray, list[int]]:
    """Return the instances of all bags as one table, and the number of each."""
    parts = [as_array(_features(item)) for item in items]
    for k, part in enumerate(parts):
        if part.ndim != 2 or part.shape[1] != parts[0].shape[-1]:
            raise BagError(
                f"bag {k} of X has the shape {part.shape}; expected (instances, features) with as "
                "many features in each bag"
            )
    return np.concatenate(parts), [len(part) for part in parts]


def _features(item: Any) -> Any:
    return item.x if isinstance(item, Bag) else item[0] if isinstance(item, tuple) else item


def _with(item: Any, features: np.ndarray) -> Any:
    if isinstance(item, Bag):
        return replace(item, x=torch.from_numpy(np.ascontiguousarray(features, np.float32)))
    return (features, *item[1:]) if isinstance(item, tuple) else features

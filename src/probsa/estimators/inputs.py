"""What an estimator is given: `Bag`s, arrays, or pairs of arrays with coordinates; numbers."""

from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..core import Bag, GraphOptions, as_bag
from ..errors import InputError

EXPECTED = (
    "expected a list of bags: probsa.Bag, arrays (instances, features), pairs (features, coords) "
    "as tuples, or one array (bags, instances, features)"
)


def as_bags(X: Any, coords: Any = None, *, graph: GraphOptions) -> list[Bag]:
    """Return bags with their graphs.

    An array is named by a digest of its values, so that its prediction does not depend on the
    other bags or on their order: a bag's name seeds the noise.

    Args:
        X: list of `probsa.Bag`, of arrays or tensors (n, features), or of tuples (features,
            coords), an object array of these, or an array (bags, n, features).
        coords: coordinates of each bag, for arrays without; entries may be None.
        graph: how graphs are built. A `Bag` whose graph was made by default gets one like this.

    Raises:
        InputError: there are no bags, or X is something else.
        BagError: a bag cannot be used; names its place.
        GraphError: coordinates contradict the stride, or a `Bag` was made with another graph.
    """
    items = items_of(X)
    if coords is not None and len(coords) != len(items):
        raise InputError(f"there are {len(items)} bags but {len(coords)} arrays of coordinates")
    coordinates = [None] * len(items) if coords is None else list(coords)
    return [
        as_bag(item, of_item, place=f"{k} of X", graph=graph)
        for k, (item, of_item) in enumerate(zip(items, coordinates, strict=True))
    ]


def with_own_names(bags: Sequence[Bag]) -> list[Bag]:
    """Return the bags with a number added to each name that an earlier bag has."""
    original_names = {bag.name for bag in bags}
    used_names: set[str] = set()
    renamed: list[Bag] = []
    for bag in bags:
        name = bag.name
        number = 1
        while name in used_names or (number > 1 and name in original_names):
            number += 1
            name = f"{bag.name}-{number}"
        used_names.add(name)
        renamed.append(bag if number == 1 else replace(bag, name=name))
    return renamed


def items_of(X: Any) -> list[Any]:
    """Return the bags in X as they were given.

    Raises:
        InputError: there are none, or X is something else.
    """
    if isinstance(X, np.ndarray | Tensor):
        is_object = isinstance(X, np.ndarray) and X.dtype == object
        if X.ndim != 3 and not (is_object and X.ndim == 1):
            one = " (one bag? give it in a list)" if X.ndim == 2 else ""
            raise InputError(f"X is an array of shape {tuple(X.shape)}{one}; {EXPECTED}")
    elif hasattr(X, "tocsr") or hasattr(X, "columns"):
        sparse = "sparse " if hasattr(X, "tocsr") else ""
        raise InputError(f"X is a {sparse}{type(X).__name__}, whose rows are no bags; {EXPECTED}")
    elif isinstance(X, Bag | str | bytes | dict) or not isinstance(X, Sized):
        raise InputError(f"X is a {type(X).__name__}; {EXPECTED}")
    items = list(X)  # pyright: ignore[reportArgumentType] - it has a length
    if not items:
        raise InputError(f"X has 0 bags; {EXPECTED}")
    return items


def as_numbers(values: Any, *, what: str) -> Float[np.ndarray, "..."]:
    """Return finite targets in float64.

    Raises:
        InputError: one is not a number, or not finite.
    """
    try:
        numbers = np.asarray(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"y holds something else than {what}: {error}") from error
    if not bool(np.isfinite(numbers).all()):
        raise InputError(
            "y contains NaN or infinity, but a value is needed for each bag: leave bags without "
            "one out"
        )
    return numbers

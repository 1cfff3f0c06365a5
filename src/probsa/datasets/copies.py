"""Stage 5: bags of a folder that hold the same instances, in whole or in part, in any order.

Two rows are one when they differ by less than `SAME` of their length, features counted in their
deviations. Rows that a bag repeats (blank patches) say nothing and are left out. Bags are read
once; 64 bytes a row are kept. A slide patched anew on another grid has other rows: not found.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from .bag_set import BagSet

SAME = 0.005
"""Relative difference of two rows that are one. Of bags that share nothing, the nearest rows of
real data differ by 0.02 (tiles of colon tissue, plain features), 0.13 (CT) and more; float16
rounding by 0.0003."""
SHARE = 0.5
"""Share of the rows looked for, of either bag, that the other must have."""
LEAST = 3
"""Rows that must be found; bags of fewer are compared as wholes only."""
PROBES = 64
"""Rows looked for of each bag, evenly spaced over those that it does not repeat."""
WIDTH = 16
"""Dimensions of the random projection in which candidates are looked for."""
REACH = 2.0
"""Radius there, in units of `SAME`: a projection stretches one difference in a thousand so far."""
NEAREST = 8
"""Probes looked at around a row: its own bag's (one at most) and those of seven copies."""
SAMPLE = 32
"""Bags that the scale of the features is taken from."""
FLAT = 0.05
"""Least deviation of a feature, in units of its mean: what rounding does to a constant counts
for nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Two bags that share instances."""

    first: str
    second: str
    kind: Literal["copy", "near-copy"]
    """`copy`: the same features, bit for bit, in any order."""
    share: float
    """Of the rows of one bag that were looked for, how many the other has; 1 for a copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sketch:
    """What is kept of a bag."""

    rows: int
    digest: bytes
    """Of the rows as a set with repetitions: the order does not matter."""
    projected: Float[np.ndarray, "rows width"]
    """float32: rows divided by their length, projected."""
    probes: Int[np.ndarray, " probes"]


def find_copies(bags: BagSet, names: Sequence[str]) -> list[Copy]:
    """Every pair of these bags with the same or nearly the same rows.

    Args:
        bags: a folder of features.
        names: the bags to compare, each with each.

    Raises:
        BagError: a bag cannot be read.
    """
    names = list(dict.fromkeys(names))
    if len(names) < 2:
        return []
    mean, scale = _scale(bags, names)
    mixing = np.random.default_rng(0).normal(size=(len(mean), WIDTH)).astype(np.float32)
    mixing /= np.sqrt(WIDTH)
    sketches = [_sketch(_features(bags, n), mean, scale, mixing) for n in names]
    found = []
    for a, b in sorted(_equal(sketches) | _candidates(sketches)):
        if sketches[a].digest == sketches[b].digest:
            kind, share = "copy", 1.0
        else:
            share = _verified(bags, names, sketches, scale, pair=(a, b))
            kind = "near-copy"
        if share >= SHARE:
            found.append(Copy(first=names[a], second=names[b], kind=kind, share=share))
    return found


def _features(bags: BagSet, name: str) -> Float[np.ndarray, "rows features"]:
    return np.asarray(bags.stored(name).features, np.float32)


def _scale(
    bags: BagSet, names: Sequence[str]
) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, " features"]]:
    """Mean and deviation of each feature, float32, over some of the bags."""
    some = np.unique(np.linspace(0, len(names) - 1, SAMPLE).astype(int))
    n, total, squares = 0, np.zeros(()), np.zeros(())
    for k in some:
        x = _features(bags, names[int(k)]).astype(np.float64)
        n, total, squares = n + len(x), total + x.sum(0), squares + (x**2).sum(0)
    mean = total / n
    deviation = np.sqrt(np.maximum(squares / n - mean**2, 0))
    scale = np.maximum(deviation, FLAT * np.abs(mean))
    scale[scale == 0] = 1
    return mean.astype(np.float32), scale.astype(np.float32)


def _sketch(
    x: Float[np.ndarray, "rows features"],
    mean: Float[np.ndarray, " features"],
    scale: Float[np.ndarray, " features"],
    mixing: Float[np.ndarray, "features width"],
) -> _Sketch:
    whole = x + np.float32(0)  # −0 is 0
    digests = sorted(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in whole)
    length = np.linalg.norm(x / scale, axis=1, keepdims=True)
    projected = ((x - mean) / scale) @ mixing / np.maximum(length, 1e-12)
    tree = KDTree(projected)
    # the nearest row but the row itself
    beside = tree.query(projected, k=2, distance_upper_bound=2 * REACH * SAME)[0][:, 1]
    alone = np.flatnonzero(np.isinf(beside))
    chosen = np.unique(np.linspace(0, max(len(alone) - 1, 0), PROBES).astype(int))
    return _Sketch(
        rows=len(x),
        digest=hashlib.blake2b(b"".join(digests)).digest(),
        projected=projected.astype(np.float32),
        probes=alone[chosen[: len(alone)]],
    )


def _equal(sketches: Sequence[_Sketch]) -> set[tuple[int, int]]:
    """Pairs of bags with the same rows."""
    by_digest: dict[bytes, list[int]] = {}
    for k, s in enumerate(sketches):
        by_digest.setdefault(s.digest, []).append(k)
    alike = [group for group in by_digest.values() if len(group) > 1]
    return {(a, b) for group in alike for i, a in enumerate(group) for b in group[i + 1 :]}


def _candidates(sketches: Sequence[_Sketch]) -> set[tuple[int, int]]:
    """Pairs in which one bag seems to have enough of the other's probes."""
    owner = np.repeat(np.arange(len(sketches)), [len(s.probes) for s in sketches])
    if not len(owner):
        return set()
    wanted = KDTree(np.concatenate([s.projected[s.probes] for s in sketches]))
    found = set()
    for b, sketch in enumerate(sketches):
        near = wanted.query(sketch.projected, k=NEAREST, distance_upper_bound=REACH * SAME)[1]
        hit = np.unique(near)
        counts = np.bincount(owner[hit[hit < len(owner)]], minlength=len(sketches))
        for a in np.flatnonzero(counts >= LEAST).tolist():
            if a != b and counts[a] >= SHARE * len(sketches[a].probes):
                found.add((min(a, b), max(a, b)))
    return found


def _verified(
    bags: BagSet,
    names: Sequence[str],
    sketches: Sequence[_Sketch],
    scale: Float[np.ndarray, " features"],
    *,
    pair: tuple[int, int],
) -> float:
    """The larger share of one bag's probes that the other has, by all features."""
    z = [_features(bags, names[k]).astype(np.float64) / scale for k in pair]
    shares = []
    for own, other, k in ((z[0], z[1], pair[0]), (z[1], z[0], pair[1])):
        probes = own[sketches[k].probes]
        hits = [_has(other, row) for row in probes]
        shares.append(sum(hits) / len(hits) if sum(hits) >= LEAST else 0.0)
    return max(shares)


def _has(rows: Float[np.ndarray, "rows features"], row: Float[np.ndarray, " features"]) -> bool:
    nearest = np.sqrt(((rows - row) ** 2).sum(1).min())
    return bool(nearest <= SAME * np.linalg.norm(row))

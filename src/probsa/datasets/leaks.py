"""Stage 5: detect leaks of a split: a patient, a bag or a copy of it in several parts.

Two rows are equal if they differ by less than `SAME` times their norm, with features scaled by
their std. Rows that a bag repeats (such as blank patches) are ignored. Bags are read once; 64 bytes
per row are kept. A slide patched again on another grid has different rows and is not found.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import KDTree

from ..errors import BagError, TableError
from ..tasks import SHOWN
from .bag_set import BagSet
from .labels import LabelTable
from .names import SPLIT_PARTS
from .patients import PatientBags
from .splits import Split

SAME = 0.005
"""Largest relative difference of two equal rows. In real data, the nearest rows of unrelated bags
differ by 0.02 (tiles of colon tissue, handcrafted features), 0.13 (CT) or more; float16 rounding
changes a row by 0.0003."""
SHARE = 0.5
"""Share of the probes of one of the two bags that the other must contain."""
LEAST = 3
"""Minimum number of shared probes; smaller bags are only compared as a whole."""
PROBES = 64
"""Rows of each bag that are looked up in others, evenly spaced over those without repeats."""
WIDTH = 16
"""Dimensions of the random projection in which candidates are searched."""
REACH = 2.0
"""Search radius in the projection, in units of `SAME`; it misses one difference in a thousand."""
NEAREST = 8
"""Probes examined around a row: at most one of its own bag, and those of seven copies."""
SAMPLE = 32
"""Number of bags from which the scale of the features is estimated."""
FLAT = 0.05
"""Smallest std of a feature, as a share of its mean, so that rounding of a constant is ignored."""


LeakKind = Literal["patient", "bag", "copy", "near-copy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BagCopy:
    """Two bags that share instances."""

    first: str
    second: str
    kind: Literal["copy", "near-copy"]
    """`copy`: bitwise identical features, in any order."""
    share: float
    """Share of the probes of one bag that the other contains; 1 for a copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sketch:
    """The data kept for each bag."""

    name: str
    digest: bytes
    """Hash of the rows as a multiset, so independent of their order."""
    projected: Float[np.ndarray, "rows width"]
    """float32; rows divided by their norm, then projected."""
    probes: Int[np.ndarray, " probes"]


def find_copies(bags: BagSet, names: Sequence[str]) -> list[BagCopy]:
    """Find all pairs of bags with the same or nearly the same rows.

    Args:
        bags: A folder of features.
        names: The bags to compare with one another. Those that cannot be read are left out, as
            whatever uses them reports them.
    """
    names = list(dict.fromkeys(names))
    statistics = _feature_scale(bags, names) if len(names) > 1 else None
    if statistics is None:
        return []
    mean, scale = statistics
    mixing = np.random.default_rng(0).normal(size=(len(mean), WIDTH)).astype(np.float32)
    mixing /= np.sqrt(WIDTH)
    sketches: list[_Sketch] = []
    for name in names:
        with suppress(BagError):
            x = _features(bags, name)
            sketches.append(_sketch(name, x, mean=mean, scale=scale, mixing=mixing))
    same: dict[bytes, list[int]] = {}
    for k, sketch in enumerate(sketches):
        same.setdefault(sketch.digest, []).append(k)
    equal = {pair for group in same.values() for pair in combinations(group, 2)}
    copies = []
    for i, j in sorted(equal | _candidate_pairs(sketches)):
        one, two = sketches[i], sketches[j]
        if one.digest == two.digest:
            kind, share = "copy", 1.0
        else:
            kind, share = "near-copy", _shared_probes(bags, scale, (one, two))
        if share >= SHARE:
            copies.append(BagCopy(first=one.name, second=two.name, kind=kind, share=share))
    return copies


def _features(bags: BagSet, name: str) -> Float[np.ndarray, "rows features"]:
    x = np.asarray(bags.stored(name).features, np.float32)
    bags.check_width(name, x.shape[1])
    return x


def _feature_scale(
    bags: BagSet, names: Sequence[str]
) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, " features"]] | None:
    """Return the mean and std of each feature, as float32, over a sample of the bags."""
    count, total, squares = 0, np.zeros(()), np.zeros(())
    for index in np.unique(np.linspace(0, len(names) - 1, SAMPLE).astype(int)):
        with suppress(BagError):
            x = _features(bags, names[int(index)]).astype(np.float64)
            count, total, squares = count + len(x), total + x.sum(0), squares + (x**2).sum(0)
    if not count:
        return None
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    scale = np.maximum(std, FLAT * np.abs(mean))
    scale[scale == 0] = 1
    return mean.astype(np.float32), scale.astype(np.float32)


def _sketch(
    name: str,
    x: Float[np.ndarray, "rows features"],
    *,
    mean: Float[np.ndarray, " features"],
    scale: Float[np.ndarray, " features"],
    mixing: Float[np.ndarray, "features width"],
) -> _Sketch:
    rows = x + np.float32(0)  # maps −0 to 0
    digests = sorted(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows)
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(x / scale, axis=1, keepdims=True)
        projected = np.nan_to_num(((x - mean) / scale) @ mixing / np.maximum(lengths, 1e-12))
    # The nearest row is the row itself, so the second is needed.
    nearest = KDTree(projected).query(projected, k=2, distance_upper_bound=2 * REACH * SAME)
    unrepeated = np.flatnonzero(np.isinf(nearest[0][:, 1]))
    picks = np.unique(np.linspace(0, max(len(unrepeated) - 1, 0), PROBES).astype(int))
    return _Sketch(
        name=name,
        digest=hashlib.blake2b(b"".join(digests)).digest(),
        projected=projected.astype(np.float32),
        probes=unrepeated[picks[: len(unrepeated)]],
    )


def _candidate_pairs(sketches: Sequence[_Sketch]) -> set[tuple[int, int]]:
    """Return the pairs in which one bag may contain enough of the other's probes."""
    owner = np.repeat(np.arange(len(sketches)), [len(s.probes) for s in sketches])
    if not len(owner):
        return set()
    probe_tree = KDTree(np.concatenate([s.projected[s.probes] for s in sketches]))
    pairs = set()
    for j, sketch in enumerate(sketches):
        _, nearest = probe_tree.query(
            sketch.projected, k=NEAREST, distance_upper_bound=REACH * SAME
        )
        hits = np.unique(nearest)
        counts = np.bincount(owner[hits[hits < len(owner)]], minlength=len(sketches))
        for i in np.flatnonzero(counts >= LEAST).tolist():
            if i != j and counts[i] >= SHARE * len(sketches[i].probes):
                pairs.add((min(i, j), max(i, j)))
    return pairs


def _shared_probes(
    bags: BagSet, scale: Float[np.ndarray, " features"], pair: tuple[_Sketch, _Sketch]
) -> float:
    """Return the share of one bag's probes that the other contains, the larger of the two."""
    scaled = [_features(bags, sketch.name).astype(np.float64) / scale for sketch in pair]
    shares = []
    for sketch, rows, others in zip(pair, scaled, scaled[::-1], strict=True):
        probes = rows[sketch.probes]
        nearest = np.array([np.sqrt(((others - probe) ** 2).sum(1).min()) for probe in probes])
        hits = int((nearest <= SAME * np.linalg.norm(probes, axis=1)).sum())
        shares.append(hits / len(probes) if hits >= LEAST else 0.0)
    return max(shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Two bags (or one bag) in parts that they must not share."""

    kind: LeakKind
    first: str
    second: str
    parts: tuple[str, str]
    """The part of the first and of the second bag."""
    what: str
    """A description in one sentence."""

    @property
    def across(self) -> bool:
        """Whether the leak joins two parts, rather than being a duplicate within one."""
        return self.parts[0] != self.parts[1]


def find_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[BagCopy] | None = None
) -> list[Leak]:
    """Find patients and bags in several parts, and bags that share features (`find_copies`).

    Args:
        bags: The features; each bag of the split is read once. Of patients, slides are compared.
        table: Label table with the groups (patients) of the bags.
        split: The parts.
        copies: The result of `find_copies`, if known already (from other splits); for patients that
            of their slides.
    """
    named: list[tuple[str, str]] = [
        (n, p) for p in SPLIT_PARTS for n in dict.fromkeys(getattr(split, p))
    ]
    group_of = {b: table.group(row) for row, b in enumerate(table.bags)}
    leaks: list[Leak] = []

    def add(kind: LeakKind, pair: tuple[str, str], parts: tuple[str, str], what: str) -> None:
        leaks.append(Leak(kind=kind, first=pair[0], second=pair[1], parts=parts, what=what))

    part_of: dict[str, str] = {}
    for name, part in named:
        if (first := part_of.setdefault(name, part)) != part:
            add("bag", (name, name), (first, part), f"bag {name!r} is in {first} and in {part}")
    first_bags: dict[str, dict[str, str]] = {}
    for name, part in named:
        first_bags.setdefault(group_of.get(name, name), {}).setdefault(part, name)
    for patient, by_part in first_bags.items():
        (part, name), *others = by_part.items()
        for other, second in others:
            if second != name:  # else already reported as a bag in two parts
                places = f"{part} (bag {name!r}) and in {other} ({second!r})"
                what = f"patient {patient!r} is in {places}"
                add("patient", (name, second), (part, other), what)
    label_of = dict(zip(table.bags, table.labels, strict=True))
    if isinstance(bags, PatientBags):  # copies are slides, whatever else their patients have
        slides = [(slide, n, p) for n, p in named for slide in bags.slides_of(n)]
        label_of = {slide: label_of.get(patient) for slide, patient, _ in slides}
        bags, named = bags.slide_bags, [(slide, p) for slide, _, p in slides]
    part_of = dict(named)
    for copy in find_copies(bags, list(part_of)) if copies is None else copies:
        one, two = copy.first, copy.second
        if one in part_of and two in part_of:
            alike = f"{copy.share:.0%} of the rows alike"
            what = f"bags {one!r} ({part_of[one]}) and {two!r} ({part_of[two]}) have "
            what += "the same features" if copy.kind == "copy" else alike
            what += "" if label_of.get(one) == label_of.get(two) else " but different labels"
            add(copy.kind, (one, two), (part_of[one], part_of[two]), what)
    return leaks


def refuse_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[BagCopy] | None = None
) -> list[Leak]:
    """Reject a split with leaks across parts; return those within a part, for a warning.

    Raises:
        TableError: there are leaks across parts; names the first few, with advice.
    """
    leaks = find_leaks(bags, table, split, copies=copies)
    across = [leak.what for leak in leaks if leak.across]
    if across:
        more = f"; and {len(across) - SHOWN} more" if len(across) > SHOWN else ""
        raise TableError(
            f"the split leaks ({split.origin}): {'; '.join(across[:SHOWN])}{more}. Give bags that "
            f"belong together one group in {table.where}, or leave one of them out"
        )
    return leaks

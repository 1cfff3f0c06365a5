"""Stage 5: detect leaks of a split: a patient, a bag or a copy of it in several parts.

Two rows are equal if they differ by less than `SAME` times their norm, with features scaled by
their std. Rows that a bag repeats (such as blank patches) are ignored. Each bag is read once, and
64 bytes per row are kept; bags that seem to share rows are read again, to compare them. A slide
patched again on another grid has different rows and is not found.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import DisjointSet
from scipy.spatial import KDTree

from ..core import enumerated, group_keys
from ..errors import BagError, TableError
from ..tasks import SHOWN
from .bag_set import BagSet
from .labels import LabelTable
from .names import SPLIT_PARTS, listed
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
ERRORS = 3.0
"""Standard errors by which the estimated difference of two bags may exceed `SAME` before they are
not compared."""
SAMPLE = 32
"""Number of bags from which the scale of the features is estimated."""
FLAT = 0.05
"""Smallest std of a feature, as a share of its mean, so that rounding of a constant is ignored."""


LeakKind = Literal["patient", "bag", "copy", "near-copy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyGroup:
    """Two or more bags that share instances, each with at least one other of them."""

    bags: tuple[str, ...]
    kind: Literal["copy", "near-copy"]
    """`copy`: bitwise identical features in all bags, in any order."""
    share: float
    """Share of the probes of one bag that another contains, the smallest by which a bag belongs to
    the group; 1 for copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sketch:
    """The data kept for each bag, of identical ones for the first."""

    name: str
    digest: bytes
    """Hash of the rows as a multiset, so independent of their order."""
    projected: Float[np.ndarray, "rows width"]
    """float32; rows divided by their norm, then projected."""
    probes: Int[np.ndarray, " probes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """Two sketches, by their indices, of which one may contain enough of the other's probes."""

    pair: tuple[int, int]
    difference: float
    """Estimated relative difference of as many probes as it takes, the nearest ones."""


def find_copies(bags: BagSet, names: Sequence[str]) -> list[CopyGroup]:
    """Find all bags with the same or nearly the same rows as another, in groups.

    Bags that are already in one group are not compared, so a group of k bags takes k - 1
    comparisons. Bags that are related only through others are in their group as well, such as two
    halves of a third bag.

    Args:
        bags: A folder of features.
        names: The bags to compare with one another. Those that cannot be read are left out, as
            whatever uses them reports them.

    Returns:
        The groups, and the bags of each, in the order of `names`.
    """
    names = list(dict.fromkeys(names))
    statistics = _feature_scale(bags, names) if len(names) > 1 else None
    if statistics is None:
        return []
    mean, scale = statistics
    mixing = np.random.default_rng(0).normal(size=(len(mean), WIDTH)).astype(np.float32)
    mixing /= np.sqrt(WIDTH)
    sketches: list[_Sketch] = []
    identical: dict[bytes, list[str]] = {}
    for name in names:
        with suppress(BagError):
            x = _features(bags, name)
            sketch = _sketch(name, x, mean=mean, scale=scale, mixing=mixing)
            if sketch.digest not in identical:
                sketches.append(sketch)
            identical.setdefault(sketch.digest, []).append(name)
    connected = DisjointSet(range(len(sketches)))
    shares: list[tuple[int, float]] = []
    # The nearest first: they join most groups, whose other pairs then need no comparison.
    for candidate in sorted(_candidates(sketches), key=lambda c: (c.difference, c.pair)):
        first, second = candidate.pair
        if connected.connected(first, second):
            continue
        share = _shared_probes(bags, scale, (sketches[first], sketches[second]))
        if share >= SHARE:
            connected.merge(first, second)
            shares.append((first, share))
    position = {name: k for k, name in enumerate(names)}
    groups: list[CopyGroup] = []
    for members in connected.subsets():
        group_names = [name for k in members for name in identical[sketches[k].digest]]
        if len(group_names) < 2:
            continue
        group_shares = [share for k, share in shares if k in members]
        group = CopyGroup(
            bags=tuple(sorted(group_names, key=position.__getitem__)),
            kind="copy" if len(members) == 1 else "near-copy",
            share=min(group_shares, default=1.0),
        )
        groups.append(group)
    return sorted(groups, key=lambda group: position[group.bags[0]])


def _features(bags: BagSet, name: str) -> Float[np.ndarray, "rows features"]:
    x = np.asarray(bags.stored(name).features, np.float32)
    bags.check_width(name, x.shape[1])
    return x


def _feature_scale(
    bags: BagSet, names: Sequence[str]
) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, " features"]] | None:
    """Return the mean and std of each feature, as float32, over a sample of the bags."""
    count = 0
    total = np.zeros(())
    squares = np.zeros(())
    for index in np.unique(np.linspace(0, len(names) - 1, SAMPLE).astype(int)):
        with suppress(BagError):
            x = _features(bags, names[int(index)]).astype(np.float64)
            count += len(x)
            total = total + x.sum(0)
            squares = squares + (x**2).sum(0)
    if not count:
        return None
    mean = total / count
    # E[x²] − E[x]² may round to less than 0
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    # a feature that hardly varies would magnify the noise of its rounding
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


def _candidates(sketches: Sequence[_Sketch]) -> list[_Candidate]:
    """Return the pairs in which one bag may contain enough of the other's probes.

    All probes near a row are looked at, so the time is linear in rows plus pairs.
    """
    owner = np.repeat(np.arange(len(sketches)), [len(s.probes) for s in sketches])
    if not len(owner):
        return []
    probes = np.concatenate([s.projected[s.probes] for s in sketches])
    probe_tree = KDTree(probes)
    smallest: dict[tuple[int, int], float] = {}
    for j, sketch in enumerate(sketches):
        rows = np.unique(sketch.projected, axis=0)
        near = probe_tree.query_ball_point(rows, REACH * SAME, return_sorted=False)
        hits = np.unique(np.fromiter(chain.from_iterable(near), dtype=np.int64))
        hits = hits[owner[hits] != j]
        if not len(hits):
            continue
        distances, _ = KDTree(rows).query(probes[hits])
        for i, owner_distances in _by_owner(owner[hits], distances):
            count = max(LEAST, int(np.ceil(SHARE * len(sketches[i].probes))))
            if len(owner_distances) < count:
                continue
            # A squared distance is a mean of WIDTH squared normal numbers: this is their scale.
            difference = float(np.sqrt(np.mean(np.sort(owner_distances)[:count] ** 2)))
            # the standard error of a scale that is estimated from count × WIDTH numbers
            error = 1 / np.sqrt(2 * WIDTH * count)
            if difference <= SAME * (1 + ERRORS * error):
                pair = (min(i, j), max(i, j))
                smallest[pair] = min(smallest.get(pair, np.inf), difference)
    return [_Candidate(pair=pair, difference=d) for pair, d in smallest.items()]


def _by_owner(
    owners: Int[np.ndarray, " hits"], distances: Float[np.ndarray, " hits"]
) -> Iterator[tuple[int, Float[np.ndarray, " of_owner"]]]:
    """Yield each owner with its distances; `owners` ascend."""
    distinct, starts = np.unique(owners, return_index=True)
    yield from zip(distinct.tolist(), np.split(distances, starts[1:]), strict=True)


def _shared_probes(
    bags: BagSet, scale: Float[np.ndarray, " features"], pair: tuple[_Sketch, _Sketch]
) -> float:
    """Return the share of one bag's probes that the other contains, the larger of the two."""
    first, second = pair
    first_rows = _features(bags, first.name).astype(np.float64) / scale
    second_rows = _features(bags, second.name).astype(np.float64) / scale
    return max(
        _contained_share(first_rows[first.probes], second_rows),
        _contained_share(second_rows[second.probes], first_rows),
    )


def _contained_share(
    probes: Float[np.ndarray, "probes features"], rows: Float[np.ndarray, "rows features"]
) -> float:
    """Return the share of probes that are nearly equal to a row; 0 if fewer than `LEAST` are."""
    # one probe at a time: all distances at once would not fit into memory
    distances = np.array([np.sqrt(((rows - probe) ** 2).sum(1).min()) for probe in probes])
    hits = int((distances <= SAME * np.linalg.norm(probes, axis=1)).sum())
    return hits / len(probes) if hits >= LEAST else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Bags (or one bag) in parts that they must not share."""

    kind: LeakKind
    bags: tuple[str, ...]
    """The bags that belong together; of a patient one for each part, and a bag in several parts is
    named once for each."""
    parts: tuple[str, ...]
    """The part of each of them."""
    patient: str | None = None
    """The patient, of a leak of this kind."""
    share: float | None = None
    """Of copies, see `CopyGroup`."""
    labels_differ: bool = False
    """Of copies, whether their labels differ."""

    @property
    def across(self) -> bool:
        """Whether the leak joins two parts, rather than being a duplicate within one."""
        return len(set(self.parts)) > 1

    @property
    def what(self) -> str:
        """A description in one sentence; of more than two copies, only the first few are named."""
        if self.kind == "bag":
            places = [f"in {part}" for part in self.parts]
            return f"bag {self.bags[0]!r} is {enumerated(places)}"
        if self.kind == "patient":
            rows = zip(self.parts, self.bags, strict=True)
            places = [f"in {part} (bag {bag!r})" for part, bag in rows]
            return f"patient {self.patient!r} is {enumerated(places)}"
        if len(self.bags) == 2:
            return self._pair_text()
        copies = "copies" if self.kind == "copy" else "near-copies"
        places = enumerated([part for part in SPLIT_PARTS if part in self.parts])
        labels = ", with different labels" if self.labels_differ else ""
        return f"{len(self.bags)} {copies} of one bag, in {places}{labels} ({listed(self.bags)})"

    def _pair_text(self) -> str:
        """Describe two copies."""
        first, second = self.bags
        first_part, second_part = self.parts
        alike = "the same features"
        if self.kind == "near-copy":
            alike = f"{self.share:.0%} of the rows alike"
        labels = " but different labels" if self.labels_differ else ""
        return f"bags {first!r} ({first_part}) and {second!r} ({second_part}) have {alike}{labels}"


def find_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[CopyGroup] | None = None
) -> list[Leak]:
    """Find patients and bags in several parts, and bags that share features (`find_copies`).

    Args:
        bags: The features; each bag of the split is read once. Of patients, slides are compared.
        table: Label table with the groups (patients) of the bags.
        split: The parts.
        copies: The result of `find_copies`, if known already (from other splits); for patients that
            of their slides.

    Returns:
        One leak for each patient, each bag, and each group of copies.
    """
    places: list[Place] = []
    for part in SPLIT_PARTS:
        places += [Place(name, part) for name in dict.fromkeys(getattr(split, part))]
    leaks = _bags_in_several_parts(places) + _patients_in_several_parts(places, table)
    label_of = dict(zip(table.bags, table.labels, strict=True))
    if not isinstance(bags, PatientBags):
        part_of = dict(places)
    else:  # copies are slides, whatever else their patients have
        patient_label_of = label_of
        part_of = {}
        label_of = {}
        for patient, part in places:
            for slide in bags.slides_of(patient):
                part_of[slide] = part
                label_of[slide] = patient_label_of.get(patient)
        bags = bags.slide_bags
    if copies is None:
        copies = find_copies(bags, list(part_of))
    for group in copies:
        members = tuple(name for name in group.bags if name in part_of)
        if len(members) > 1:
            leak = Leak(
                kind=group.kind,
                bags=members,
                parts=tuple(part_of[name] for name in members),
                share=group.share,
                labels_differ=len({label_of.get(name) for name in members}) > 1,
            )
            leaks.append(leak)
    return leaks


class Place(NamedTuple):
    """A bag in a part of a split."""

    bag: str
    part: str


def _bags_in_several_parts(places: Sequence[Place]) -> list[Leak]:
    parts_of: dict[str, list[str]] = {}
    for bag, part in places:
        parts_of.setdefault(bag, []).append(part)
    leaks = []
    for bag, parts in parts_of.items():
        if len(parts) > 1:
            leaks.append(Leak(kind="bag", bags=(bag,) * len(parts), parts=tuple(parts)))
    return leaks


def _patients_in_several_parts(places: Sequence[Place], table: LabelTable) -> list[Leak]:
    """Return the patients with bags in several parts; bags in several parts are no reason."""
    patients = group_keys([place.bag for place in places], table.group_of)
    first_bags: dict[str, dict[str, str]] = {}
    for place, patient in zip(places, patients, strict=True):
        first_bags.setdefault(patient, {}).setdefault(place.part, place.bag)
    leaks = []
    for patient, bag_of_part in first_bags.items():
        bags = tuple(bag_of_part.values())
        if len(set(bags)) > 1:
            parts = tuple(bag_of_part)
            leaks.append(Leak(kind="patient", bags=bags, parts=parts, patient=patient))
    return leaks


def refuse_leaks(
    bags: BagSet, table: LabelTable, split: Split, *, copies: Sequence[CopyGroup] | None = None
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

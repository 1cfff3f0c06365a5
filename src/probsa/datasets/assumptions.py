"""Bags that test whether a model respects the assumption of multiple instance learning.

After Raff and Holt, Reproducibility in multiple instance learning: a case for algorithmic unit
tests, NeurIPS 2023, arXiv:2310.17867. The ideas of the three tests are theirs; the sizes and
strengths of these bags are ours. The training bags offer a shortcut that contradicts the
assumption, and the reversed test bags punish it: a model that uses it has an AUROC below 1/2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from ..core import seed_of, write_bag, write_csv
from ..errors import InputError
from .synthetic import STRIDE

AssumptionTest = Literal["single-concept", "multi-concept", "false-frequency"]
"""All instances are N(0, I), shifted along an axis of their own for the concepts A, B and poison.

`single-concept`: a bag is positive if and only if it contains A (1 to 4 instances). In training,
every negative bag contains 1 to 4 instances of poison and no positive bag does, so "positive unless
poisoned" is a shortcut. Reversed: all positive bags contain poison, and no negative bag does.
`multi-concept`: a bag is positive if and only if it contains both A and B (1 to 4 of each);
negative bags contain one of them. Poison as above.
`false-frequency`: as `multi-concept`, without poison. In training, positive bags contain A 6 to 10
times and B once or twice, and negative bags one of them once or twice, so that the frequency of A
is a shortcut. Reversed: positive bags contain A once and B once, negative bags A 6 to 10 times, or
B 6 to 10 times.
"""
ASSUMPTION_TESTS: tuple[AssumptionTest, ...] = get_args(AssumptionTest)
Bags = Literal["train", "val", "like", "reversed"]
"""`like` are test bags that are made as those of training, `reversed` those where the shortcut is
wrong."""

SIDE = 5
"""A bag is a full square of SIDE × SIDE instances."""
SHIFT = {"A": 4.0, "B": 4.0, "poison": 8.0}
"""Shift of a concept along its axis, in standard deviations of the noise."""
AXIS = {"A": 0, "B": 1, "poison": 2}
FEWEST = (1, 4)
RARE, OFTEN = (1, 2), (6, 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class AssumptionBag:
    """One bag of SIDE × SIDE instances."""

    name: str
    part: Bags
    features: Float[np.ndarray, "n features"]
    """float32."""
    label: int
    concept: Int[np.ndarray, " n"]
    """0 for background, else 1 plus the axis of the concept."""


def assumption_bags(
    test: AssumptionTest,
    *,
    seed: int,
    train: int = 100,
    val: int = 30,
    tested: int = 100,
    features: int = 16,
) -> Iterator[AssumptionBag]:
    """Make the bags of a test; half of each part are positive, and equal arguments give equal bags.

    Args:
        test: The test.
        seed: Random seed.
        train: Number of training bags.
        val: Number of validation bags, made as those of training.
        tested: Number of test bags that are made as those of training, and of reversed ones.
        features: Number of features.

    Raises:
        InputError: A number is too small.
    """
    if min(train, val, tested) < 4 or features < len(AXIS):
        raise InputError(
            f"{train} training, {val} validation and {tested} test bags of {features} features: "
            f"expected at least 4 of each and {len(AXIS)} features"
        )
    sizes: dict[Bags, int] = {"train": train, "val": val, "like": tested, "reversed": tested}
    for part, count in sizes.items():
        for k in range(count):
            rng = np.random.default_rng(seed_of(seed, test, part, k))
            counts = _counts(test, rng, positive=k % 2 == 1, turned=part == "reversed")
            yield _bag(f"{part}_{k:03d}", rng, counts, part=part, label=k % 2, features=features)


def write_assumption_bags(
    folder: Path, test: AssumptionTest, *, seed: int, **sizes: int
) -> Sequence[AssumptionBag]:
    """Write `features/<bag>.h5` and `labels.csv` (with a split column), and return the bags.

    Arguments and errors are those of `assumption_bags`. Existing files are replaced.
    """
    bags = list(assumption_bags(test, seed=seed, **sizes))
    y, x = np.divmod(np.arange(SIDE * SIDE), SIDE)
    for bag in bags:
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.features,
            coords=np.stack([x, y], axis=1) * STRIDE,
            kind="slide",
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
    split = {"like": "test", "reversed": "test"}
    rows = [{"bag": b.name, "label": b.label, "split": split.get(b.part, b.part)} for b in bags]
    write_csv(folder / "labels.csv", ("bag", "label", "split"), rows)
    return bags


def _counts(
    test: AssumptionTest, rng: np.random.Generator, *, positive: bool, turned: bool
) -> dict[str, int]:
    """Draw how often a bag contains each concept."""

    def drawn(limits: tuple[int, int]) -> int:
        return int(rng.integers(limits[0], limits[1] + 1))

    either = "A" if rng.random() < 0.5 else "B"
    if test == "false-frequency":
        if positive:
            return {"A": 1, "B": 1} if turned else {"A": drawn(OFTEN), "B": drawn(RARE)}
        return {either: drawn(OFTEN if turned else RARE)}
    concepts = ("A",) if test == "single-concept" else ("A", "B")
    counts = {concept: drawn(FEWEST) for concept in concepts} if positive else {}
    if not positive and test == "multi-concept":
        counts = {either: drawn(FEWEST)}
    if positive == turned:
        counts["poison"] = drawn(FEWEST)
    return counts


def _bag(
    name: str,
    rng: np.random.Generator,
    counts: dict[str, int],
    *,
    part: Bags,
    label: int,
    features: int,
) -> AssumptionBag:
    x = rng.normal(size=(SIDE * SIDE, features))
    places = rng.permutation(SIDE * SIDE)
    concept = np.zeros(SIDE * SIDE, dtype=np.int64)
    start = 0
    for kind, count in counts.items():
        rows = places[start : start + count]
        x[rows, AXIS[kind]] += SHIFT[kind]
        concept[rows] = 1 + AXIS[kind]
        start += count
    return AssumptionBag(
        name=name, part=part, features=x.astype(np.float32), label=label, concept=concept
    )

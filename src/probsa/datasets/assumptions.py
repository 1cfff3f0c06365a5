"""Bags that test whether a model respects the assumption of multiple instance learning.

The tests are those of Raff and Holt, NeurIPS 2023, arXiv:2310.17867, Algorithms 1 to 3, with the
numbers of torchmil's data sets. The training bags offer a shortcut that contradicts the assumption,
and the reversed test bags punish it: a model that uses the shortcut has an AUROC below 1/2.
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
"""Every bag contains 1 to 10 instances of background, N(0, I).

`single-concept` (Algorithm 1): a bag is positive if and only if it contains A (1 to 4 instances),
which is N(0, 9 I) or N(1, I), at random. In training, every negative bag contains one instance of
poison, N(−10, 0.01 I), and no positive bag does, so "positive unless poisoned" is a shortcut.
Reversed: all positive bags contain poison, and no negative bag does.
`multi-concept` (Algorithm 2): A is N(2, 0.01 I) and B is N(3, 0.01 I). A positive bag contains both
equally often (1 to 4 times), a negative bag one instance of A or B. Poison as above.
`false-frequency` (Algorithm 3): A and B as in `multi-concept`, without poison. A positive bag
contains A and B, each once or twice. A negative bag contains A or B, once or twice in training and
35 to 45 times where it is reversed, so that the number of their instances is a shortcut.
"""
ASSUMPTION_TESTS: tuple[AssumptionTest, ...] = get_args(AssumptionTest)
Bags = Literal["train", "val", "like", "reversed"]
"""`like` are test bags that are made as those of training, `reversed` those where the shortcut is
wrong."""

CONCEPTS = ("A", "B", "poison")
BACKGROUND = (1, 10)
FEW, FEWER, MANY = (1, 4), (1, 2), (35, 45)
"""Smallest and largest numbers of instances."""
WIDTH = 8
"""The instances of a bag fill rows of this length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssumptionBag:
    """One bag."""

    name: str
    part: Bags
    features: Float[np.ndarray, "n features"]
    """float32."""
    label: int
    concept: Int[np.ndarray, " n"]
    """0 for background, else 1 plus the position in `CONCEPTS`."""


def assumption_bags(
    test: AssumptionTest,
    *,
    seed: int,
    train: int = 200,
    val: int = 50,
    tested: int = 200,
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
    if min(train, val, tested) < 4 or features < 1:
        raise InputError(
            f"{train} training, {val} validation and {tested} test bags of {features} features: "
            "expected at least 4 of each and 1 feature"
        )
    sizes: dict[Bags, int] = {"train": train, "val": val, "like": tested, "reversed": tested}
    for part, count in sizes.items():
        for k in range(count):
            rng = np.random.default_rng(seed_of(seed, test, part, k))
            counts = _counts(test, rng, positive=k % 2 == 1, turned=part == "reversed")
            background = int(rng.integers(*BACKGROUND, endpoint=True))
            concept = np.repeat(np.arange(4), np.array([background, *counts]))
            rng.shuffle(concept)
            yield AssumptionBag(
                name=f"{part}_{k:03d}",
                part=part,
                features=_features(test, concept, rng, width=features),
                label=k % 2,
                concept=concept,
            )


def write_assumption_bags(
    folder: Path, test: AssumptionTest, *, seed: int, **sizes: int
) -> Sequence[AssumptionBag]:
    """Write `features/<bag>.h5` and `labels.csv` (with a split column), and return the bags.

    Arguments and errors are those of `assumption_bags`. Existing files are replaced.
    """
    bags = list(assumption_bags(test, seed=seed, **sizes))
    for bag in bags:
        y, x = np.divmod(np.arange(len(bag.concept)), WIDTH)
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
) -> tuple[int, int, int]:
    """Draw how often a bag contains each concept."""

    def drawn(limits: tuple[int, int]) -> int:
        return int(rng.integers(*limits, endpoint=True))

    poison = int(positive == turned)
    if test == "single-concept":
        return (drawn(FEW) if positive else 0), 0, poison
    if test == "multi-concept" and positive:
        both = drawn(FEW)
        return both, both, poison
    if test == "false-frequency" and positive:
        return drawn(FEWER), drawn(FEWER), 0
    if test == "multi-concept":
        count = 1
    else:
        count, poison = drawn(MANY if turned else FEWER), 0
    return (count, 0, poison) if rng.random() < 0.5 else (0, count, poison)


def _features(
    test: AssumptionTest, concept: Int[np.ndarray, " n"], rng: np.random.Generator, *, width: int
) -> Float[np.ndarray, "n width"]:
    """Draw the features of instances, float32."""
    mean = np.array([0.0, 2.0, 3.0, -10.0])[concept]
    std = np.array([1.0, 0.1, 0.1, 0.1])[concept]
    if test == "single-concept":
        shifted = rng.random(len(concept)) < 0.5
        mean = np.where(concept == 1, np.where(shifted, 1.0, 0.0), mean)
        std = np.where(concept == 1, np.where(shifted, 1.0, 3.0), std)
    x = rng.normal(size=(len(concept), width))
    return (mean[:, None] + std[:, None] * x).astype(np.float32)

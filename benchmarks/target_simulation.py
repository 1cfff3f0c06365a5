"""Simulated bags for targets beyond two classes, whose true process is known.

A bag is a lattice of instances with 12 features. Normal tissue is N(0, I). Lesion A is shifted by
`SIGNAL` along the first feature and lesion B along the second; both are contiguous. `decoy` tissue
is shifted by −`SIGNAL` along the first feature and says nothing about any target, but it cancels
lesion A in the mean of the bag's features. The best score of a single instance has AUROC Φ(2/√2) =
.921 between lesion A and normal tissue.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from probsa.core import seed_of, write_bag, write_csv
from probsa.datasets.synthetic import STRIDE, blob

FEATURES = 12
SIGNAL = 2.0
NORMAL, LESION_A, LESION_B, DECOY = range(4)
SHIFTS = np.zeros((4, FEATURES))
SHIFTS[LESION_A, 0] = SHIFTS[LESION_B, 1] = SIGNAL
SHIFTS[DECOY, 0] = -SIGNAL


@dataclass(kw_only=True)
class Bag:
    """One simulated slide."""

    name: str
    patient: str
    x: np.ndarray
    tissue: np.ndarray
    """The tissue of each instance: `NORMAL`, `LESION_A`, `LESION_B` or `DECOY`."""
    y: dict[str, object] = field(default_factory=dict)
    """The cells of the target's columns."""
    part: str = "test"

    @property
    def share(self) -> float:
        """Share of the instances that are lesion A."""
        return float((self.tissue == LESION_A).mean())


def make_bag(
    rng: np.random.Generator,
    name: str,
    *,
    a: int = 0,
    b: int = 0,
    decoy: int = 0,
    size: tuple[int, int] = (8, 5),
    patient: str = "",
) -> Bag:
    """Return a bag with given numbers of instances of each lesion, and of decoys."""
    columns, rows = size
    tissue = np.zeros((rows, columns), dtype=int)
    for kind, cells in ((LESION_A, a), (LESION_B, b)):
        if cells:
            tissue[blob(rng, tissue == NORMAL, cells=cells)] = kind
    tissue = tissue.ravel()
    free = np.flatnonzero(tissue == NORMAL)
    tissue[rng.choice(free, min(decoy, len(free)), replace=False)] = DECOY
    x = rng.normal(size=(len(tissue), FEATURES)) + SHIFTS[tissue]
    return Bag(name=name, patient=patient or name, x=x.astype(np.float32), tissue=tissue)


def burden(rng: np.random.Generator) -> tuple[int, int]:
    """Return the numbers of lesion and decoy instances of a bag of 40; a quarter has no lesion."""
    lesion = 0 if rng.random() < 0.25 else int(rng.integers(1, 25))
    return lesion, int(rng.integers(0, 13))


def cohort(task: str, *, bags: int, fresh: int, seed: int) -> list[Bag]:
    """Return `bags` bags to train on, a fifth of which validates, and `fresh` ones to test on."""
    rng = np.random.default_rng(seed_of("target cohort", task, seed))
    made: list[Bag] = []
    for i in range(bags + fresh):
        part = "test" if i >= bags else "val" if i % 5 == 0 else "train"
        for bag in _MAKERS[task](rng, f"b{i:04d}"):
            bag.part = part
            made.append(bag)
    return made


def true_log_hazard(share: float) -> float:
    """Return the log of the hazard per month of a bag."""
    return float(-np.log(60) + 6 * share)


GRADE_SLOPE, GRADE_CUTS = 20.0, (2.0, 5.0, 9.0)
NOISE = 3.0
"""Standard deviation of the measured burden, in percent."""


def _survival(rng: np.random.Generator, name: str) -> list[Bag]:
    lesion, decoy = burden(rng)
    bag = make_bag(rng, name, a=lesion, decoy=decoy)
    event = rng.exponential(1 / np.exp(true_log_hazard(bag.share)))
    censoring = rng.exponential(60)
    time = max(round(float(min(event, censoring)), 2), 0.01)
    bag.y = {"time": time, "event": int(event <= censoring)}
    return [bag]


def _ordinal(rng: np.random.Generator, name: str) -> list[Bag]:
    lesion, decoy = burden(rng)
    bag = make_bag(rng, name, a=lesion, decoy=decoy)
    latent = GRADE_SLOPE * bag.share + rng.logistic()
    bag.y = {"grade": int(sum(latent > cut for cut in GRADE_CUTS))}
    return [bag]


def _regression(rng: np.random.Generator, name: str) -> list[Bag]:
    lesion, decoy = burden(rng)
    bag = make_bag(rng, name, a=lesion, decoy=decoy)
    bag.y = {"burden": round(100 * bag.share + NOISE * float(rng.normal()), 3)}
    return [bag]


def _multilabel(rng: np.random.Generator, name: str) -> list[Bag]:
    present = rng.random(2) < (0.5, 0.4)
    sizes = rng.integers(3, 9, size=2) * present
    bag = make_bag(rng, name, a=int(sizes[0]), b=int(sizes[1]), decoy=int(rng.integers(0, 7)))
    known = rng.random(2) >= 0.2
    if not known.any():  # a bag of which nothing is known cannot train
        known[rng.integers(2)] = True
    bag.y = {f: int(p) if k else "" for f, p, k in zip("ab", present, known, strict=True)}
    bag.y |= {f"true_{f}": int(p) for f, p in zip("ab", present, strict=True)}
    return [bag]


def _multiclass(rng: np.random.Generator, name: str) -> list[Bag]:
    kind, cells = int(rng.integers(3)), int(rng.integers(3, 9))
    bag = make_bag(
        rng,
        name,
        a=cells if kind == LESION_A else 0,
        b=cells if kind == LESION_B else 0,
        decoy=int(rng.integers(0, 7)),
    )
    bag.y = {"label": kind}
    return [bag]


def _patients(rng: np.random.Generator, name: str) -> list[Bag]:
    positive, where = int(rng.random() < 0.5), int(rng.integers(4))
    slides = []
    for s in range(4):
        cells = int(rng.integers(3, 7)) if positive and s == where else 0
        bag = make_bag(
            rng, f"{name}_{s}", a=cells, decoy=int(rng.integers(0, 5)), size=(5, 4), patient=name
        )
        bag.y = {"label": positive}
        slides.append(bag)
    return slides


_MAKERS = {
    "survival": _survival,
    "ordinal": _ordinal,
    "regression": _regression,
    "multilabel": _multilabel,
    "multiclass": _multiclass,
    "patients": _patients,
}


def known_densities(bags: list[Bag]) -> np.ndarray:
    """Return the mean posterior probability of lesions A and B per bag, by the true densities.

    The prior of each tissue is its share among the instances of all bags.
    """
    counts = np.bincount(np.concatenate([b.tissue for b in bags]), minlength=4)
    prior = np.log(np.maximum(counts, 1e-9) / counts.sum())
    rows = []
    for bag in bags:
        distance = ((bag.x[:, None, :] - SHIFTS) ** 2).sum(-1)
        logits = prior - distance / 2
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        rows.append(p[:, [LESION_A, LESION_B]].mean(0))
    return np.array(rows)


def write_cohort(folder: Path, bags: list[Bag], *, columns: list[str], size: int = 8) -> None:
    """Write the bags to `folder/features`, and their labels to `folder/labels.csv`."""
    rows = []
    for bag in bags:
        n = np.arange(len(bag.x))
        write_bag(
            folder / "features" / f"{bag.name}.h5",
            features=bag.x,
            kind="slide",
            coords=np.stack([n % size, n // size], 1) * STRIDE,
            instance_labels=(bag.tissue == LESION_A).astype(np.int64),
        )
        values = {c: bag.y[c] for c in columns}
        rows.append({"bag": bag.name, "group": bag.patient, "split": bag.part, **values})
    write_csv(folder / "labels.csv", ["bag", "group", "split", *columns], rows)

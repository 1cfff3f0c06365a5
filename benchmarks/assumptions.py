"""Train models on the tests of the assumption of multiple instance learning.

    python benchmarks/assumptions.py [--models abmil,vmil] [--seeds 1] [--out FOLDER]

The tests are those of Raff and Holt (NeurIPS 2023), Algorithms 1 to 3, with the numbers of
torchmil's data sets (docs/assumptions.md). A model passes one if its AUROC on reversed test bags is
above 0.5 with the lower limit of its 95 % interval (DeLong), and its AUROC on test bags like those
of training is above 0.5. Rows that `FOLDER/assumptions.csv` has are not computed again, unless the
model could not be trained.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import norm

from probsa.core import TextTable, seed_of, write_bag, write_csv
from probsa.errors import ProbSAError, UnknownName
from probsa.evaluation import load
from probsa.models import arguments, names
from probsa.training import DataConfig, RunConfig, TrainingConfig, open_data, train

TESTS = ("single-concept", "multi-concept", "false-frequency")
BAGS = {"train": 200, "val": 50, "like": 200, "reversed": 200}
"""Bags of each part. `like` are test bags that are made as those of training, `reversed` those
where the shortcut is wrong."""
FEATURES = 16
STRIDE = 256
WIDTH = 8
"""Number of features; pixels between instances, which fill rows of eight."""
BACKGROUND = (1, 10)
FEW = (1, 4)
FEWER = (1, 2)
MANY = (35, 45)
"""Smallest and largest numbers of instances."""
COLUMNS = ("test", "model", "seed", "like", "reversed", "reversed_low", "reason", "passed")
TRAINING = TrainingConfig(
    epochs=10,
    batch_size=16,
    learning_rate=5e-4,
    warmup_epochs=0,
    kl_weight=0.1,
    device="cpu",
    threads=1,
    tensorboard=False,
)
"""The same for all models."""
SAMPLES = {"predict_samples": 100}
"""An argument of the models that have it; all others are their defaults."""

Row = dict[str, str]


def main() -> None:
    """Run the missing tests and print a table."""
    parser = argparse.ArgumentParser(description="Tests of the assumption of MIL.")
    parser.add_argument("--models", default=",".join(names()), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, counted from 0")
    parser.add_argument("--out", type=Path, default=Path("assumptions"), help="output folder")
    given = parser.parse_args()
    models = given.models.split(",")
    for model in models:
        if model not in names():
            raise SystemExit(str(UnknownName("model", model, names())))
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "assumptions.csv"
    rows = {_key(row): row for row in TextTable.read(path).rows} if path.is_file() else {}
    for test in TESTS:
        for seed in range(given.seeds):
            stored = {m: rows.get((test, m, str(seed))) for m in models}
            missing = [m for m, row in stored.items() if row is None or row["reason"]]
            if not missing:
                continue
            with tempfile.TemporaryDirectory() as folder:
                write_bags(Path(folder) / "data", test, seed=seed)
                for model in missing:
                    print(f"{test}, seed {seed}: {model}", flush=True)
                    row = tested(Path(folder), test, model, seed=seed)
                    rows[_key(row)] = row
                    order = sorted(rows.values(), key=_order)
                    write_csv(path, COLUMNS, order)
    print(markdown(list(rows.values())))


def write_bags(folder: Path, test: str, *, seed: int) -> None:
    """Write the bags of a test, half of each part positive, to `features/` and `labels.csv`."""
    rows = []
    for part, k in [(part, k) for part, count in BAGS.items() for k in range(count)]:
        rng = np.random.default_rng(seed_of(seed, test, part, k))
        counts = concept_counts(test, rng, positive=k % 2 == 1, turned=part == "reversed")
        background = int(rng.integers(*BACKGROUND, endpoint=True))
        concept = np.repeat(np.arange(4), np.array([background, *counts]))
        rng.shuffle(concept)
        y, x = np.divmod(np.arange(len(concept)), WIDTH)
        name = f"{part}_{k:03d}"
        write_bag(
            folder / "features" / f"{name}.h5",
            features=draw_features(test, concept, rng),
            coords=np.stack([x, y], axis=1) * STRIDE,
            kind="slide",
            attributes={"patch_size": STRIDE, "patch_size_level0": STRIDE, "overlap": 0},
        )
        split = part if part in ("train", "val") else "test"
        rows.append({"bag": name, "label": k % 2, "split": split})
    write_csv(folder / "labels.csv", ("bag", "label", "split"), rows)


def concept_counts(
    test: str, rng: np.random.Generator, *, positive: bool, turned: bool
) -> tuple[int, int, int]:
    """Draw how often a bag contains the concepts A and B, and poison."""

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
        count = drawn(MANY if turned else FEWER)
        poison = 0
    return (count, 0, poison) if rng.random() < 0.5 else (0, count, poison)


def draw_features(test: str, concept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the features of instances: 0 is background, 1 and 2 are A and B, 3 is poison."""
    mean = np.array([0.0, 2.0, 3.0, -10.0])[concept]
    std = np.array([1.0, 0.1, 0.1, 0.1])[concept]
    if test == "single-concept":
        shifted = rng.random(len(concept)) < 0.5
        mean = np.where(concept == 1, np.where(shifted, 1.0, 0.0), mean)
        std = np.where(concept == 1, np.where(shifted, 1.0, 3.0), std)
    x = rng.normal(size=(len(concept), FEATURES))
    return (mean[:, None] + std[:, None] * x).astype(np.float32)


def tested(folder: Path, test: str, model: str, *, seed: int) -> Row:
    """Train a model on the bags in a folder, and return its row of the table."""
    row = dict.fromkeys(COLUMNS, "") | {"test": test, "model": model, "seed": str(seed)}
    config = RunConfig(
        data=DataConfig(features=folder / "data/features", labels=folder / "data/labels.csv"),
        model=model,
        model_arguments={k: v for k, v in SAMPLES.items() if k in arguments(model)},
        training=TRAINING,
        seed=seed,
        data_seed=seed,
    )
    try:
        train(config, folder / model, overwrite=True)
        predictor = load(folder / model, device="cpu")
        bags = open_data(config.data)
        predictor.model.explains = False
        areas = {}
        for part in ("like", "reversed"):
            own = [name for name in bags.names if name.startswith(part)]
            y = [int(name.rpartition("_")[2]) % 2 for name in own]  # odd numbers are positive
            p = [q.probability[-1] for q in predictor.predict(map(bags.bag, own))]
            areas[part] = auroc(np.array(y), np.array(p))
    except ProbSAError as error:
        return row | {"reason": str(error).partition("\n")[0], "passed": "false"}
    (like, _), (value, se) = areas["like"], areas["reversed"]
    low = value - norm.ppf(0.975) * se
    numbers = {"like": like, "reversed": value, "reversed_low": low}
    passed = str(bool(low > 0.5 and like > 0.5)).lower()
    return row | {k: f"{v:.4f}" for k, v in numbers.items()} | {"passed": passed}


def auroc(y: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """Return the AUROC and its standard error by the method of DeLong et al. (1988).

    >>> auroc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))[0]
    0.75
    """
    above = p[y == 1][:, None] - p[y == 0][None, :]
    placed = (above > 0) + 0.5 * (above == 0)
    m, n = placed.shape
    variance = placed.mean(1).var(ddof=1) / m + placed.mean(0).var(ddof=1) / n
    return float(placed.mean()), float(np.sqrt(variance))


def markdown(rows: list[Row]) -> str:
    """Return a table with a row for each model, with means over the seeds."""
    titles = [f"{test}: like training | reversed | passed" for test in TESTS]
    lines = ["| model | " + " | ".join(titles) + " |", "|---" * (1 + 3 * len(titles)) + "|"]
    for model in sorted({row["model"] for row in rows}):
        cells = [f"`{model}`"]
        for test in TESTS:
            own = [row for row in rows if (row["model"], row["test"]) == (model, test)]
            usable = [row for row in own if not row["reason"]]
            if not usable:
                cells += ["-", "-", own[0]["reason"] if own else "not run"]
                continue
            for column in ("like", "reversed"):
                cells.append(f"{np.mean([float(row[column]) for row in usable]):.3f}")
            cells.append(f"{sum(row['passed'] == 'true' for row in own)} of {len(own)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _key(row: Row) -> tuple[str, str, str]:
    return row["test"], row["model"], row["seed"]


def _order(row: Row) -> tuple[int, str, int]:
    return TESTS.index(row["test"]), row["model"], int(row["seed"])


if __name__ == "__main__":
    main()

"""Train models on the tests of the assumption of multiple instance learning.

    python benchmarks/assumptions.py [--models abmil,vmil] [--seeds 1] [--out FOLDER]

The tests are those of Raff and Holt (NeurIPS 2023), as `probsa.datasets.write_assumption_bags`
makes them (docs/assumptions.md). A model passes one if its AUROC on reversed test bags is above 0.5
with the lower limit of its 95 % interval (DeLong), and its AUROC on test bags like those of
training is above 0.5. Rows that `FOLDER/assumptions.csv` has are not computed again, unless the
model could not be trained.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import norm

from probsa.core import TextTable, write_csv
from probsa.datasets import ASSUMPTION_TESTS, AssumptionTest, write_assumption_bags
from probsa.errors import ProbSAError, UnknownName
from probsa.evaluation import load
from probsa.models import arguments, names
from probsa.training import DataConfig, RunConfig, TrainingConfig, open_data, train

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
    for test in ASSUMPTION_TESTS:
        for seed in range(given.seeds):
            stored = {m: rows.get((test, m, str(seed))) for m in models}
            missing = [m for m, row in stored.items() if row is None or row["reason"]]
            if not missing:
                continue
            with tempfile.TemporaryDirectory() as folder:
                write_assumption_bags(Path(folder) / "data", test, seed=seed)
                for model in missing:
                    print(f"{test}, seed {seed}: {model}", flush=True)
                    row = tested(Path(folder), test, model, seed=seed)
                    rows[_key(row)] = row
                    order = sorted(rows.values(), key=_order)
                    write_csv(path, COLUMNS, order)
    print(markdown(list(rows.values())))


def tested(folder: Path, test: AssumptionTest, model: str, *, seed: int) -> Row:
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
        predictor, bags = load(folder / model, device="cpu"), open_data(config.data)
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
    titles = [f"{test}: like training | reversed | passed" for test in ASSUMPTION_TESTS]
    lines = ["| model | " + " | ".join(titles) + " |", "|---" * (1 + 3 * len(titles)) + "|"]
    for model in sorted({row["model"] for row in rows}):
        cells = [f"`{model}`"]
        for test in ASSUMPTION_TESTS:
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
    return ASSUMPTION_TESTS.index(row["test"]), row["model"], int(row["seed"])  # pyright: ignore


if __name__ == "__main__":
    main()

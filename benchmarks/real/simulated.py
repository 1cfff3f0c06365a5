"""Simulations with a known answer: benefit of smoothness, and false winners of equal methods.

    python benchmarks/real/simulated.py smooth --out runs.csv --cohorts 20    (can be resumed)
    python benchmarks/real/simulated.py smooth --out runs.csv --table
    python benchmarks/real/simulated.py winner --tables 1000

smooth: compares ABMIL with its ProbSA variants, whose smoothness acts in training, and with
`smabmil`, whose Sm operator also smooths predictions, on contiguous and on scattered lesions of the
same seeds. Expected answer: a gain for contiguous lesions that scattered ones do not give.
winner: compares methods of equal quality. Expected answer: a winner in at most 5 % of the tables.
"""

import argparse
import csv
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from probsa.statistics.comparison import compare
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from probsa.core import GraphOptions, TextTable
from probsa.datasets.simulated import Layout, write_simulated
from probsa.evaluation.predictor import load
from probsa.training import train, train_jointly
from probsa.training.config import DataConfig, RunConfig, TrainingConfig
from probsa.training.joint_rules import why_not_jointly
from probsa.training.preparation import open_data, read_split
from probsa.training.run_folder import RunFolder

LAYOUTS: tuple[Layout, ...] = ("contiguous", "scattered")
BASELINE = ("abmil", "0")
METHODS = [BASELINE] + [
    (f"abmil-probsa-{q}", kl) for q in ("dirac", "diag") for kl in ("0.1", "1", "cyclical")
]
METHODS.append(("smabmil", "0"))  # its loss has no smoothness term
METRICS = ("instance_auroc", "instance_ap", "bag_auroc")
HEADER = ("signal", "decoy", "cohort", "layout", "model", "kl_weight", *METRICS, "seconds")


def run_of(data: Path, *, model: str, kl_weight: str, seed: int, epochs: int) -> RunConfig:
    """Return the run file of a model on a cohort."""
    return RunConfig(
        data=DataConfig(
            graph=GraphOptions(weight_scale="median"),
            features=data / "features",
            labels=data / "labels.csv",
            test_fold=0,
        ),
        model=model,
        training=TrainingConfig(
            epochs=epochs,
            batch_size=8,
            learning_rate=3e-4,
            kl_weight="cyclical" if kl_weight == "cyclical" else float(kl_weight),
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
        seed=seed,
    )


def metrics_of(config: RunConfig, folder: RunFolder) -> dict[str, float]:
    """Return a run's metrics on its test fold: lesions within each positive bag, and bags."""
    predictor, bags = load(folder.path, device="cpu"), open_data(config.data)
    tested = list(predictor.predict(bags.bag(n) for n in read_split(folder).test))
    labels = [np.asarray(p.instance_labels) for p in tested]
    y = [int(m.any()) for m in labels]
    lesions = [(m, p.attention_mean) for m, p in zip(labels, tested, strict=True) if m.any()]
    return {
        "instance_auroc": float(np.mean([roc_auc_score(m, f) for m, f in lesions])),
        "instance_ap": float(np.mean([average_precision_score(m, f) for m, f in lesions])),
        "bag_auroc": float(roc_auc_score(y, [p.probability[-1] for p in tested])),
    }


def smooth(a: argparse.Namespace) -> None:
    """Make the runs that `out` does not contain yet, and append a row for each."""
    done = {tuple(r[k] for k in HEADER[:6]) for r in rows_of(a.out)}
    methods = [m for m in METHODS if a.methods is None or "/".join(m) in a.methods.split(",")]
    for cohort in range(a.first, a.first + a.cohorts):
        for layout in LAYOUTS:
            with tempfile.TemporaryDirectory() as name:
                data = Path(name)
                write_simulated(
                    data, bags=a.bags, layout=layout, seed=cohort, size=(a.side, a.side),
                    lesion=(a.lesion // 2, a.lesion), features=a.features, signal=a.signal,
                    decoy=a.decoy,
                )  # fmt: skip
                keys = [
                    (f"{a.signal:g}", f"{a.decoy:g}", str(cohort), layout, *method)
                    for method in methods
                ]
                keys = [key for key in keys if key not in done]
                if not keys:
                    continue
                configs = [
                    run_of(data, model=model, kl_weight=kl, seed=cohort, epochs=a.epochs)
                    for *_, model, kl in keys
                ]
                started = time.perf_counter()
                runs = train_all(configs, data)
                seconds = round((time.perf_counter() - started) / len(keys), 1)
                for key, config, run in zip(keys, configs, runs, strict=True):
                    row = dict(zip(HEADER, key, strict=False)) | metrics_of(config, run)
                    append(a.out, row | {"seconds": seconds})


def train_all(configs: Sequence[RunConfig], folder: Path) -> list[RunFolder]:
    """Train all runs, jointly where possible."""
    outs = [folder / f"run{k}" for k in range(len(configs))]
    joint = [k for k, c in enumerate(configs) if why_not_jointly(c) is None]
    folders = {k: train(configs[k], outs[k]) for k in range(len(configs)) if k not in joint}
    if joint:
        runs = train_jointly(
            [configs[k] for k in joint], [outs[k] for k in joint], state=folder / "joint"
        )
        folders.update(zip(joint, runs, strict=True))
    return [folders[k] for k in range(len(configs))]


def append(path: Path, row: dict[str, object]) -> None:
    """Append a row to the table and print it."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, HEADER, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, or none if it does not exist."""
    return TextTable.read(path).rows if path.is_file() else []


def table(path: Path) -> None:
    """Print gains over ABMIL with t intervals over cohorts, and the effect of the layout."""
    rows = rows_of(path)
    for signal, decoy in sorted({(r["signal"], r["decoy"]) for r in rows}):
        setting_rows = [r for r in rows if (r["signal"], r["decoy"]) == (signal, decoy)]
        ideal = stats.norm.cdf(float(signal) / np.sqrt(2))
        print(f"\nsignal {signal}, decoy {decoy} (best single instance: AUROC {ideal:.3f})\n")
        print("| method | metric | contiguous | gain | scattered | gain | effect of the layout |")
        print("|---|---|---|---|---|---|---|")
        methods = {(r["model"], r["kl_weight"]) for r in setting_rows}
        for model, kl in (m for m in METHODS if m in methods):
            for metric in METRICS:
                print_row(setting_rows, model, kl, metric)


def print_row(rows: Sequence[dict[str, str]], model: str, kl: str, metric: str) -> None:
    """Print one row of the table."""

    def by_cohort(method: tuple[str, str], layout: str) -> dict[str, float]:
        return {
            r["cohort"]: float(r[metric])
            for r in rows
            if (r["model"], r["kl_weight"], r["layout"]) == (*method, layout)
        }

    cells, gains = [], []
    for layout in LAYOUTS:
        values, base = by_cohort((model, kl), layout), by_cohort(BASELINE, layout)
        common = sorted(set(values) & set(base))
        gains.append({c: values[c] - base[c] for c in common})
        mean = f"{np.mean(list(values.values())):.3f}" if values else "-"
        cells += [mean, mean_and_interval(list(gains[-1].values()))]
    cohorts = sorted(set(gains[0]) & set(gains[1]))
    cells.append(mean_and_interval([gains[0][c] - gains[1][c] for c in cohorts]))
    print(f"| {model} λ={kl} | {metric} | {' | '.join(cells)} |")


def mean_and_interval(values: Sequence[float]) -> str:
    """Return the mean with its 95 % t interval over cohorts."""
    if len(values) < 2:
        return f"{values[0]:+.3f}" if values else "-"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def equal_scores(
    rng: np.random.Generator, *, bags: int, methods: int, replicates: int, luck: float
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return labels, patients and scores of methods that are equally good in the population.

    A score is the sum of the label, the difficulty of the patient and bag for all methods, their
    difficulty for this method, and noise of the seed. `luck` is the standard deviation of the
    label's coefficient over the seeds of a method. Patients have one to three bags of one class.
    """
    patients = np.repeat(np.arange(bags), rng.integers(1, 4, size=bags))[:bags]
    y = (rng.random(bags) < 0.45)[patients].astype(int)
    if y.min() == y.max():
        return equal_scores(rng, bags=bags, methods=methods, replicates=replicates, luck=luck)

    def difficulty(scale: float) -> np.ndarray:
        by_patient = rng.normal(size=bags)[patients]
        return scale * (0.7 * by_patient + 0.7 * rng.normal(size=bags))

    common = difficulty(1.0)
    scores = {}
    for k in range(methods):
        strength = 1.6 + luck * rng.normal(size=(replicates, 1))
        noise = 0.4 * rng.normal(size=(replicates, bags))
        scores[f"m{k}"] = strength * y + common + difficulty(0.5) + noise
    return y, patients, scores


def folds_of(y: np.ndarray, patients: np.ndarray, *, count: int) -> np.ndarray:
    """Return the fold of each bag; patients stay together and each class is dealt out in turn."""
    folds = np.zeros(len(y), dtype=int)
    for label in (0, 1):
        for k, patient in enumerate(np.unique(patients[y == label])):
            folds[patients == patient] = k % count
    return folds


def winner(a: argparse.Namespace) -> None:
    """Print the fraction of tables of equal methods that name a winner."""
    print("| bags | methods | seeds | luck | metric | tables | with a winner | fraction [95 %] |")
    print("|---|---|---|---|---|---|---|---|")
    for methods in (int(m) for m in a.sizes.split(",")):
        for replicates in (int(r) for r in a.seeds.split(",")):
            for luck in (float(x) for x in a.luck.split(",")):
                if luck and replicates == 1:
                    continue  # with one seed each, luck would be a difference between the methods
                for metric in a.metrics.split(","):
                    named = wins(
                        a, methods=methods, replicates=replicates, luck=luck, metric=metric
                    )
                    interval = stats.binomtest(named, a.tables).proportion_ci(method="exact")
                    print(
                        f"| {a.least} to {a.most} | {methods} | {replicates} | {luck:g} | {metric} "
                        f"| {a.tables} | {named} | {named / a.tables:.3f} "
                        f"[{interval.low:.3f}, {interval.high:.3f}] |",
                        flush=True,
                    )


def wins(a: argparse.Namespace, *, methods: int, replicates: int, luck: float, metric: str) -> int:
    """Return the number of winners named in `a.tables` tables."""
    named = 0
    for k in range(a.tables):
        rng = np.random.default_rng([a.seed, k, methods, replicates])
        bags = int(rng.integers(a.least, a.most + 1))
        y, patients, scores = equal_scores(
            rng, bags=bags, methods=methods, replicates=replicates, luck=luck
        )
        if metric in ("f1", "accuracy"):
            scores = {n: s >= 0.8 for n, s in scores.items()}
        comparison = compare(
            y, scores, groups=patients.tolist(), metric=metric,  # pyright: ignore[reportArgumentType]
            pooling="within" if a.folds else "pooled",
            folds=folds_of(y, patients, count=a.folds) if a.folds else None,
            resamples=a.resamples, seed=k,
        )  # fmt: skip
        named += comparison.winner is not None
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = parser.add_subparsers(required=True)
    s = parts.add_parser("smooth")
    s.add_argument("--out", type=Path, required=True)
    s.add_argument("--table", action="store_true")
    s.add_argument("--cohorts", type=int, default=20)
    s.add_argument("--first", type=int, default=0, help="seed of the first cohort")
    s.add_argument("--bags", type=int, default=100)
    s.add_argument("--side", type=int, default=10, help="instances along a side of a bag")
    s.add_argument(
        "--lesion", type=int, default=20, help="maximum size of a lesion; the minimum is half of it"
    )
    s.add_argument("--features", type=int, default=16)
    s.add_argument("--signal", type=float, default=2.0)
    s.add_argument("--decoy", type=float, default=0.0, help="strength of a scattered decoy")
    s.add_argument("--epochs", type=int, default=60)
    s.add_argument("--methods", help="subset, for example abmil/0,abmil-probsa-diag/1")
    s.set_defaults(do=lambda a: table(a.out) if a.table else smooth(a))
    w = parts.add_parser("winner")
    w.add_argument("--tables", type=int, default=1000)
    w.add_argument("--sizes", default="2,5", help="number of methods in a table")
    w.add_argument("--seeds", default="1,5", help="number of replicates of a method")
    w.add_argument("--luck", default="0,0.15", help="std over seeds of the label's coefficient")
    w.add_argument("--metrics", default="auroc")
    w.add_argument(
        "--folds", type=int, default=0, help="folds within which to compute the metric; 0: pooled"
    )
    w.add_argument("--least", type=int, default=80, help="minimum number of bags")
    w.add_argument("--most", type=int, default=150, help="maximum number of bags")
    w.add_argument("--resamples", type=int, default=2000)
    w.add_argument("--seed", type=int, default=0)
    w.set_defaults(do=winner)
    a = parser.parse_args()
    torch.set_num_threads(1)
    a.do(a)


if __name__ == "__main__":
    main()

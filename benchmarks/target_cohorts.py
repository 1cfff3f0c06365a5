"""What models make of targets beyond two classes, on cohorts whose right answer is known.

    python benchmarks/target_cohorts.py [--seeds 2] [--bags 300] [--only survival,ordinal] [--out F]

Each cohort has 300 bags (240 train, 60 validate) of 40 instances, and 600 fresh bags that judge.
See `target_simulation` for the process. Beside the models stand: `truth`, predictions from the true
burden and the true law of the target, which no image model can have; `known densities`, the same
likelihood on the mean posterior probability of each lesion by the true densities of the features,
which is close to what the images allow; `mean features`, the same likelihood on the mean of the
features; and `constant`, what the training bags say of any bag (Kaplan-Meier for survival).

Criteria, written before the first run; each is about means over seeds.
1. survival: both models, with hazards and with Cox, come within .03 of Uno's c of `known
   densities`, above `mean features`, and below the integrated Brier score of `constant`.
2. ordinal: quadratic kappa within .05 of `known densities` and above `mean features`; the map has
   an AUROC of at least .80 between lesion and other tissue of a bag (single instances allow .92).
3. regression: R² within .05 of `known densities` and above `mean features`; the 90 % interval
   covers .85 to .95.
4. multilabel, a fifth of the cells missing: mean AUROC within .03 of `known densities`; with
   complete cells at most .02 better; a map per finding finds its own lesion (.80).
5. multiclass: macro AUROC within .03 of `known densities`, and above `mean features`.
6. patients with four slides, one of which bears the lesion of a positive patient: unit `patient`
   has an AUROC of patients at least as high as unit `bag` with the mean over slides, and half of
   the attention lies on the right slide (chance: a quarter).
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score
from target_rivals import (
    Columns,
    constant_columns,
    event_grid,
    linear_columns,
    metrics_of,
    on_grid,
)
from target_simulation import (
    DECOY,
    GRADE_CUTS,
    GRADE_SLOPE,
    LESION_A,
    LESION_B,
    NOISE,
    Bag,
    cohort,
    known_densities,
    true_log_hazard,
    write_cohort,
)

from probsa.core import GraphOptions, write_csv
from probsa.datasets import PatientBags, open_bags, read_table
from probsa.evaluation import load
from probsa.statistics import combine_slides
from probsa.tasks import TargetOptions
from probsa.training import DataConfig, RunConfig, TrainingConfig, train
from probsa.variational import LikelihoodOptions

MODELS = ("abmil-probsa-diag", "evidence-field")
SCALAR_RATE = 10.0
"""Also for three classes, whose default is 1; see `TrainingConfig.scalar_rate`."""
COLUMNS = {
    "survival": ["time", "event"],
    "ordinal": ["grade"],
    "regression": ["burden"],
    "multilabel": ["a", "b"],
    "multiclass": ["label"],
    "patients": ["label"],
}
CLASSES = {
    "ordinal": ("0", "1", "2", "3"),
    "multilabel": ("a", "b"),
    "multiclass": ("0", "1", "2"),
}
SHOWN = {
    "survival": ("uno_c", "integrated_brier"),
    "ordinal": ("quadratic_kappa", "nll"),
    "regression": ("r_squared", "mae", "coverage"),
    "multilabel": ("macro_auroc", "nll"),
    "multiclass": ("macro_auroc", "nll"),
    "patients": ("auroc",),
}
"""The metrics of each table; a map's AUROC within bags and seconds follow."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The metrics of one way to predict the fresh bags of one cohort."""

    task: str
    seed: int
    name: str
    values: dict[str, float]


def run_of(data: Path, task: str, *, model: str, seed: int, **options: object) -> RunConfig:
    """Return the run: small batches, a weak prior and standardised features, as the default recipe.

    Cox compares the bags of a batch, so it has larger ones, and more epochs. Patients are a quarter
    as many bags as slides, so they have four times the epochs, for as many steps.
    """
    cox = options.get("survival") == "cox"
    unit = options.pop("unit", "bag")
    return RunConfig(
        data=DataConfig(
            graph=GraphOptions(weight_scale="median"),
            features=data / "features",
            labels=data / "labels.csv",
            standardize=True,
            targets=TargetOptions(
                task="binary" if task == "patients" else task,
                target=tuple(COLUMNS[task]),
                unit=unit,
            ),
            likelihood=LikelihoodOptions(**options),
        ),
        model=model,
        model_arguments={"embed": 64, "attention_dim": 32},
        training=TrainingConfig(
            epochs=60 if cox else 100 if unit == "patient" else 25,
            batch_size=32 if cox else 8,
            learning_rate=1e-3,
            warmup_epochs=3,
            kl_weight=0.1,
            scalar_rate=None if task == "patients" else SCALAR_RATE,
            select="ema-nll",
            device="cpu",
            threads=1,
            tensorboard=False,
        ),
        seed=seed,
    )


def targets_of(task: str, bags: list[Bag], *, true: bool = False) -> np.ndarray:
    """Return the targets of bags as floats, NaN where a cell is empty."""
    columns = [f"true_{c}" if true and task == "multilabel" else c for c in COLUMNS[task]]
    return np.array(
        [[np.nan if b.y[c] == "" else float(b.y[c]) for c in columns] for b in bags],  # type: ignore[arg-type]
    )


def truth_columns(task: str, bags: list[Bag], grid: np.ndarray) -> Columns | None:
    """Return the predictions of the true law; None where the label follows from the tissue."""
    share = np.array([b.share for b in bags])
    if task == "survival":
        rate = np.exp([true_log_hazard(s) for s in share])
        names = ("risk", *(f"s_{t:g}" for t in grid))
        return Columns(
            values=np.concatenate([rate[:, None], np.exp(-rate[:, None] * grid)], 1), names=names
        )
    if task == "ordinal":
        at_least = 1 / (1 + np.exp(np.array(GRADE_CUTS) - GRADE_SLOPE * share[:, None]))
        edges = np.concatenate([np.ones((len(share), 1)), at_least, np.zeros((len(share), 1))], 1)
        return Columns(values=-np.diff(edges, axis=1), names=CLASSES["ordinal"])
    if task == "regression":
        rest = [100 * share + q * NOISE for q in (-1.6448536, -0.6744898, 0, 0.6744898, 1.6448536)]
        return Columns(
            values=np.stack([100 * share, np.full(len(share), NOISE), *rest], 1),
            names=("mean", "sd", "q05", "q25", "q50", "q75", "q95"),
        )
    return None


def map_aurocs(bags: list[Bag], scores: list[np.ndarray], lesion: int = LESION_A) -> float:
    """Return the mean AUROC of a map between one lesion and all other tissue of a bag."""
    own = [
        roc_auc_score(b.tissue == lesion, s)
        for b, s in zip(bags, scores, strict=True)
        if (b.tissue == lesion).any()
    ]
    return float(np.mean(own))


def judged(task: str, columns: Columns, *, y: np.ndarray, training: np.ndarray) -> dict[str, float]:
    """Return the metrics of the task's table; survival is judged at one grid for all."""
    overall, by_part = metrics_of(
        task,  # type: ignore[arg-type]
        columns,
        y=y,
        training=training,
        classes=CLASSES.get(task, ()),
    )
    values = {k: overall[k].value for k in SHOWN[task] if k in overall}
    if task == "regression":
        values["coverage"] = by_part["90 %"]["coverage"].value
    return {k: float("nan") if v is None else float(v) for k, v in values.items()}


def rows_of(task: str, *, seed: int, bags: int, folder: Path, models: list[str]) -> Iterator[Row]:
    """Train the models on one cohort, and yield the rows of the rivals and of each model."""
    made = cohort(task, bags=bags, fresh=2 * bags, seed=seed)
    parts = {p: [b for b in made if b.part == p] for p in ("train", "val", "test")}
    write_cohort(folder / "data", parts["train"] + parts["val"], columns=COLUMNS[task])
    write_cohort(folder / "fresh", parts["test"], columns=COLUMNS[task])
    y = {p: targets_of(task, b, true=p == "test") for p, b in parts.items()}
    grid = event_grid(y["train"]) if task == "survival" else np.zeros(0)

    def row(name: str, columns: Columns, extra: dict[str, float] | None = None) -> Row:
        values = judged(task, columns, y=y["test"], training=y["train"]) | (extra or {})
        return Row(task=task, seed=seed, name=name, values=values)

    truth = truth_columns(task, parts["test"], grid)
    if truth is not None:
        yield row("truth", truth)
    classes = CLASSES.get(task, ())
    for name, vector in (
        ("known densities", known_densities),
        ("mean features", lambda some: np.array([b.x.mean(0) for b in some], dtype=np.float64)),
    ):
        x = {p: vector(b) for p, b in parts.items()}
        for kind in ("hazards", "cox") if task == "survival" else ("",):
            columns = linear_columns(
                task,  # type: ignore[arg-type]
                train=(x["train"], y["train"]),
                validation=(x["val"], y["val"]),
                test=x["test"],
                classes=classes,
                options=LikelihoodOptions(survival=kind) if kind else None,  # type: ignore[arg-type]
            )
            if kind:
                columns = on_grid(columns, grid, steps=kind == "cox")
            yield row(" ".join(filter(None, [name, kind])), columns)
    constant = constant_columns(task, y["train"], bags=len(parts["test"]), classes=classes)  # type: ignore[arg-type]
    if task == "survival":
        constant = on_grid(constant, grid, steps=True)
    yield row("constant", constant)
    if task == "survival":
        rng = np.random.default_rng(seed)
        noise = np.concatenate([rng.random((len(constant.values), 1)), constant.values[:, 1:]], 1)
        yield row("random risk", Columns(values=noise, names=constant.names))
    if task == "ordinal":  # the best score of a single instance, by the true densities
        best = [b.x[:, 0] for b in parts["test"]]
        extra = {"map": map_aurocs(parts["test"], best)}
        yield Row(task=task, seed=seed, name="single instances", values=extra)
    for model in models:
        for kind in ("hazards", "cox") if task == "survival" else ("",):
            options: dict[str, object] = {"survival": kind} if kind else {}
            columns, extra = model_columns(
                folder, task, model=model, seed=seed, test=parts["test"], options=options
            )
            if kind:
                columns = on_grid(columns, grid, steps=kind == "cox")
            yield row(" ".join(filter(None, [model, kind])), columns, extra)
    if task == "multilabel" and "evidence-field" in models:
        for bag in parts["train"] + parts["val"]:
            bag.y |= {c: bag.y[f"true_{c}"] for c in COLUMNS[task]}
        write_cohort(folder / "data", parts["train"] + parts["val"], columns=COLUMNS[task])
        columns, extra = model_columns(
            folder, task, model="evidence-field", seed=seed, test=parts["test"], options={}
        )
        yield row("evidence-field, complete cells", columns, extra)


def model_columns(
    folder: Path, task: str, *, model: str, seed: int, test: list[Bag], options: dict[str, object]
) -> tuple[Columns, dict[str, float]]:
    """Train a model; return its predictions of the fresh bags, its map's AUROC and its seconds."""
    start = time.process_time()
    config = run_of(folder / "data", task, model=model, seed=seed, **options)
    run = train(config, folder / "run", overwrite=True)
    bags = open_bags(
        folder / "fresh" / "features", graph=config.data.graph, cache_gb=config.data.cache_gb
    )
    found = list(load(run.path, device="cpu").predict(bags.bag(b.name) for b in test))
    names = found[0].outputs or CLASSES.get(task, ())
    columns = Columns(
        values=np.array([p.probability for p in found], dtype=np.float64), names=tuple(names)
    )
    extra = {"seconds": time.process_time() - start}
    scores = [p.attention_mean for p in found]
    if task == "multilabel" and scores[0].ndim == 2:
        for k, (finding, lesion) in enumerate((("a", LESION_A), ("b", LESION_B))):
            extra[f"map {finding}"] = map_aurocs(test, [s[:, k] for s in scores], lesion)
    elif scores[0].ndim == 1:
        extra["map"] = map_aurocs(test, scores)
        decoys = [b for b in test if (b.tissue == DECOY).any()]
        own = {b.name: s for b, s in zip(test, scores, strict=True)}
        extra["map of decoys"] = map_aurocs(decoys, [own[b.name] for b in decoys], DECOY)
    return columns, extra


def patient_rows(*, seed: int, bags: int, folder: Path, models: list[str]) -> Iterator[Row]:
    """Train on slides with copied labels and on patients, and judge patients."""
    made = cohort("patients", bags=bags, fresh=2 * bags, seed=seed)
    seen, test = [b for b in made if b.part != "test"], [b for b in made if b.part == "test"]
    write_cohort(folder / "data", seen, columns=["label"], size=5)
    write_cohort(folder / "fresh", test, columns=["label"], size=5)
    label = {b.patient: int(b.y["label"]) for b in test}  # type: ignore[call-overload]
    where = {b.patient: b.name for b in test if (b.tissue == LESION_A).any()}
    own = known_densities(test)[:, 0]
    names, best = combine_slides(own, [b.patient for b in test], rule="max")

    def auroc(names: list, p: np.ndarray) -> float:
        return float(roc_auc_score([label[str(n)] for n in names], p))

    yield Row(
        task="patients",
        seed=seed,
        name="known densities, largest slide",
        values={"auroc": auroc(names, best)},
    )
    for model in models:
        for unit in ("bag", "patient"):
            start = time.process_time()
            config = run_of(folder / "data", "patients", model=model, seed=seed, unit=unit)
            run = train(config, folder / f"{model} {unit}")
            bags_of = open_bags(folder / "fresh" / "features", graph=config.data.graph)
            predictor = load(run.path, device="cpu")
            if unit == "patient":
                table = read_table(folder / "fresh" / "labels.csv")
                patients = PatientBags(bags_of, table)
                joined = [patients.bag(n) for n in label]
                found = list(predictor.predict(joined))
                p = np.array([f.probability[-1] for f in found], dtype=np.float64)
                shares, right = [], []
                for bag, f in zip(joined, found, strict=True):
                    if bag.name in where:
                        w = np.bincount(bag.slide.numpy(), weights=f.weight_mean)
                        k = bag.slides.index(where[bag.name])
                        shares.append(w[k] / w.sum())
                        right.append(w.argmax() == k)
                values = {"auroc": auroc(list(label), p), "share": float(np.mean(shares))}
                values |= {"right slide": float(np.mean(right))}
                rows = {"": values}
            else:
                found = list(predictor.predict(bags_of.bag(b.name) for b in test))
                p = np.array([f.probability[-1] for f in found], dtype=np.float64)
                of = {b.name: v for b, v in zip(test, p, strict=True)}
                right = [
                    of[name] == max(of[f"{patient}_{s}"] for s in range(4))
                    for patient, name in where.items()
                ]
                rows = {}
                for rule in ("mean", "max"):
                    names, combined = combine_slides(p, [b.patient for b in test], rule=rule)
                    rows[f", {rule}"] = {
                        "auroc": auroc(names, combined),
                        "right slide": float(np.mean(right)),
                    }
            for suffix, values in rows.items():
                values["seconds"] = time.process_time() - start
                name = f"{model}, unit {unit}{suffix}"
                yield Row(task="patients", seed=seed, name=name, values=values)


def table(rows: list[Row]) -> str:
    """Return a table for each task: means over seeds, with their ranges."""
    lines = []
    for task in dict.fromkeys(r.task for r in rows):
        own = [r for r in rows if r.task == task]
        keys = list(dict.fromkeys(k for r in own for k in r.values))
        lines += ["", f"| {task} | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
        for name in dict.fromkeys(r.name for r in own):
            cells = []
            for key in keys:
                v = [r.values[key] for r in own if r.name == name and key in r.values]
                many = "" if len(v) < 2 else f" ({min(v):.3f}-{max(v):.3f})"
                cells.append(f"{np.mean(v):.3f}{many}" if v else "")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--bags", type=int, default=300)
    parser.add_argument("--only", default=",".join(COLUMNS))
    parser.add_argument("--models", default=",".join(MODELS), help="empty for the rivals alone")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    rows: list[Row] = []
    for seed in range(a.first, a.first + a.seeds):
        for task in a.only.split(","):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                size = a.bags // 2 if task == "patients" else a.bags
                how = {"seed": seed, "bags": size, "folder": folder}
                how["models"] = [m for m in a.models.split(",") if m]
                made = patient_rows(**how) if task == "patients" else rows_of(task, **how)
                for row in made:
                    rows.append(row)
                    print(row, flush=True)
            if a.out is not None:
                write_csv(
                    a.out,
                    ["task", "seed", "name", "metric", "value"],
                    [
                        {"task": r.task, "seed": r.seed, "name": r.name, "metric": k, "value": v}
                        for r in rows
                        for k, v in r.values.items()
                    ],
                )
    print(table(rows))


if __name__ == "__main__":
    main()

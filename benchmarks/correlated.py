"""How far models are from the best possible scores, on chains of correlated instances.

    python benchmarks/correlated.py [--seeds 2] [--bags 300] [--models a,b] [--out results.csv]

The optimum is that of `datasets.correlated`: the exact posterior given the true process. AUROC and
NLL are those of twice as many fresh bags; AP is the mean over positive ones of the average
precision of their instances, by the model's own score. Means over seeds, with their range.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from probsa.core import GraphOptions, write_csv
from probsa.datasets import open_bags, write_correlated
from probsa.evaluation import load
from probsa.training import DataConfig, RunConfig, TrainingConfig, default_recipe, train

CORRELATIONS = (0.0, 0.7, 0.95)
MODELS = ("abmil", "abmil-probsa-diag", "smabmil", "transmil", "evidence-field")
EPOCHS = 20
SIGNAL = 2.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The metrics of one score on the test bags of one cohort."""

    correlation: float
    seed: int
    score: str
    auroc: float
    nll: float
    ap: float


def metrics_of(
    y: list[int], p: list[float], labels: list[np.ndarray], instances: list[np.ndarray]
) -> dict[str, float]:
    """Return AUROC and NLL of bags, and the mean AP of the instances of positive bags."""
    lesions = [(m, f) for m, f in zip(labels, instances, strict=True) if m.any() and not m.all()]
    return {
        "auroc": float(roc_auc_score(y, p)),
        "nll": float(log_loss(y, np.clip(p, 1e-12, 1 - 1e-12))),
        "ap": float(np.mean([average_precision_score(m, f) for m, f in lesions])),
    }


def run_of(data: Path, model: str, *, seed: int) -> RunConfig:
    """Return the run of a model: the default recipe for its model, one recipe for all others."""
    recipe = default_recipe()
    own = model == recipe["model.name"]
    values = {"epochs": EPOCHS, "batch_size": 4, "learning_rate": 3e-4, "kl_weight": 0.1}
    if own:
        values |= {k.partition(".")[2]: v for k, v in recipe.items() if k.startswith("training.")}
        values["epochs"] = EPOCHS
    return RunConfig(
        data=DataConfig(
            graph=GraphOptions(weight_scale="median"),
            features=data / "features",
            labels=data / "labels.csv",
            test_fold=0,
            standardize=bool(own and recipe["data.standardize"]),
        ),
        model=model,
        training=TrainingConfig(device="cpu", threads=1, tensorboard=False, **values),
        seed=seed,
    )


def rows_of(folder: Path, correlation: float, seed: int, a: argparse.Namespace) -> Iterator[Row]:
    """Train the models on one cohort, and yield the rows of the optimum and of each model."""
    made = {"correlation": correlation, "seed": seed, "signal": SIGNAL}
    seen = write_correlated(folder / "data", bags=a.bags, **made)
    test = write_correlated(folder / "fresh", bags=3 * a.bags, **made)[a.bags :]
    y, labels = [b.label for b in test], [b.instance_labels for b in test]

    def row(score: str, p: list[float], instances: list[np.ndarray]) -> Row:
        values = metrics_of(y, p, labels, instances)
        return Row(correlation=correlation, seed=seed, score=score, **values)

    best = [b.optimal for b in test]
    yield row("optimum", [s.probability for s in best], [s.instances for s in best])
    x = np.concatenate([b.features for b in seen])
    of_bag = np.concatenate([np.full(len(b.features), b.label) for b in seen])
    linear = LogisticRegression(max_iter=1000).fit(x, of_bag)
    logits = [linear.decision_function(b.features) for b in test]
    pooled = LogisticRegression().fit(
        [[linear.decision_function(b.features).max()] for b in seen], [b.label for b in seen]
    )
    p = pooled.predict_proba([[v.max()] for v in logits])[:, 1]
    yield row("logistic regression, max", p.tolist(), logits)
    for model in a.models.split(","):
        config = run_of(folder / "data", model, seed=seed)
        run = train(config, folder / model)
        bags = open_bags(folder / "fresh" / "features")
        got = list(load(run.path, device="cpu").predict(bags.bag(b.name) for b in test))
        yield row(model, [float(q.probability[-1]) for q in got], [q.attention_mean for q in got])


def table(rows: list[Row]) -> str:
    """Return means over seeds, with their ranges."""
    lines = ["| ρ | score | AUROC | NLL | AP of instances |", "|---|---|---|---|---|"]
    for correlation in dict.fromkeys(r.correlation for r in rows):
        for score in dict.fromkeys(r.score for r in rows):
            own = [r for r in rows if (r.correlation, r.score) == (correlation, score)]
            cells = [
                f"{np.mean(v):.3f} ({min(v):.3f}-{max(v):.3f})"
                for v in ([getattr(r, k) for r in own] for k in ("auroc", "nll", "ap"))
            ]
            lines.append(f"| {correlation:g} | {score} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--bags", type=int, default=300)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    rows: list[Row] = []
    for correlation in CORRELATIONS:
        for seed in range(a.seeds):
            with tempfile.TemporaryDirectory() as folder:
                for row in rows_of(Path(folder), correlation, seed, a):
                    rows.append(row)
                    print(row, flush=True)
                    if a.out is not None:
                        values = [{f: getattr(r, f) for f in Row.__slots__} for r in rows]
                        write_csv(a.out, list(Row.__slots__), values)
    print(table(rows))


if __name__ == "__main__":
    main()

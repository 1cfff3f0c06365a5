"""Maps and bag scores that look at almost nothing, which a model has to beat.

    python benchmarks/real/null_maps.py --data BAGS --out null_maps.csv [--sets ct_ich]

centre           minus the distance from the middle of the bag's coordinates
norm             the length of the standardised features
mean_features    logistic regression on the mean of a bag's features; its weights make the map
single_instance  logistic regression of single instances on their bag's label, where every bag has
                 weight 1; a bag's score is the mean of its logits

Fold k is for testing and fold k + 1 for validation, on which the regressions choose C by the NLL of
the bags. Features are standardised on the training part. Instance measures are within positive test
bags (the mean over those with both labels) and pooled over the instances of all positive test bags.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from study_metrics import auroc, average_precision, bag_losses, number

from probsa.core import write_csv
from probsa.training.config import DataConfig, RunConfig
from probsa.training.preparation import open_data, prepare

GRID = [10.0**k for k in range(-4, 3)]
"""The values of C."""
MEASURES = (
    "within_auroc", "within_ap", "pooled_auroc", "pooled_ap", "bag_auroc", "bag_nll", "bag_brier"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NullBag:
    """A bag with standardised features."""

    x: np.ndarray
    coords: np.ndarray | None
    truth: np.ndarray | None
    y: int


@dataclass(frozen=True, kw_only=True)
class NullMap:
    """A score of instances, and of bags where there is one: the logit of Y = 1."""

    instances: Callable[[NullBag], np.ndarray]
    bags: Callable[[NullBag], float] | None = None


def centre_map(bag: NullBag) -> np.ndarray:
    """Return minus the distance of each instance from the middle of the bag's coordinates."""
    if bag.coords is None:
        return np.zeros(len(bag.x))
    middle = (bag.coords.min(0) + bag.coords.max(0)) / 2
    return -np.linalg.norm(bag.coords - middle, axis=1)


def linear_map(weights: np.ndarray, bias: float) -> NullMap:
    """Return the map of a linear score; a bag has the mean of its instances' scores."""

    def scores(bag: NullBag) -> np.ndarray:
        return bag.x @ weights + bias

    return NullMap(instances=scores, bags=lambda bag: float(scores(bag).mean()))


def mean_features(train: Sequence[NullBag], *, c: float) -> NullMap:
    """Fit a logistic regression on the means of the bags."""
    model = LogisticRegression(C=c, max_iter=5000)
    model.fit(np.stack([b.x.mean(0) for b in train]), [b.y for b in train])
    return linear_map(model.coef_[0], float(model.intercept_[0]))


def single_instance(train: Sequence[NullBag], *, c: float) -> NullMap:
    """Fit a logistic regression on single instances with their bag's label."""
    sizes = [len(b.x) for b in train]
    model = LogisticRegression(C=c, max_iter=2000)
    model.fit(
        np.concatenate([b.x for b in train]),
        np.repeat([b.y for b in train], sizes),
        sample_weight=np.repeat([1 / n for n in sizes], sizes),
    )
    return linear_map(model.coef_[0], float(model.intercept_[0]))


def chosen(
    fit: Callable[..., NullMap], train: Sequence[NullBag], val: Sequence[NullBag]
) -> tuple[NullMap, float]:
    """Return the fit with the lowest NLL of the validation bags, and its C."""
    fits = [(fit(train, c=c), c) for c in GRID]
    return min(fits, key=lambda f: bag_measures(f[0], val)["bag_nll"])


def bag_measures(m: NullMap, bags: Sequence[NullBag]) -> dict[str, float]:
    """Return AUROC, NLL and Brier score of the bags."""
    if m.bags is None:
        return {}
    y = np.array([b.y for b in bags])
    logit = np.array([m.bags(b) for b in bags])
    p = expit(logit)
    return {
        "bag_auroc": auroc(y, logit),
        "bag_nll": float(bag_losses(y, p).mean()),
        "bag_brier": float(((p - y) ** 2).mean()),
    }


def instance_measures(m: NullMap, bags: Sequence[NullBag]) -> dict[str, float]:
    """Return AUROC and average precision within and over positive bags."""
    positive = [b for b in bags if b.y > 0 and b.truth is not None]
    if not positive:
        return {}
    pairs = [(b.truth, m.instances(b)) for b in positive]
    areas = [auroc(t, s) for t, s in pairs]
    precisions = [average_precision(t, s) for t, s in pairs]
    truth, score = (np.concatenate(v) for v in zip(*pairs, strict=True))
    return {
        "within_auroc": float(np.nanmean(areas)),
        "within_ap": float(np.nanmean(precisions)),
        "pooled_auroc": auroc(truth, score),
        "pooled_ap": average_precision(truth, score),
    }


def parts_of(folder: Path, *, fold: int) -> dict[str, list[NullBag]]:
    """Return the bags of the training, validation and test parts."""
    data = DataConfig(
        features=folder / "features",
        labels=folder / "labels.csv",
        test_fold=fold,
        standardize=True,
    )
    prepared = prepare(RunConfig(data=data, model="abmil"))
    mean, std = (v.numpy() for v in (prepared.standardizer.mean, prepared.standardizer.deviation))
    source = open_data(data)
    parts = {}
    for part in ("train", "val", "test"):
        parts[part] = []
        for name in getattr(prepared.split, part):
            bag = source.bag(name)
            truth = bag.instance_labels
            parts[part].append(
                NullBag(
                    x=(bag.x.float().numpy() - mean) / std,
                    coords=None if bag.coords is None else bag.coords.double().numpy(),
                    truth=None if truth is None else truth.numpy(),
                    y=prepared.labels[name],
                )
            )
    return parts


def rows_of(folder: Path, *, fold: int) -> list[dict[str, object]]:
    """Return a row for each null map of a fold."""
    parts = parts_of(folder, fold=fold)
    mean, mean_c = chosen(mean_features, parts["train"], parts["val"])
    single, single_c = chosen(single_instance, parts["train"], parts["val"])
    maps: dict[str, tuple[NullMap, float | str]] = {
        "centre": (NullMap(instances=centre_map), ""),
        "norm": (NullMap(instances=lambda b: np.linalg.norm(b.x, axis=1)), ""),
        "mean_features": (mean, mean_c),
        "single_instance": (single, single_c),
    }
    return [
        {"set": folder.name, "fold": fold, "map": name, "C": c}
        | instance_measures(m, parts["test"])
        | bag_measures(m, parts["test"])
        for name, (m, c) in maps.items()
    ]


def table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print means over the folds."""
    print("| set | map | " + " | ".join(MEASURES) + " |\n|---|---" + "|---" * len(MEASURES) + "|")
    for key in dict.fromkeys((str(r["set"]), str(r["map"])) for r in rows):
        cells = []
        for measure in MEASURES:
            values = [
                float(str(r[measure]))
                for r in rows
                if (r["set"], r["map"]) == key and r.get(measure) not in (None, "")
            ]
            cells.append(number(float(np.nanmean(values)) if values else float("nan")))
        print(f"| {key[0]} | {key[1]} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", help="folders of --data; all by default")
    parser.add_argument("--folds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    a = parser.parse_args()
    rows: list[dict[str, object]] = []
    for data in a.sets or sorted(p.parent.name for p in a.data.glob("*/labels.csv")):
        for fold in a.folds:
            rows += rows_of(a.data / data, fold=fold)
            write_csv(a.out, ("set", "fold", "map", "C", *MEASURES), rows)
    table(rows)


if __name__ == "__main__":
    main()

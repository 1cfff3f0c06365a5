"""How well doubt finds wrong calls of instances within positive test bags.

The members are the seeds of a fold: an instance is called positive if the mean m over the members
is above t = 0, for log-odds f (`evidence-*`) and for s = μ − logsumexp(μ) + log N of an attention.
Doubt is −|m|, Φ(−|m| / sd) and the sd alone, where sd² is the mean of the members' variances
(within), the variance of their means (between), or the sum of both (total).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import norm
from study_metrics import difference, evidence_scale, number

if TYPE_CHECKING:
    from summary import Chosen, Resampler

KINDS = ("within", "between", "total")


def members(runs: "Sequence[Chosen]") -> dict[str, tuple[np.ndarray, ...]]:
    """Return by bag: truth, scores and variances (members, n) of its positive test bags.

    Args:
        runs: the runs of one fold, one per seed.
    """
    parts: dict[str, list[tuple[np.ndarray, ...]]] = {}
    for run in runs:
        kind = run.trace.header["score_kind"]
        for bag in run.trace.instances(run.choice.weights, run.choice.epoch):
            if bag.label > 0 and (bag.truth >= 0).all():
                s = evidence_scale(bag.mean, kind=kind, has_zero=run.has_zero)
                if s is not None:
                    parts.setdefault(bag.name, []).append((bag.truth > 0, s, bag.variance))
    return {
        name: (v[0][0], np.stack([s for _, s, _ in v]), np.stack([x for *_, x in v]))
        for name, v in parts.items()
    }


def doubts(scores: np.ndarray, variances: np.ndarray) -> dict[str, np.ndarray]:
    """Return every kind of doubt about the calls of instances, given (members, n) arrays.

    Kinds whose standard deviation is 0 everywhere are left out.
    """
    m = scores.mean(0)
    between = scores.var(0, ddof=1) if len(scores) > 1 else np.zeros_like(m)
    parts = {"within": variances.mean(0), "between": between}
    doubt = {"margin": -np.abs(m)}
    for kind in KINDS:
        variance = parts["within"] + parts["between"] if kind == "total" else parts[kind]
        only_one = kind == "total" and not (parts["within"].any() and parts["between"].any())
        if variance.any() and not only_one:
            sd = np.sqrt(np.maximum(variance, 1e-12))
            doubt[f"Φ {kind}"] = norm.logcdf(-np.abs(m) / sd)
            doubt[f"sd {kind}"] = sd
    return doubt


def fold_samples(runs: "Sequence[Chosen]", resampler: "Resampler") -> dict[str, np.ndarray]:
    """Return the AUROC of every kind of doubt in a fold, on the data and on resamples."""
    bags = members(runs)
    if not bags:
        return {}
    truth, scores, variances = (
        np.concatenate(v, axis=-1) for v in zip(*bags.values(), strict=True)
    )
    owners = [name for name, (t, *_) in bags.items() for _ in t]
    wrong = (scores.mean(0) > 0) != truth
    draws = resampler.of(owners)
    samples = {k: draws.ranks(wrong, v)[0] for k, v in doubts(scores, variances).items()}
    return samples | {"wrong": draws.totals(wrong[:, None])[:, 0] / len(wrong)}


def doubt_table(runs: "Mapping[str, Sequence[Chosen]]", resampler: "Resampler") -> None:
    """Print the AUROC of finding wrong calls by method and kind of doubt, means over folds."""
    keys = ["margin", *(f"Φ {k}" for k in KINDS), *(f"sd {k}" for k in KINDS)]
    print(
        "\nDoubt: AUROC of finding wrong calls within positive bags; Δ is the difference of Φ total"
    )
    print("(or of the only other Φ) to the margin, with its interval over groups.\n")
    print("| method | wrong | " + " | ".join(keys) + " | Δ |")
    print("|---" * (len(keys) + 3) + "|")
    for method, of_method in runs.items():
        folds = dict.fromkeys(r.trace.header["fold"] for r in of_method)
        by_fold = [
            fold_samples([r for r in of_method if r.trace.header["fold"] == fold], resampler)
            for fold in folds
        ]
        by_fold = [s for s in by_fold if s]
        if not by_fold:
            continue
        common = [k for k in ("wrong", *keys) if all(k in s for s in by_fold)]
        mean = {k: _mean_over_folds([s[k] for s in by_fold]) for k in common}
        cells = [number(mean[k][0]) if k in mean else "–" for k in ("wrong", *keys)]
        # the one that is shown is fixed in advance, not the best on the test bags
        ratio = next((f"Φ {k}" for k in reversed(KINDS) if f"Φ {k}" in mean), None)
        gain = "–" if ratio is None else difference(mean[ratio] - mean["margin"])
        print(f"| {method} | " + " | ".join([*cells, gain]) + " |")


def _mean_over_folds(samples: Sequence[np.ndarray]) -> np.ndarray:
    values = np.array(samples)
    defined = np.isfinite(values)
    total = np.where(defined, values, 0.0).sum(0)
    return np.where(defined.any(0), total / np.maximum(defined.sum(0), 1), np.nan)

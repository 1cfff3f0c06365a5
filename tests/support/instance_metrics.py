"""Metrics of a single replicate, for comparison with those that `instance_summary` averages."""

import numpy as np

from probsa.evaluation.error_detectors import (
    AREAS,
    detector_samples,
    doubt_gain,
    gain,
    std_over_replicates,
)
from probsa.evaluation.isolated import isolated_samples
from probsa.evaluation.neighbours import neighbours_or_reason
from probsa.evaluation.pools import bag_draws
from probsa.statistics import student_interval


def detector_metrics(bags, positive, *, others=(), groups=None, bootstrap=0, seed=0):
    """Return the metrics of `detector_samples` and gains; `others` are further replicates."""
    inputs = _inputs(bags, positive, groups=groups, bootstrap=bootstrap, seed=seed)
    stds = std_over_replicates([bags, *others]) if others else None
    samples = detector_samples(bags, stds=stds, seed=seed, **inputs)
    samples |= {f"error_auroc_gain_{area}": gain(samples, area=area) for area in AREAS}
    units = {(groups or {}).get(b.name, b.name) for b in bags if positive.get(b.name, False)}
    gains = {
        f"error_auroc_doubt_gain_{area}": 
            doubt_gain(samples, area=area).student(groups=len(units)
        )
        for area in AREAS
    }
    return {name: sample for name, sample in samples.items()} | gains


def isolated_metrics(bags, positive, *, bootstrap=0, seed=0):
    """Return the metrics of `isolated_samples`."""
    inputs = _inputs(bags, positive, groups=None, bootstrap=bootstrap, seed=seed)
    return {name: s for name, s in isolated_samples(bags, **inputs).items()}


def _inputs(bags, positive, *, groups, bootstrap, seed):
    flags = np.array([positive.get(p.name, False) for p in bags], dtype=bool)
    names = [p.name for p in bags]
    draws = bag_draws(names, flags, groups=groups, resamples=bootstrap, seed=seed)
    graphs = {p.name: neighbours_or_reason(p) for p in bags}
    return {"positive": flags, "graphs": graphs, "draws": draws}

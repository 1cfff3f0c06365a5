"""Metrics of a single replicate, for comparison with those that `instance_samples` averages."""

import numpy as np

from probsa.evaluation.error_detectors import AREAS, detector_samples, doubt_gain, gain
from probsa.evaluation.pools import bag_draws


def detector_metrics(bags, positive, *, groups=None, bootstrap=0, seed=0):
    """Return the metrics of `detector_samples` and the gains."""
    flags = np.array([positive.get(p.name, False) for p in bags], dtype=bool)
    names = [p.name for p in bags]
    draws = bag_draws(names, flags, groups=groups, resamples=bootstrap, seed=seed)
    samples = detector_samples(bags, positive=flags, draws=draws)
    samples |= {f"error_auroc_gain_{area}": gain(samples, area=area) for area in AREAS}
    units = {(groups or {}).get(b.name, b.name) for b in bags if positive.get(b.name, False)}
    gains = {
        f"error_auroc_doubt_gain_{area}": doubt_gain(samples, area=area).student(groups=len(units))
        for area in AREAS
    }
    return samples | gains

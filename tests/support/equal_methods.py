"""Cohorts on which no method is better than another: what statistics must not be fooled by."""

import numpy as np


def cohort(rng, *, n=80, bags=1, k=2, seeds=5, signal=1.5, seed_sd=0.2):
    """Equally good methods whose scores err together, by patient; seeds are better and worse.

    Labels are the patient's, but for some bags of patients with several.
    """
    patients = n // bags
    patient = np.repeat(np.arange(patients), bags)
    y = (np.arange(patients) < 0.4 * patients)[patient]
    if bags > 1:
        y = np.where(rng.random(len(y)) < 0.15, rng.random(len(y)) < 0.4, y)
    alike = 0.5 if bags > 1 else 0.0

    def field(*shape):
        of = rng.standard_normal((*shape, patients))[..., patient]
        return np.sqrt(alike) * of + np.sqrt(1 - alike) * rng.standard_normal((*shape, len(y)))

    slope = signal + seed_sd * rng.standard_normal((k, seeds, 1))
    scores = (
        slope * y + np.sqrt(0.6) * field() + np.sqrt(0.2) * (field(k)[:, None] + field(k, seeds))
    )
    return y.astype(int), patient, {f"m{i}": s for i, s in enumerate(scores)}

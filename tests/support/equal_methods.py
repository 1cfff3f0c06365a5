"""Cohorts on which all methods are equally good, to measure the error rates of tests."""

import numpy as np


def cohort(rng, *, n=80, bags=1, k=2, seeds=5, signal=1.5, seed_sd=0.2):
    """Return labels, patients and the scores of k methods with correlated errors.

    Seeds differ in quality. With several bags per patient, the labels of a few bags differ from
    that of their patient.
    """
    patients = n // bags
    patient = np.repeat(np.arange(patients), bags)
    y = (np.arange(patients) < 0.4 * patients)[patient]
    if bags > 1:
        y = np.where(rng.random(len(y)) < 0.15, rng.random(len(y)) < 0.4, y)
    correlation = 0.5 if bags > 1 else 0.0

    def noise(*shape):
        by_patient = np.sqrt(correlation) * rng.standard_normal((*shape, patients))[..., patient]
        return by_patient + np.sqrt(1 - correlation) * rng.standard_normal((*shape, len(y)))

    slope = signal + seed_sd * rng.standard_normal((k, seeds, 1))
    scores = (
        slope * y + np.sqrt(0.6) * noise() + np.sqrt(0.2) * (noise(k)[:, None] + noise(k, seeds))
    )
    return y.astype(int), patient, {f"m{i}": s for i, s in enumerate(scores)}

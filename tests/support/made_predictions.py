"""Predictions made up for tests: lattices and chains with planted labels, without a model."""

import numpy as np

from probsa.evaluation.prediction import Prediction


def made(name, mu, labels=None, **fields):
    """A prediction with these scores; what is not given is empty or zero."""
    mu = np.asarray(mu, dtype=np.float32)
    zero = np.zeros_like(mu)
    held = {
        "probability": (0.5,),
        "attention_variance": zero,
        "weight_mean": zero,
        "weight_variance": zero,
        "degree": zero + 1,
        **fields,
    }
    floats = {k: np.asarray(held.pop(k), np.float32) for k in tuple(held) if k in FLOATS}
    return Prediction(
        name=name,
        std=np.zeros(len(floats["probability"]), np.float32),
        coords=held.pop("coords", None),
        attention_mean=mu,
        instance_labels=None if labels is None else np.asarray(labels, np.int8).ravel(),
        **floats,
        **held,
    )


FLOATS = ("probability", "attention_variance", "weight_mean", "weight_variance", "degree")


def lattice(rows, columns, *, stride=10):
    """Coordinates of a whole rectangle, row by row."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x.ravel(), y.ravel()], axis=1) * stride


def slide(name, image, labels=None, **fields):
    """A whole lattice, scores as an image."""
    image = np.asarray(image, dtype=np.float32)
    return made(name, image.ravel(), labels, coords=lattice(*image.shape), stride=10.0, **fields)


def scan(name, mu, labels=None, **fields):
    """A chain of slices with positions."""
    coords = np.arange(len(mu))[:, None]
    return made(name, mu, labels, coords=coords, kind="ct", **fields)


def cohort(bags=12, *, seed=0, size=8, variance=None):
    """Slides of size² patches; odd ones positive with a square lesion, scores with noise.

    variance: of a patch, from the generator and whether it is called wrongly; none: random.
    """
    found, positive = [], {}
    for b in range(bags):
        rng = np.random.default_rng((seed, b))
        labels = np.zeros((size, size), dtype=int)
        if b % 2:
            y, x = rng.integers(0, size - 3, size=2)
            labels[y : y + 3, x : x + 3] = 1
        mu = rng.normal(size=(size, size)) + 2 * labels
        weight = np.exp(mu) / np.exp(mu).sum()
        wrong = ((weight.size * weight > 1) != labels.astype(bool)).ravel()
        found.append(
            slide(
                f"b{b}",
                mu,
                labels,
                weight_mean=weight.ravel(),
                degree=rng.random(size * size) + 1,
                attention_variance=rng.random(size * size)
                if variance is None
                else variance(rng, wrong),
                probability=(0.2 + 0.6 * (b % 2),),
            )
        )
        positive[f"b{b}"] = bool(b % 2)
    return found, positive

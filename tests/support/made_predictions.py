"""Predictions made without a model: lattices and chains with planted labels."""

from dataclasses import replace

import numpy as np

from probsa.evaluation import Prediction


def made(name, mu, labels=None, **fields):
    """Return a prediction with these scores; all other fields have default values."""
    mu = np.asarray(mu, dtype=np.float32)
    zero = np.zeros_like(mu)
    values = {
        "probability": (0.5,),
        "attention_variance": zero,
        "weight_mean": zero,
        "weight_variance": zero,
        "degree": zero + 1,
        **fields,
    }
    floats = {k: np.asarray(values.pop(k), np.float32) for k in tuple(values) if k in FLOATS}
    return Prediction(
        name=name,
        std=np.zeros(len(floats["probability"]), np.float32),
        coords=values.pop("coords", None),
        attention_mean=mu,
        instance_labels=None if labels is None else np.asarray(labels, np.int8).ravel(),
        **floats,
        **values,
    )


def made_slide(name, coords, share, *, p=1.0, **fields):
    """Return a slide whose patches have these probabilities, relative to that of the slide."""
    given = {"score_kind": "probability", "stride": 512.0, "probability": np.atleast_1d(p)}
    slide = made(name, share, coords=np.asarray(coords), **(given | fields))
    return replace(slide, attention_mean=np.asarray(share, np.float64))


FLOATS = ("probability", "attention_variance", "weight_mean", "weight_variance", "degree")


def lattice(rows, columns, *, stride=10):
    """Return the coordinates of a full rectangle, row by row."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x.ravel(), y.ravel()], axis=1) * stride


def slide(name, image, labels=None, **fields):
    """Return a slide on a full lattice, with scores given as an image."""
    image = np.asarray(image, dtype=np.float32)
    return made(name, image.ravel(), labels, coords=lattice(*image.shape), stride=10.0, **fields)


def scan(name, mu, labels=None, **fields):
    """Return a scan: a chain of slices with positions."""
    coords = np.arange(len(mu))[:, None]
    return made(name, mu, labels, coords=coords, kind="ct", **fields)


def cohort(bags=12, *, seed=0, size=8, variance=None):
    """Return slides with noisy scores, and which of them are positive.

    Args:
        bags: number of slides; those with odd numbers are positive and have a square lesion.
        seed: seed of the scores.
        size: number of patches along a side.
        variance: function of the generator and a mask of wrongly called patches; by default,
            variances are random.
    """
    slides = []
    positive = {}
    for b in range(bags):
        rng = np.random.default_rng((seed, b))
        labels = np.zeros((size, size), dtype=int)
        if b % 2:
            y, x = rng.integers(0, size - 3, size=2)
            labels[y : y + 3, x : x + 3] = 1
        mu = rng.normal(size=(size, size)) + 2 * labels
        weight = np.exp(mu) / np.exp(mu).sum()
        wrong = ((weight.size * weight > 1) != labels.astype(bool)).ravel()
        slides.append(
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
    return slides, positive

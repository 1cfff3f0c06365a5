"""The covariance of AUROCs on the same items by DeLong, DeLong and Clarke-Pearson (1988)."""

import numpy as np


def delong(y, scores):
    """Return the AUROC of each score and their covariance; ties count half."""
    y = np.asarray(y, dtype=bool)
    scores = np.atleast_2d(scores)
    over = scores[:, y][:, :, None] - scores[:, ~y][:, None, :]
    wins = (over > 0) + 0.5 * (over == 0)
    positives, negatives = wins.mean(2), wins.mean(1)
    covariance = np.cov(positives) / y.sum() + np.cov(negatives) / (~y).sum()
    return wins.mean((1, 2)), np.atleast_2d(covariance)

"""DeLong's and the corrected t test below a table equal a plain computation."""

import re

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score
from support.made_experiments import write_folds

from probsa.benchmark.results.results import read_results
from probsa.benchmark.tables.ablation import ablation_table
from probsa.benchmark.tables.comparison import comparison_table

BAGS = [f"b{i:02d}" for i in range(30)]
Y = {b: i % 2 for i, b in enumerate(BAGS)}
FOLDS = [BAGS[0:10], BAGS[10:20], BAGS[20:30]]
SKILL = {"abmil": 0.3, "dsmil": 1.2, "dtfdmil": 0.6}


def guesses(name: str, seed: int) -> dict[str, float]:
    noise = np.random.default_rng([seed, *map(ord, name)]).normal(size=len(BAGS))
    logits = {b: SKILL[name] * (2 * Y[b] - 1) + e for b, e in zip(BAGS, noise, strict=True)}
    return {b: float(np.float32(1 / (1 + np.exp(-v)))) for b, v in logits.items()}


def by_pairs(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> float:
    """p of DeLong's test from all pairs of a positive and a negative bag."""

    def wins(s: np.ndarray) -> np.ndarray:
        pairs = s[y == 1][:, None] - s[y == 0][None, :]
        return (pairs > 0) + 0.5 * (pairs == 0)

    d = wins(a) - wins(b)
    variance = d.mean(1).var(ddof=1) / len(d) + d.mean(0).var(ddof=1) / d.shape[1]
    return float(2 * stats.norm.sf(abs(d.mean()) / np.sqrt(variance)))


def over_folds(a: list[float], b: list[float]) -> float:
    d = np.subtract(a, b)
    t = d.mean() / np.sqrt(d.var(ddof=1) * (1 / 3 + (1 / 3) / (2 / 3)))
    return float(2 * stats.t.sf(abs(t), 2))


def holm_of_two(p: dict[str, float]) -> dict[str, float]:
    least, most = sorted(p, key=lambda n: p[n])
    first = min(1.0, 2 * p[least])
    return {least: first, most: max(first, p[most])}


def values_in_note(notes: tuple[str, ...], beginning: str) -> dict[str, float]:
    (note,) = [n for n in notes if n.startswith(beginning)]
    return {n: float(v) for n, v in re.findall(r"(dsmil|dtfdmil) ([\d.e-]+\d)", note)}


@pytest.fixture
def scores(tmp_path):
    """The mean probability, and the AUROC of each fold, of two seeds."""
    for name in SKILL:
        for seed in (0, 1):
            write_folds(tmp_path, Y, FOLDS, guesses(name, seed), model=name, seed=seed)
    return tmp_path


def test_delong_is_of_all_pairs_of_mean_probabilities(scores):
    below = comparison_table(read_results(scores), "local").follow[0]
    y = np.array(list(Y.values()))
    mean = {n: np.mean([list(guesses(n, s).values()) for s in (0, 1)], axis=0) for n in SKILL}
    wanted = holm_of_two({n: by_pairs(mean[n], mean["abmil"], y) for n in ("dsmil", "dtfdmil")})
    p_values = values_in_note(below.footnotes, "DeLong's test of the pooled AUROC")
    assert p_values == pytest.approx(wanted, rel=6e-3)


def test_corrected_t_is_of_each_folds_mean_over_seeds(scores):
    below = comparison_table(read_results(scores), "local").follow[0]
    auroc = {
        n: [
            np.mean(
                [roc_auc_score([Y[b] for b in f], [guesses(n, s)[b] for b in f]) for s in (0, 1)]
            )
            for f in FOLDS
        ]
        for n in SKILL
    }
    wanted = holm_of_two({n: over_folds(auroc[n], auroc["abmil"]) for n in ("dsmil", "dtfdmil")})
    p_values = values_in_note(below.footnotes, "Nadeau and Bengio's")
    assert p_values == pytest.approx(wanted, rel=6e-3)


def test_patients_with_several_bags_have_no_delong(tmp_path):
    groups = {b: f"p{int(b[1:]) // 10}_{Y[b]}_{int(b[1:]) % 10 // 4}" for b in BAGS}
    for name in ("abmil", "dsmil"):
        write_folds(tmp_path, Y, FOLDS, guesses(name, 0), model=name, groups=groups)
    below = comparison_table(read_results(tmp_path), "local").follow[0]
    (note,) = [n for n in below.footnotes if n.startswith("DeLong")]
    assert note == (
        "DeLong's test is omitted: it assumes independent bags, but patients have several."
    )


def test_an_ablation_has_them_by_variant(tmp_path):
    for kl in (None, 0.1, 1.0):
        model = "abmil" if kl is None else "abmil-probsa-diag"
        predictions = guesses("abmil" if kl is None else "dsmil", 0 if kl is None else int(kl))
        write_folds(tmp_path, Y, FOLDS, predictions, model=model, kl_weight=kl)
    below = ablation_table(read_results(tmp_path)).follow[0]
    notes = [n for n in below.footnotes if "DeLong's test of" in n]
    assert len(notes) == 1 and notes[0].startswith("abmil-probsa-diag: DeLong's")
    assert "λ=0.1" in notes[0] and "λ=1" in notes[0]

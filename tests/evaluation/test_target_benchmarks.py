"""The simulated cohorts of targets have the law that they state, and their rivals are right."""

import sys

import numpy as np
import pytest
from support.paths import ROOT


@pytest.fixture
def modules(monkeypatch):
    """Return the modules `target_simulation` and `target_rivals` of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import target_rivals
    import target_simulation

    yield target_simulation, target_rivals
    for name in ("target_simulation", "target_rivals"):
        sys.modules.pop(name)


def test_cohorts_are_the_same_for_a_seed_and_have_their_parts(modules):
    simulation, _ = modules
    one, same = (simulation.cohort("ordinal", bags=20, fresh=5, seed=3) for _ in range(2))
    assert all(np.array_equal(a.x, b.x) and a.y == b.y for a, b in zip(one, same, strict=True))
    assert [b.part for b in one].count("val") == 4 and [b.part for b in one].count("test") == 5


def test_times_follow_the_stated_hazard(modules):
    simulation, _ = modules
    bags = simulation.cohort("survival", bags=3000, fresh=0, seed=0)
    time = np.array([b.y["time"] for b in bags])
    # of exponential times, the number of events over the accumulated hazard is 1 on average
    hazard = np.exp([simulation.true_log_hazard(b.share) for b in bags])
    events = sum(b.y["event"] for b in bags)
    assert events / (time * hazard).sum() == pytest.approx(1, abs=0.05)


def test_one_slide_of_a_positive_patient_bears_the_lesion(modules):
    simulation, _ = modules
    slides = simulation.cohort("patients", bags=40, fresh=0, seed=0)
    for first in range(0, len(slides), 4):
        four = slides[first : first + 4]
        with_lesion = sum((b.tissue == simulation.LESION_A).any() for b in four)
        assert {b.patient for b in four} == {four[0].patient}
        assert with_lesion == four[0].y["label"]


def test_the_linear_rival_finds_a_line_and_its_noise(modules):
    _, rivals = modules
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    y = (5 + 2 * x[:, :1]) + rng.normal(size=(900, 1))
    parts = {"train": (x[:400], y[:400]), "validation": (x[400:600], y[400:600])}
    found = rivals.linear_columns("regression", **parts, test=x[600:])
    metrics, by_part = rivals.metrics_of("regression", found, y=y[600:], training=y[:400])
    assert metrics["r_squared"].value == pytest.approx(0.8, abs=0.04)
    assert by_part["90 %"]["coverage"].value == pytest.approx(0.9, abs=0.05)


def test_the_linear_rival_ranks_times_and_a_constant_does_not(modules):
    _, rivals = modules
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 2))
    time = rng.exponential(np.exp(-x[:, 0]))
    y = np.stack([time + 0.01, np.ones(600)], 1)
    parts = {"train": (x[:300], y[:300]), "validation": (x[300:400], y[300:400])}
    grid = rivals.event_grid(y[:300])
    found = rivals.linear_columns("survival", **parts, test=x[400:])
    constant = rivals.constant_columns("survival", y[:300], bags=200, classes=())
    values = [
        rivals.metrics_of("survival", columns, y=y[400:], training=y[:300])[0]
        for columns in (rivals.on_grid(found, grid, steps=False), constant)
    ]
    assert values[0]["uno_c"].value > 0.7 and values[1]["uno_c"].value == 0.5
    assert values[0]["integrated_brier"].value < values[1]["integrated_brier"].value - 0.02


def test_survival_at_other_times(modules):
    _, rivals = modules
    columns = rivals.Columns(values=np.array([[1.0, 0.5, 0.25]]), names=("risk", "s_2", "s_4"))
    times = np.array([1.0, 2.0, 3.0, 5.0])
    steps = rivals.on_grid(columns, times, steps=True).values[0, 1:]
    np.testing.assert_allclose(steps, [1, 0.5, 0.5, 0.25])
    curved = rivals.on_grid(columns, times, steps=False).values[0, 1:]
    np.testing.assert_allclose(curved, [0.5**0.5, 0.5, 0.5**1.5, 0.25])

"""Every task keeps the same contract; values are compared with scikit-learn's and by hand."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, f1_score, roc_auc_score

import probsa
from probsa.core import Outputs
from probsa.statistics import Draws
from probsa.tasks import TASKS, Stated, TargetData, format_probability, task_of_classes
from probsa.tasks.events import time_columns
from probsa.tasks.labels import LABELS

N = 40
GRADES = ("low", "mid", "high")
RISK = ("risk", "s_2", "s_5", "s_9")
QUANTILES = ("mean", "sd", "q05", "q25", "q50", "q75", "q95")


@dataclass(frozen=True)
class Predicted:
    probability: np.ndarray
    std: np.ndarray
    outputs: Outputs
    std_between: np.ndarray | None = None


def data(name: str, seed: int = 0) -> TargetData:
    rng = np.random.default_rng(seed)
    of_classes = rng.dirichlet(np.ones(3), N)
    y, predicted, outputs, names = {
        "binary": (rng.integers(0, 2, (N, 1)), rng.random((N, 1)), (), ("benign", "tumour")),
        "multiclass": (rng.integers(0, 3, (N, 1)), of_classes, (), GRADES),
        "ordinal": (rng.integers(0, 3, (N, 1)), of_classes, GRADES, GRADES),
        "multilabel": (rng.integers(0, 2, (N, 3)), rng.random((N, 3)), GRADES, GRADES),
        "regression": (
            rng.normal(size=(N, 1)),
            np.sort(rng.normal(size=(N, 7)), axis=1),
            QUANTILES,
            (),
        ),
        "survival": (
            np.column_stack([rng.uniform(1, 12, N), rng.integers(0, 2, N)]),
            np.column_stack([rng.random(N), -np.sort(-rng.random((N, 3)), axis=1)]),
            RISK,
            (),
        ),
    }[name]
    y = y.astype(np.float64)
    return TargetData(
        task=name,
        y=y,
        predicted=predicted,
        outputs=TASKS[name].outputs_named(outputs),
        names=names,
        training=y[::2],
        threshold=0.4,
        of_means=predicted[::-1],
    )


def values(found) -> dict[str, float | None]:
    return {name: metric.value for name, metric in found.overall.items()}


def first(d: TargetData) -> Predicted:
    return Predicted(
        d.predicted[0].astype(np.float32), np.full(d.predicted.shape[1], 0.1), d.outputs
    )


@pytest.fixture(params=list(TASKS))
def name(request) -> str:
    return request.param


def test_metrics_rivals_and_counts(name):
    d = data(name)
    task = TASKS[name]
    draws = Draws.patients(task.labels.strata(d.y), groups=None, resamples=20, seed=0)
    found = task.metrics(d, draws)
    rivals = task.rivals(d, draws)
    assert all(m.rows is None or len(m.rows) == 21 for m in found.overall.values())
    assert "mean of the features" in rivals
    missing = {m.name for m in task.measures} - {*found.overall}
    assert missing <= {"nll", "crps"}  # the scores of samples, which were not given
    assert all(task.primary.name in rival.overall for rival in rivals.values())
    assert sum(task.labels.counts(d.y, d.names).values()) >= N // 2
    assert task.labels.unjudgeable(d.y, d.y[::2], d.names) is None


def test_a_bag_in_words(name):
    d = data(name)
    task = TASKS[name]
    p = first(d)
    of_bag = d.y[0].tolist()
    said = task.verdict(p, Stated(threshold=0.4, classes=d.names, target=("age",)))
    assert said.call and said.text and np.isfinite([said.value, said.spread]).all()
    assert task.labels.truth_text(of_bag, d.names)
    assert task.labels.truth_text([np.nan] * len(of_bag), d.names) == ""
    assert task.contradicts(p, of_bag, Stated(threshold=0.4)) in (True, False, None)
    assert np.isfinite(task.response(p, task.column(p)))
    assert task.words.towards and task.words.aim and task.words.response
    assert task.page_words(d.outputs, ("age",)).said


def test_columns_of_tables_and_of_maps(name):
    d = data(name)
    task = TASKS[name]
    p = first(data(name))
    assert len(task.labels.label_columns(d.names)) == d.y.shape[1]
    assert task.predicts(d.names, d.outputs, ("age",))
    for columns in (1, 2, 3, 5):
        assert 0 <= task.column(p, columns) < columns
        assert 0 <= task.column(p, columns, called=True) < columns
    assert task.called_positive(d.predicted, Stated(threshold=0.4)).shape == (N,)


def test_strata_of_splits(name):
    d = data(name)
    task = TASKS[name]
    strata = task.labels.bag_strata([*map(tuple, d.y.tolist()), None])
    assert strata[-1] is None
    assert len(task.labels.balanced_strata(strata[:-1], 3)) == N
    assert task.labels.stratum_names([0, 1], ("a", "b"))
    assert task.labels.stratified_by.format("t") and task.labels.content(d.y, d.names)
    assert task.labels.untrained({"train": d.y, "val": d.y, "test": d.y}, d.names) is None
    constant = np.repeat(d.y[:1] * 0, 4, axis=0)
    assert task.labels.untrained({"train": constant, "val": d.y, "test": d.y}, d.names)
    assert set(task.labels.as_two_classes(d.y, d.y[::2]).tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "metric", "expected"),
    [
        ("binary", "auroc", lambda y, p: roc_auc_score(y, p)),
        ("binary", "accuracy", lambda y, p: np.mean((p >= 0.4) == y)),
        ("multiclass", "auroc", lambda y, p: roc_auc_score(y[:, 0], p, multi_class="ovr")),
        ("multiclass", "f1", lambda y, p: f1_score(y, p.argmax(1), average="macro")),
        ("ordinal", "mae", lambda y, p: np.abs((p.cumsum(1) >= 0.5).argmax(1) - y[:, 0]).mean()),
        ("multilabel", "macro_auroc", lambda y, p: roc_auc_score(y, p)),
        ("regression", "mae", lambda y, p: np.abs(y[:, 0] - p[:, 0]).mean()),
    ],
)
def test_metrics_are_of_the_columns_of_the_task(name, metric, expected):
    d = data(name)
    draws = Draws.of_data(N)
    found = TASKS[name].metrics(d, draws).overall[metric].value
    assert found == pytest.approx(expected(d.y, d.predicted))
    if name == "binary":  # two columns are the same as that of p(Y = 1) alone
        both = replace(d, predicted=np.hstack([1 - d.predicted, d.predicted]))
        assert TASKS[name].metrics(both, draws).overall[metric].value == found


def test_rivals_of_classes_keep_the_names_of_means_over_classes():
    found = TASKS["multiclass"].rivals(data("multiclass"), Draws.of_data(N))
    overall = found["mean of the features"].overall
    assert overall["macro_auroc"].value == overall["auroc"].value


def test_the_score_by_which_an_epoch_is_chosen():
    d = data("multilabel")
    macro = roc_auc_score(d.y, d.predicted)
    assert TASKS["multilabel"].validation_score(d.y, d.predicted) == pytest.approx(macro)
    d = data("ordinal")
    median = (np.cumsum(d.predicted, 1) >= 0.5).argmax(1)
    kappa = cohen_kappa_score(d.y[:, 0], median, weights="quadratic")
    assert TASKS["ordinal"].validation_score(d.y, d.predicted) == pytest.approx(kappa)


@pytest.mark.parametrize(
    ("name", "p", "threshold", "calls", "margins"),
    [
        ("binary", [[0.3], [0.6]], None, [0, 1], [0.2, 0.1]),
        ("binary", [[0.7, 0.3], [0.4, 0.6]], 0.2, [1, 1], [0.1, 0.4]),
        ("binary", [[0.25], [0.5], [np.nextafter(0.5, 0)]], None, [0, 1, 0], [0.25, 0.0, 0.0]),
        ("binary", [[0.25], [0.5]], 0.25, [1, 1], [0.0, 0.25]),
        ("multiclass", [[0.2, 0.5, 0.3]], None, [1], [0.2]),
        # The median, not the mode; the margin is that of the nearest cut.
        ("ordinal", [[0.4, 0.0, 0.35, 0.25], [0.1, 0.2, 0.6, 0.1]], None, [2, 2], [0.1, 0.2]),
    ],
)
def test_calls_and_margins_of_classes(name, p, threshold, calls, margins):
    called, margin = TASKS[name].call(np.array(p), threshold)
    assert called.tolist() == calls and margin == pytest.approx(margins)
    positive = [call > 0 for call in calls]
    assert (
        TASKS[name].called_positive(np.array(p), Stated(threshold=threshold)).tolist() == positive
    )


def test_numbers_and_times_call_no_class():
    with pytest.raises(NotImplementedError, match="survival"):
        TASKS["survival"].call(np.ones((1, 3)))
    assert [task_of_classes(k) for k in (1, 2, 3)] == ["binary", "binary", "multiclass"]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [("survival", 3, 0), ("regression", 2, 0), ("multilabel", 3, 1)],
)
def test_the_column_that_is_shown_first(name, columns, expected):
    values = {
        "survival": (9, 0.5, 0.02, 0.01),
        "regression": (3, 1, 1, 2, 3, 4, 5),
        "multilabel": (0.1, 0.9, 0.2),
    }[name]
    p = Predicted(np.array(values), np.zeros(len(values)), data(name).outputs)
    assert TASKS[name].column(p, columns) == expected


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("multiclass", 3, None),
        ("ordinal", 2, ("at least mid", "at least high")),
        ("multilabel", 3, GRADES),
        ("regression", 2, ("mean", "variance")),
        ("survival", 3, ("until 2", "until 5", "until 9")),
        ("survival", 1, None),
    ],
)
def test_columns_of_values_of_instances_have_the_names_of_their_outputs(name, columns, expected):
    assert TASKS[name].column_names(first(data(name)), columns) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ordinal", (2.0,), "2"),
        ("multilabel", (0.0, 1.0), "(0.0, 1.0)"),
        ("regression", (2.5,), "2.5"),
        ("survival", (3.0, 1.0), "(3.0, 1.0)"),
    ],
)
def test_a_likelihood_takes_a_class_a_number_or_one_per_column(name, value, expected):
    assert repr(TASKS[name].labels.model_target(value)) == expected


TASK = rf"""["']({"|".join(TASKS)})["']"""
BRANCH = re.compile(rf"(==|!=|\bin\b)\s*[(\[{{]?\s*{TASK}|{TASK}\s*(==|!=|:)|case\s+{TASK}")
"""A comparison with the name of a task, or a table by it."""
OTHER_MEANINGS = {
    "core/graphs.py": "binary edge weights",
    "models/gtp.py": "a binary adjacency matrix",
    "removed.py": "the flag --survival, which is no more",
}


def test_no_other_room_compares_with_the_name_of_a_task():
    source = Path(probsa.__file__).parent
    found = []
    for path in source.rglob("*.py"):
        name = path.relative_to(source).as_posix()
        if not name.startswith("tasks/") and name not in OTHER_MEANINGS:
            found += [f"{name}: {m[0]}" for m in BRANCH.finditer(path.read_text("utf-8"))]
    assert found == []
    for text in ("a == 'binary'", "a in ('ordinal',)", "{'survival': 1}", "case 'ordinal':"):
        assert BRANCH.search(text)
    assert not BRANCH.search("task: str = 'binary'\nf('ordinal')")


@pytest.mark.parametrize(
    ("name", "y", "expected"),
    [
        ("multiclass", [[2.0], [0.0]], [2, 0]),
        ("multilabel", [[0.0, 0.0], [0.0, 1.0], [np.nan, 0.0]], [0, 1, 0]),
        ("regression", [[3.0], [5.0]], [0, 1]),
        ("survival", [[9.0, 0.0], [2.0, 1.0]], [0, 1]),
    ],
)
def test_null_maps_are_fitted_on_a_class_in_place_of_the_targets(name, y, expected):
    training = np.array([[1.0], [4.0], [9.0]])
    assert TASKS[name].labels.as_two_classes(np.array(y), training).tolist() == expected


def test_only_a_number_outside_its_interval_is_contradicted():
    outputs = TASKS["regression"].outputs_named(QUANTILES)
    p = Predicted(np.array((3.0, 1, 1, 2, 3, 4, 5)), np.zeros(7), outputs)
    found = [TASKS["regression"].contradicts(p, [y]) for y in (3.0, 9.0, 0.5, np.nan)]
    assert found == [False, True, True, None]


def test_maps_of_grades_explain_the_mean_grade():
    p = Predicted(np.array((0.5, 0.2, 0.3)), np.zeros(3), Outputs(GRADES))
    assert TASKS["ordinal"].response(p, 1) == pytest.approx(0.8)


def test_a_rival_of_grades_has_the_shares_of_training():
    d = data("ordinal")
    y = data("ordinal").y[:, 0].astype(int)
    shares = np.bincount(d.training[:, 0].astype(int), minlength=3) / len(d.training)
    rival = TASKS["ordinal"].rivals(d, Draws.of_data(N))["shares of the training bags"]
    assert rival.overall["nll"].value == pytest.approx(-np.log(shares[y]).mean())


def test_times_in_days_and_large_numbers_are_written_without_powers_of_ten():
    outputs = Outputs.of_time_named(("risk", "s_365", "s_1825", "s_3650"))
    days = Predicted(np.array((1234.5, 0.9, 0.4, 0.2)), np.array((151.0, 0, 0.1, 0)), outputs)
    text = TASKS["survival"].verdict(days).text
    assert text == "risk 1234 ± 151 (one model) · S(1825) 0.40 ± 0.1 (one model)"
    outputs = Outputs.of_number_named(QUANTILES)
    cells = Predicted(np.array((1520.0, 99.7, 1200, 1400, 1500, 1600, 1800)), np.zeros(7), outputs)
    verdict = TASKS["regression"].verdict(cells)
    assert verdict.text == "value 1520 ± 100 (noise and model)" and verdict.call == "1200–1800"
    assert LABELS["survival"].truth_text([12045.0, 1.0], ()) == "12045, event"


def test_findings_are_contradicted_at_their_thresholds_whatever_their_names():
    p = Predicted(np.array((0.6, 0.3)), np.zeros(2), Outputs(("nodule, left", "left")))
    for thresholds, y, expected in (
        (None, (1, 0), False),
        (None, (0, 0), True),
        ((0.7, 0.2), (0, 1), False),
        ((0.7, 0.2), (np.nan, 0), True),
        (None, (np.nan, np.nan), None),
    ):
        stated = Stated(thresholds=thresholds)
        assert TASKS["multilabel"].contradicts(p, y, stated) is expected


@pytest.mark.parametrize(
    ("p", "others", "text"),
    [
        (0.25, (), "0.25"),
        (0.9954, (), "0.9954"),
        (0.013, (), "0.013"),
        (0.0, (), "0"),
        (1.0, (), "1"),
        (0.00001, (), "<0.0001"),
        (0.99999, (), ">0.9999"),
        (0.782, (0.784,), "0.782"),
        (0.5, (0.5,), "0.50"),
    ],
)
def test_probabilities_in_texts(p, others, text):
    assert format_probability(p, *others) == text


def test_the_map_of_a_grade_is_that_of_the_called_one():
    p = Predicted(np.array((0.1, 0.2, 0.7)), np.zeros(3), Outputs(GRADES))
    assert TASKS["ordinal"].column(p) == 2
    assert TASKS["ordinal"].column(p, 2) == 1  # of two steps, that below the called grade


def test_a_column_that_speaks_of_censoring_is_no_time_unless_it_has_a_unit():
    header = ["survival", "survival_censored", "months_to_censoring", "followup", "status_time"]
    assert time_columns(header) == [
        "months_to_censoring",
        "status_time",
        "survival",
        "followup",
    ]

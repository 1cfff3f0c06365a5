"""Tables contain the results of the run folders, and winners follow the rule."""

import csv
import shutil

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score
from support.made_experiments import write_folds, write_run

from probsa.benchmark import (
    ResultTable,
    ablation_table,
    comparison_table,
    folds_table,
    instances_table,
    read_results,
    write_tables,
)
from probsa.benchmark.figures.forest import differences
from probsa.benchmark.figures.improvement import MEAN, gains
from probsa.errors import InputError

BAGS = [f"b{i:02d}" for i in range(30)]
Y = {b: i % 2 for i, b in enumerate(BAGS)}
FOLDS = [BAGS[0:10], BAGS[10:20], BAGS[20:30]]


def guesses(name: str, skill: float, *, y=Y) -> dict[str, float]:
    """Return deterministic p(Y = 1) of a method with this much information."""
    rng = np.random.default_rng([ord(c) for c in name])
    noise = rng.normal(size=len(y))
    return {
        b: float(1 / (1 + np.exp(-skill * (2 * v - 1) - e)))
        for (b, v), e in zip(y.items(), noise, strict=True)
    }


def by_fold(p: dict[str, float]) -> list[float]:
    """Return the AUROC of each fold, computed without the code under test."""
    return [roc_auc_score([Y[b] for b in f], [np.float32(p[b]) for b in f]) for f in FOLDS]


def f1_by_fold(p: dict[str, float]) -> list[float]:
    return [f1_score([Y[b] for b in f], [p[b] >= 0.5 for b in f]) for f in FOLDS]


def column(table: ResultTable, key: str) -> dict:
    """Return the cells of a column by the text in the first cell of their row."""
    i = [c.key for c in table.columns].index(key)
    return {row[0].text: row[i] for row in table.rows}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write an experiment of three methods, two seeds and three folds."""
    out = tmp_path_factory.mktemp("small")
    methods = (
        ("abmil", None, 0.3),
        ("abmil-probsa-diag", "cyclical", 0.8),
        ("dsmil", None, 0.5),
    )
    for seed in (0, 1):
        for model, kl, skill in methods:
            p = guesses(f"{model}{seed}", skill)
            write_folds(out, Y, FOLDS, p, model=model, kl_weight=kl, seed=seed)
    return out


@pytest.fixture(scope="module")
def results(written):
    """What tests compute of these results is shared by those that follow."""
    return read_results(written)


@pytest.fixture
def small(written, tmp_path):
    """A copy of the experiment to which runs are added."""
    return shutil.copytree(written, tmp_path / "small")


def test_means_are_of_splits_and_deviations_between_them(results):
    table = comparison_table(results, "local")
    for model, skill in [("abmil", 0.3), ("dsmil", 0.5)]:
        seeds = [guesses(f"{model}{s}", skill) for s in (0, 1)]
        auroc = np.mean([by_fold(p) for p in seeds], axis=0)
        entry = column(table, "toy_auroc")[model]
        assert entry.value == pytest.approx(auroc.mean(), abs=1e-9)
        assert entry.sd == pytest.approx(auroc.std(ddof=1), abs=1e-9)
        f1 = np.mean([f1_by_fold(p) for p in seeds], axis=0)
        entry = column(table, "toy_f1")[model]
        assert entry.value == pytest.approx(f1.mean(), abs=1e-9)
        assert entry.sd == pytest.approx(f1.std(ddof=1), abs=1e-9)


def test_average_ranks_are_over_data_sets_and_metrics_within_the_family(small):
    write_folds(small, Y, FOLDS, guesses("t", 2.0), model="tabmil")
    table = comparison_table(read_results(small), "local")
    names = [row[0].text for row in table.rows]
    # in the paper's order, without the other family
    assert names == ["abmil-probsa-diag λ=cyclical", "abmil", "dsmil"]
    ranks = {n: [] for n in names}
    for key in ("toy_auroc", "toy_f1"):
        values = {n: e.value for n, e in column(table, key).items()}
        assert len(set(values.values())) == 3
        for n in names:
            ranks[n].append(1 + sum(v > values[n] for v in values.values()))
    for n, entry in column(table, "rank").items():
        assert entry.value == pytest.approx(np.mean(ranks[n]))
        assert entry.sd == pytest.approx(np.std(ranks[n], ddof=1))


def test_pooled_values_are_over_all_bags_and_differences_to_the_plain_model(results):
    table = comparison_table(results, "local")
    (pooled,) = table.follow
    labels = [Y[b] for b in BAGS]
    mean = {
        m: np.mean([roc_auc_score(labels, list(guesses(f"{m}{s}", k).values())) for s in (0, 1)])
        for m, k in [("abmil", 0.3), ("dsmil", 0.5)]
    }
    entry = column(pooled, "auroc")["dsmil"]
    assert entry.value == pytest.approx(mean["dsmil"], abs=1e-6)
    assert entry.low < entry.value < entry.high
    difference = column(pooled, "auroc_difference")
    assert difference["dsmil"].value == pytest.approx(mean["dsmil"] - mean["abmil"], abs=1e-6)
    assert difference["dsmil"].low < difference["dsmil"].value < difference["dsmil"].high
    assert difference["abmil"].value is None
    assert "30 test bags (15 positive)" in pooled.footnotes[0]


def test_levels_of_folds_cost_pooled_differences_and_not_those_within(tmp_path):
    """Both methods order each fold equally, but one method's runs differ in level."""
    p = guesses("p", 1.5)
    level = {b: 0.2 * k for k, fold in enumerate(FOLDS) for b in fold}
    moved = {b: 0.5 * p[b] + level[b] for b in BAGS}
    other = guesses("o", 0.5)
    for name, model, given in (("a", "abmil", p), ("b", "dsmil", moved), ("c", "clam-sb", other)):
        write_folds(tmp_path, Y, FOLDS, given, model=model, label=name)
    table = comparison_table(read_results(tmp_path), "local").follow[0]
    pooled = column(table, "auroc_difference")
    within = column(table, "auroc_within_difference")
    assert pooled["b"].value < -0.02
    assert within["b"].value == pytest.approx(0, abs=1e-12)
    by_hand = np.mean(by_fold(other)) - np.mean(by_fold(p))
    assert within["c"].value == pytest.approx(by_hand, abs=1e-9)
    assert within["c"].low < by_hand < within["c"].high
    assert within["a"].value is None
    assert column(table, "auroc_within_p_holm")["b"].value == 1.0
    assert column(table, "auroc_within")["b"].value == pytest.approx(np.mean(by_fold(moved)))


def test_bold_and_the_winner_are_of_means_over_folds_where_pooled_signs_turn(tmp_path):
    """The method that orders every fold best loses when pooled, because its folds differ in
    level."""
    bags = [f"b{i:03d}" for i in range(120)]
    y = {b: i % 2 for i, b in enumerate(bags)}
    folds = [bags[40 * k : 40 * k + 40] for k in range(3)]
    level = {b: 30.0 * k for k, fold in enumerate(folds) for b in fold}
    for seed in range(3):
        good = guesses(f"g{seed}", 2.0, y=y)
        bad = guesses(f"h{seed}", 0.4, y=y)
        moved = {b: (p + level[b]) / 100 for b, p in good.items()}
        write_folds(tmp_path, y, folds, bad, model="abmil", seed=seed)
        write_folds(
            tmp_path, y, folds, moved, model="abmil-probsa-diag", kl_weight="cyclical", seed=seed
        )
        write_folds(tmp_path, y, folds, bad, model="abmil-probsa-diag", kl_weight=0.1, seed=seed)
    results = read_results(tmp_path)
    table = comparison_table(results, "local")
    below = table.follow[0]
    name = "abmil-probsa-diag λ=cyclical"
    assert column(below, "auroc_difference")[name].value < -0.05
    assert column(below, "auroc_within_difference")[name].value > 0.1
    assert {n for n, e in column(table, "toy_auroc").items() if e.bold} == {name}
    assert {n for n, e in column(below, "auroc_within").items() if e.bold} == {name}
    assert not any(e.bold for e in column(below, "auroc").values())
    ablation = ablation_table(results)
    bold = {row[1].text for row in ablation.rows if row[2].bold}
    assert bold == {"cyclical"}
    # the figures say the same
    auroc_gains = [g for g in gains(results.scores)[0] if g.metric == "AUROC" and g.data != MEAN]
    (gain,) = [g for g in auroc_gains if g.kl_weight == "cyclical"]
    (drawn,) = [d for d in differences(results.scores)[0] if d.metric == "AUROC"]
    for shown in (gain, drawn):
        within = column(below, "auroc_within_difference")[name]
        assert shown.points == pytest.approx(100 * within.value)
        assert shown.pooling == "within"
    assert drawn.winner


def test_a_winner_that_is_not_the_best_of_its_column_is_not_bold(tmp_path):
    """No cell is bold if F1 of all calls and the mean F1 of the folds disagree."""
    bags = [f"b{i:03d}" for i in range(220)]
    # a fold with few positive bags, and one with many
    y = {b: int(i < 10 if i < 20 else i < 120) for i, b in enumerate(bags)}
    folds = [bags[:20], bags[20:]]
    one = {b: 0.9 if y[b] and i >= 20 else 0.1 for i, b in enumerate(bags)}
    two = {b: 0.9 if y[b] and (i < 20 or i % 4 == 0) else 0.1 for i, b in enumerate(bags)}
    for model, p in (("abmil", one), ("dsmil", two)):
        write_folds(tmp_path, y, folds, p, model=model)
    table = comparison_table(read_results(tmp_path), "local")
    means = {n: e.value for n, e in column(table, "toy_f1").items()}
    assert means["dsmil"] > means["abmil"]
    assert {n for n, e in column(table.follow[0], "f1").items() if e.bold} == {"abmil"}
    assert not any(e.bold for e in column(table, "toy_f1").values())


def test_a_fold_of_one_class_has_no_difference_within(tmp_path):
    folds = [[b for b in BAGS if Y[b]][:5], [b for b in BAGS if not Y[b]][:9]]
    folds.append([b for b in BAGS if b not in folds[0] + folds[1]])
    for model in ("abmil", "dsmil"):
        write_folds(tmp_path, Y, folds, guesses(model, 1.0), model=model)
    table = comparison_table(read_results(tmp_path), "local").follow[0]
    assert column(table, "auroc_difference")["dsmil"].value is not None
    assert column(table, "auroc_within_difference")["dsmil"].value is None


def test_only_a_winner_by_the_rule_is_bold(tmp_path):
    bags = [f"b{i:03d}" for i in range(120)]
    y = {b: i % 2 for i, b in enumerate(bags)}
    folds = [bags[40 * k : 40 * k + 40] for k in range(3)]
    for seed in range(3):
        for model, skill in [("abmil", 0.0), ("dsmil", 0.1), ("patchgcn", 2.5)]:
            p = guesses(f"{model}{seed}", skill, y=y)
            write_folds(tmp_path, y, folds, p, model=model, seed=seed)
    table = comparison_table(read_results(tmp_path), "local")
    below = (table.follow[0], ("auroc_within", "f1"))
    for one, keys in [(table, ("toy_auroc", "toy_f1")), below]:
        for key in keys:
            assert {n for n, e in column(one, key).items() if e.bold} == {"patchgcn"}


def test_nobody_is_bold_among_equals(results):
    table = comparison_table(results, "local")
    for one in (table, *table.follow):
        assert not any(e.bold for row in one.rows for e in row)


def test_of_several_kl_weights_the_comparison_has_the_cyclical_one(tmp_path):
    for kl in (0.1, "cyclical"):
        write_folds(
            tmp_path, Y, FOLDS, guesses(str(kl), 0.5), model="abmil-probsa-diag", kl_weight=kl
        )
    write_folds(tmp_path, Y, FOLDS, guesses("a", 0.5), model="abmil-probsa-dirac", kl_weight=0.5)
    table = comparison_table(read_results(tmp_path), "local")
    names = [row[0].text for row in table.rows]
    assert names == ["abmil-probsa-dirac λ=0.5", "abmil-probsa-diag λ=cyclical"]


def test_a_method_that_lacks_a_data_set_is_not_ranked(small):
    write_folds(small, Y, FOLDS, guesses("x", 0.5), model="abmil", data="other")
    write_folds(small, Y, FOLDS, guesses("y", 0.6), model="dsmil", data="other")
    table = comparison_table(read_results(small), "local")
    name = "abmil-probsa-diag λ=cyclical"
    assert column(table, "rank")[name].value is None
    assert column(table, "other_auroc")[name].value is None
    assert column(table, "rank")["abmil"].value is not None


def test_a_method_with_few_seeds_does_not_cost_the_others_theirs(small):
    write_folds(small, Y, FOLDS, guesses("abmil2", 0.3), model="abmil", seed=2)
    write_folds(small, Y, FOLDS, guesses("dsmil2", 0.5), model="dsmil", seed=2)
    write_folds(small, Y, FOLDS, guesses("gone", 0.3), model="patchgcn", seed=1)
    table = comparison_table(read_results(small), "local").follow[0]
    labels = [Y[b] for b in BAGS]

    def auroc(name, skill):
        return roc_auc_score(labels, list(guesses(name, skill).values()))

    by_seed = [auroc(f"dsmil{s}", 0.5) - auroc(f"abmil{s}", 0.3) for s in range(3)]
    cells = column(table, "auroc_difference")
    assert cells["dsmil"].value == pytest.approx(np.mean(by_seed), abs=1e-6)
    one = auroc("gone", 0.3) - auroc("abmil1", 0.3)
    assert cells["patchgcn"].value == pytest.approx(one, abs=1e-6)
    values = column(table, "auroc")
    mean_auroc = np.mean([auroc(f"dsmil{s}", 0.5) for s in range(3)])
    assert values["dsmil"].value == pytest.approx(mean_auroc, abs=1e-6)
    assert any("dsmil 3" in note and "patchgcn 1" in note for note in table.footnotes)


def test_differences_stand_where_no_seed_is_in_all_methods(small):
    write_folds(small, Y, FOLDS, guesses("gone", 0.3), model="patchgcn", seed=7)
    table = comparison_table(read_results(small), "local").follow[0]
    cells = column(table, "auroc_difference")
    assert cells["dsmil"].value is not None and cells["patchgcn"].value is None
    assert not any(e.bold for row in table.rows for e in row)


def test_a_fixed_test_part_is_compared_over_splits_and_seeds(tmp_path):
    test = BAGS[:20]
    for model, skill in [("abmil", 0.3), ("abmil-probsa-diag", 0.9)]:
        for split in range(3):
            for seed in range(2):
                p = guesses(f"{model}{split}{seed}", skill)
                write_run(
                    tmp_path,
                    model=model,
                    kl_weight=None if model == "abmil" else "cyclical",
                    split=split,
                    seed=seed,
                    folds=False,
                    y=Y,
                    test={b: p[b] for b in test},
                    val={b: p[b] for b in BAGS[20:25]},
                    groups={b: f"p{i // 2}" for i, b in enumerate(BAGS)},
                )
    table = comparison_table(read_results(tmp_path), "local")
    labels = [Y[b] for b in test]
    of = [
        [roc_auc_score(labels, [guesses(f"abmil{k}{s}", 0.3)[b] for b in test]) for s in range(2)]
        for k in range(3)
    ]
    entry = column(table, "toy_auroc")["abmil"]
    assert entry.value == pytest.approx(np.mean(of), abs=1e-6)
    assert entry.sd == pytest.approx(np.mean(of, axis=1).std(ddof=1), abs=1e-6)
    facts = ("20 test bags", "10 positive", "10 patients", "3 splits", "2 seeds (0, 1)")
    assert [fact for fact in facts if fact not in table.follow[0].footnotes[0]] == []


@pytest.fixture
def ablation(tmp_path):
    """Write both posteriors of abmil with two λ, and the plain model once."""
    write_folds(tmp_path, Y, FOLDS, guesses("plain", 0.3), model="abmil")
    for model in ("abmil-probsa-dirac", "abmil-probsa-diag"):
        for kl in (0.1, "cyclical"):
            p = guesses(f"{model}{kl}", 0.6)
            write_folds(tmp_path, Y, FOLDS, p, model=model, kl_weight=kl)
    return tmp_path


def test_the_plain_model_is_the_first_row_of_both_posteriors(ablation):
    table = ablation_table(read_results(ablation))
    rows = [(row[0].text, row[1].text) for row in table.rows]
    assert rows == [
        (v, kl)
        for v in ("abmil-probsa-dirac", "abmil-probsa-diag")
        for kl in ("0.0", "0.1", "cyclical")
    ]
    plain = [row[2] for row in table.rows if row[1].text == "0.0"]
    assert plain[0] == plain[1]
    assert plain[0].value == pytest.approx(np.mean(by_fold(guesses("plain", 0.3))), abs=1e-9)
    # ranks are within a variant: three of them share 1 to 3
    i = [c.key for c in table.columns].index("rank")
    for start in (0, 3):
        ranks = [table.rows[start + k][i].value for k in range(3)]
        assert sum(ranks) == pytest.approx(6)


def test_differences_are_to_kl_weight_0(ablation):
    below = ablation_table(read_results(ablation)).follow[0]
    assert below.name == "ablation_toy"
    labels = [Y[b] for b in BAGS]

    def auroc(name, skill):
        return roc_auc_score(labels, list(guesses(name, skill).values()))

    keys = [c.key for c in below.columns]
    row = next(r for r in below.rows if (r[0].text, r[1].text) == ("abmil-probsa-diag", "0.1"))
    entry = row[keys.index("auroc_difference")]
    expected = auroc("abmil-probsa-diag0.1", 0.6) - auroc("plain", 0.3)
    assert entry.value == pytest.approx(expected, abs=1e-6)
    assert below.rows[0][keys.index("auroc_difference")].value is None


def test_folds_are_side_by_side(results):
    table = folds_table(results.scores)
    assert [c.title for c in table.columns] == ["method", "fold 0", "fold 1", "fold 2", "mean"]
    seeds = [guesses(f"abmil{s}", 0.3) for s in (0, 1)]
    expected = np.mean([by_fold(p) for p in seeds], axis=0)
    row = next(r for r in table.rows if r[0].text == "abmil")
    assert [e.value for e in row[1:4]] == pytest.approx(expected.tolist(), abs=1e-9)
    assert row[4].value == pytest.approx(expected.mean(), abs=1e-9)


def test_one_kl_weight_is_no_ablation_and_without_labels_there_are_no_instances(results):
    assert ablation_table(results) is None and instances_table(results.scores) is None


def test_instances_by_hand(tmp_path):
    """Attention is right in every bag of fold 0 and inverted in fold 1."""
    y = {b: i % 2 for i, b in enumerate(BAGS[:12])}
    folds = [BAGS[0:4], BAGS[4:8], BAGS[8:12]]
    labels = {b: [0, 0, 1, 1] if v else [0, 0, 0, 0] for b, v in y.items()}
    right = {b: [-2.0, -1.0, 1.0, 2.0] for b in (*folds[0], *folds[2])}
    wrong = {b: [2.0, 1.0, -1.0, -2.0] for b in folds[1]}
    p = dict.fromkeys(y, 0.5)
    write_folds(tmp_path, y, folds, p, instances=labels, means={**right, **wrong})
    (scores,) = read_results(tmp_path).scores
    table = instances_table([scores], bootstrap=50)
    entry = column(table, "auroc_within_bags")["abmil"]
    # two of three folds are right: bags of fold 1 have AUROC 0
    assert entry.value == pytest.approx(2 / 3)
    assert entry.low < entry.value < entry.high
    # Dice of 2/3 in fold 0, whose run validated on the wrong fold 1 (all are called there), 0 in
    # fold 1 (the wrong two are called), 1 in fold 2
    assert column(table, "dice")["abmil"].value == pytest.approx((2 / 3 + 0 + 1) / 3)
    errors = table.follow[0]
    assert errors.name == "errors_toy"
    # half of uniform attention is called: right in folds 0 and 2, all wrong in fold 1
    assert column(errors, "error_rate")["abmil"].value == pytest.approx(1 / 3)


def test_tables_are_written_and_the_same_every_time(ablation):
    told = []
    made = write_tables(read_results(ablation), ablation, told=told.append)
    names = {p.name for p in made}
    assert {f"comparison_local.{e}" for e in ("md", "tex", "csv")} <= names
    assert {"ablation.md", "ablation_toy.csv", "folds_toy.md"} <= names
    assert not any("global" in n for n in names)
    assert set((ablation / "tables").iterdir()) == set(made)
    assert told[:3] == ["comparison, local", "comparison, global", "ablation"]
    before = {p: p.read_bytes() for p in made}
    assert write_tables(read_results(ablation), ablation) == made
    assert {p: p.read_bytes() for p in made} == before


def test_a_grid_that_was_interrupted_gives_the_same_tables_in_the_end(ablation, tmp_path):
    made = {p.name: p.read_bytes() for p in write_tables(read_results(ablation), ablation)}
    gone = ablation / "cells" / "toy" / "abmil-probsa-diag_kl-0.1" / "split1-seed0"
    aside = tmp_path / "aside"
    gone.rename(aside)
    write_tables(read_results(ablation), ablation)
    (incomplete,) = read_results(ablation).incomplete
    assert str(incomplete) in (ablation / "tables" / "ablation.md").read_text()
    aside.rename(gone)
    assert {p.name: p.read_bytes() for p in write_tables(read_results(ablation), ablation)} == made


def test_numbers_of_the_files_are_the_tables(results, tmp_path):
    write_tables(results, tmp_path)
    with (tmp_path / "tables" / "comparison_local.csv").open() as f:
        rows = {row["method"]: row for row in csv.DictReader(f)}
    for name, entry in column(comparison_table(results, "local"), "toy_auroc").items():
        assert float(rows[name]["toy_auroc"]) == pytest.approx(100 * entry.value, abs=1e-5)
        assert float(rows[name]["toy_auroc_sd"]) == pytest.approx(100 * entry.sd, abs=1e-5)


def test_one_class_has_nothing_to_compare(tmp_path):
    y = dict.fromkeys(BAGS, 0)
    write_folds(tmp_path, y, FOLDS, guesses("a", 0.1))
    table = comparison_table(read_results(tmp_path), "local")
    assert column(table, "toy_auroc")["abmil"].value is None
    assert column(table.follow[0], "auroc")["abmil"].value is None
    write_tables(read_results(tmp_path), tmp_path)


def test_no_finished_run_is_an_error(tmp_path):
    with pytest.raises(InputError):
        write_tables(read_results(tmp_path), tmp_path)


def test_the_baseline_is_the_plain_model_of_its_own_name(tmp_path):
    for label, arguments in (("ABMIL-gated", {"gated": True}), ("abmil", {})):
        p = guesses(label, 0.5)
        write_folds(tmp_path, Y, FOLDS, p, model="abmil", label=label, arguments=arguments)
    write_folds(tmp_path, Y, FOLDS, guesses("dsmil", 0.8), model="dsmil")
    table = comparison_table(read_results(tmp_path), "local").follow[0]
    cells = column(table, "auroc_difference")
    assert cells["abmil"].value is None and cells["ABMIL-gated"].value is not None
    assert {d.baseline for d in differences(read_results(tmp_path).scores)[0]} == {"abmil"}


def test_a_baseline_under_another_name_is_one(tmp_path):
    write_folds(tmp_path, Y, FOLDS, guesses("a", 0.5), model="abmil", label="plain")
    write_folds(tmp_path, Y, FOLDS, guesses("dsmil", 0.8), model="dsmil")
    assert {d.baseline for d in differences(read_results(tmp_path).scores)[0]} == {"plain"}

"""Figures of an experiment: numbers checked by hand, positions, and no overlapping text."""

import csv
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from sklearn.metrics import f1_score, roc_auc_score
from support.made_experiments import write_run

from probsa.benchmark import read_results, write_figures, write_report
from probsa.benchmark.figures.attention import attention_figures, default_bags, default_methods
from probsa.benchmark.figures.forest import BaselineDifference, differences, draw_forest
from probsa.benchmark.figures.improvement import MEAN, Gain, draw_improvement, gains, means
from probsa.benchmark.figures.ranks import AverageRank, draw_ranks, family_ranks
from probsa.benchmark.figures.style import (
    CUT_NOTE,
    FOLDS_NOTE,
    OTHERS,
    STYLES,
    shortened,
    style_of,
    write,
)
from probsa.benchmark.grid.variants import CHOSEN
from probsa.benchmark.results.results import validation_of
from probsa.benchmark.results.sampling import kinds_of
from probsa.errors import InputError, UnknownName
from probsa.models import names

BAGS = [["a", "b", "c", "d"], ["e", "f", "g", "h"], ["i", "j", "k", "l"]]
Y = dict(zip("abcdefghijkl", [0, 0, 1, 1] * 3, strict=True))
LABELS = {b: [0, 1, 1, 0] if y else [0] * 4 for b, y in Y.items()}
METHODS = [("abmil", None), ("abmil-probsa-diag", 0.1), ("abmil-probsa-diag", "cyclical")]
METHODS += [("abmil-probsa-dirac", "cyclical"), ("dsmil", None)]
LONG = "a method whose name goes on and on, wide 512, learning rate 0.001"


def chance(data: str, method: int, seed: int) -> dict[str, float]:
    """Return p of each bag, better than chance and different for each run."""
    rng = np.random.default_rng([ord(data[0]), method, seed])
    return {
        b: float(np.clip(0.35 + 0.3 * y + 0.25 * rng.normal(), 0.01, 0.99)) for b, y in Y.items()
    }


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("experiment")
    for data, (k, (model, kl)), seed in itertools.product(
        ("one", "two"), enumerate(METHODS), (0, 1)
    ):
        p = chance(data, k, seed)
        for split, tested in enumerate(BAGS):
            write_run(
                out,
                data=data,
                model=model,
                kl_weight=kl,
                split=split,
                seed=seed,
                test={b: p[b] for b in tested},
                rest=tuple(b for b in Y if b not in tested),
                y=Y,
                instances=LABELS,
            )
    return out


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def panel(figure: Figure, label: str) -> Axes:
    (match,) = [a for a in figure.axes if a.get_label() == label]
    return match


def visible_texts(figure: Figure) -> list[Text]:
    """Return all visible texts."""
    figure.canvas.draw()
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    beyond = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not low <= tick.get_loc() <= high:  # exists but is not drawn
                    beyond |= {tick.label1, tick.label2}
    return [t for t in texts if t not in beyond]


def refuse_collisions(figure: Figure) -> None:
    """Check that no text overlaps another, is cut off at the page's edge or is too small."""
    texts = visible_texts(figure)
    for t in texts:
        assert t.get_fontsize() >= 7, t.get_text()
        box = t.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, t.get_text()
        assert box.y0 >= -1 and box.y1 <= figure.bbox.y1 + 1, t.get_text()
    for one, two in itertools.combinations(texts, 2):
        a, b = one.get_window_extent(), two.get_window_extent()
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        # boxes include room for letters like g and Ä, so they may touch
        assert across < 1 or down < 0.25 * min(a.height, b.height), (
            one.get_text(),
            two.get_text(),
        )


# the numbers


def test_what_lambda_brings_is_the_mean_difference_on_the_same_seeds(experiment):
    every, missing, _ = gains(read_results(experiment).scores)
    result = [g for g in every if g.data != MEAN]
    assert missing == [] and every == [*result, *means(result)]
    assert len(result) == 2 * 3 * 2
    y = list(Y.values())
    for g in result:
        k = METHODS.index((g.variant, float(g.kl_weight) if g.kl_weight == "0.1" else g.kl_weight))
        by_hand = []
        for seed in (0, 1):
            p, q = (np.float32(list(chance(g.data, m, seed).values())) for m in (k, 0))
            if g.metric == "AUROC":  # within folds: four bags each
                parts = [slice(i, i + 4) for i in (0, 4, 8)]
                by_fold = [roc_auc_score(y[f], p[f]) - roc_auc_score(y[f], q[f]) for f in parts]
                by_hand.append(np.mean(by_fold))
            else:
                by_hand.append(f1_score(y, p >= 0.5) - f1_score(y, q >= 0.5))
        assert g.points == pytest.approx(100 * np.mean(by_hand), abs=1e-9)
        assert g.low is not None and g.low <= g.points <= g.high
        assert g.pooling == ("within" if g.metric == "AUROC" else "pooled")


def test_a_mean_is_over_all_data_sets_or_there_is_none():
    def gain(data: str, kl: str, points: float) -> Gain:
        return Gain(
            data=data, variant="v", kl_weight=kl, metric="F1", points=points, low=0.0, high=1.0
        )

    result = means([gain("a", "0.1", 1.0), gain("b", "0.1", 4.0), gain("a", "1", 9.0)])
    assert [(g.kl_weight, g.points, g.data, g.low) for g in result] == [("0.1", 2.5, MEAN, None)]


def test_ranks_are_taken_within_a_data_set_and_a_family(experiment):
    result, missing, _ = family_ranks(read_results(experiment).scores)
    assert missing == []
    ours = {r.method: r.rank for r in result if r.metric == "AUROC"}
    # one λ per method: cyclical
    assert "abmil-probsa-diag λ=0.1" not in ours
    folds = [[list("abcdefghijkl").index(b) for b in own] for own in BAGS]
    y = np.array(list(Y.values()))
    shown = [0, 2, 3, 4]
    total = np.zeros(4)
    for data in ("one", "two"):
        value = []
        for k in shown:
            ps = [np.float32(list(chance(data, k, s).values())) for s in (0, 1)]
            value.append(np.mean([[roc_auc_score(y[f], p[f]) for p in ps] for f in folds]))
        value = np.array(value)
        higher = (value[None] > value[:, None] + 1e-12).sum(1)
        level = (np.abs(value[None] - value[:, None]) <= 1e-12).sum(1)
        total += higher + (level + 1) / 2
    by_name = [ours[n] for n in ("abmil", "abmil-probsa-diag λ=cyclical")]
    by_name += [ours[n] for n in ("abmil-probsa-dirac λ=cyclical", "dsmil")]
    np.testing.assert_allclose(by_name, total / 2)


def test_a_family_of_one_method_has_no_ranks(experiment):
    """A rank among one method says nothing, however many methods the other family has."""
    scores = read_results(experiment).scores
    local = [s for s in scores if s.method.model != "dsmil"]
    transmil = [
        replace(s, method=replace(s.method, label="transmil", model="transmil"))
        for s in scores
        if s.method.model == "dsmil"
    ]
    assert len(transmil) == 2  # data sets
    assert {r.family for r in family_ranks([*local, *transmil]).rows} == {"local"}
    assert not family_ranks(transmil).rows


def test_differences_are_to_the_baseline_of_the_family(experiment):
    result, missing, _ = differences(read_results(experiment).scores)
    assert missing == []
    assert {d.baseline for d in result} == {"abmil"}
    assert len(result) == 2 * 2 * 3
    assert not any(d.winner for d in result)  # twelve bags of noise
    for d in result:
        assert d.distinct == (d.p <= 0.05)
        # 80 % power needs more than the half-width of the interval
        assert d.high > d.points
        # 100 is the largest possible difference
        assert d.detectable > d.high - d.points or d.detectable == 100
    assert any(d.detectable < 100 for d in result)


# what is drawn


def many_gains() -> list[Gain]:
    keys = itertools.product(
        ("AUROC", "F1"),
        ("abmil-probsa-dirac", "abmil-probsa-diag"),
        ("one", "another data set whose name is long"),
        ("cyclical", "1", "0.5", "0.1"),
    )
    by_data = [
        Gain(data=d, variant=v, kl_weight=kl, metric=m, points=float(i), low=i - 1.0, high=i + 1.0)
        for i, (m, v, d, kl) in enumerate(keys)
    ]
    return [*by_data, *means(by_data)]


def notes_of(figure: Figure) -> str:
    """Return the note below the panels in one line; empty if there is none."""
    return figure.get_supxlabel().replace("\n", " ")


def test_improvement_draws_data_sets_and_their_mean():
    figure = draw_improvement(many_gains())
    assert len(figure.axes) == 4
    ax = panel(figure, "AUROC abmil-probsa-dirac")
    thin = [line for line in ax.lines if line.get_linewidth() == 0.8 and len(line.get_xdata()) > 2]
    thick = [line for line in ax.lines if line.get_linewidth() > 2]
    below = panel(figure, "F1 abmil-probsa-dirac")
    assert [t.get_text() for t in below.get_xticklabels()] == ["0.1", "0.5", "1", "cyclical"]
    assert [list(line.get_ydata()) for line in thin] == [[3, 2, 1, 0], [7, 6, 5, 4]]
    assert [list(line.get_ydata()) for line in thick] == [[5, 4, 3, 2]]
    assert to_hex(thick[0].get_color()).upper() == style_of("abmil-probsa-dirac").colour
    (ends,) = [c.get_segments() for c in ax.collections][:1]
    assert [s[:, 1].tolist() for s in ends] == [[2, 4], [1, 3], [0, 2], [-1, 1]]
    refuse_collisions(figure)


def test_notes_say_what_is_compared_and_leave_room_for_all_else():
    within = [replace(g, pooling="within") for g in many_gains()]
    few = [
        BaselineDifference(
            data="toy", metric=m, method=n, model=n, baseline="abmil", points=1.0, pooling="within"
        )
        for m in ("AUROC", "F1")
        for n in ("dsmil", "patchgcn")
    ]
    for figure in (draw_improvement(within), draw_forest(few, remark=f"{CHOSEN}. " * 3)):
        assert FOLDS_NOTE in notes_of(figure)
        refuse_collisions(figure)
    assert FOLDS_NOTE not in notes_of(draw_improvement(many_gains()))


def test_intervals_that_span_everything_run_out_of_the_panel():
    few = [g for g in many_gains() if g.metric == "AUROC"]
    own = [g for g in few if g.data != MEAN]
    wide = [replace(g, low=-90.0, high=95.0) if g in own[::4] else g for g in few]
    for given, cut in ((few, False), (wide, True)):
        figure = draw_improvement(given)
        low, high = panel(figure, "AUROC abmil-probsa-dirac").get_ylim()
        most = max(g.points for g in few)
        assert (low, high) == (-most - 4, most + 4) if cut else high < most + 4
        assert (CUT_NOTE in notes_of(figure)) == cut
        refuse_collisions(figure)
    rows = [
        BaselineDifference(
            data="d",
            metric="AUROC",
            method=name,
            model=name,
            baseline="abmil",
            points=points,
            low=points - half_width,
            high=points + half_width,
        )
        for name, points, half_width in (
            ("dsmil", 1.0, 2.0),
            ("patchgcn", -3.0, 2.0),
            ("smabmil", 0.0, 80.0),
        )
    ]
    assert panel(draw_forest(rows), "d AUROC").get_xlim() == (-11, 11)


def test_improvement_with_every_schedule_is_legible():
    kls = ["0.01", "0.1", "0.5", "1", "5", "linear", "cyclical"]
    one = [
        Gain(data="d", variant="abmil-probsa-diag", kl_weight=kl, metric="F1", points=1.0)
        for kl in kls
    ]
    figure = draw_improvement(one)
    refuse_collisions(figure)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == kls


def twenty() -> list[tuple[str, str]]:
    """Return (name, model) pairs as in tables."""
    result = [(n + (" λ=cyclical" if "probsa" in n else ""), n) for n in names()]
    return [*result[:19], (LONG, "dsmil")]


def test_ranks_are_where_they_should_be():
    ranks = [
        AverageRank(
            family="local" if i < 10 else "global",
            metric=metric,
            method=name,
            model=model,
            rank=i / 2 + 1,
            data_sets=2,
        )
        for metric in ("AUROC", "F1")
        for i, (name, model) in enumerate(twenty())
    ]
    figure = draw_ranks(ranks)
    ax = panel(figure, "local AUROC")
    shown = [t.get_text() for t in ax.get_yticklabels()]
    assert shown == [shortened(n) for n, _ in twenty()[:10]]
    drawn = {(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines}
    assert drawn == {(i / 2 + 1, i) for i in range(10)}
    refuse_collisions(figure)


def test_only_a_winner_is_marked(tmp_path):
    rows = [
        BaselineDifference(
            data=data,
            metric=metric,
            method=name,
            model=model,
            baseline="abmil",
            points=None if i == 7 else i - 9.0,
            low=i - 12.0,
            high=i - 6.0,
            p=0.1,
            distinct=i in (2, 19),
            winner=i == 19 and metric == "AUROC",
            detectable=5.0,
        )
        for data in ("one", "two")
        for metric in ("AUROC", "F1")
        for i, (name, model) in enumerate(twenty())
    ]
    figure = draw_forest(rows)
    refuse_collisions(figure)
    for metric, stars in (("AUROC", 1), ("F1", 0)):
        ax = panel(figure, f"one {metric}")
        at = [t for t in ax.texts if t.get_text() == "★"]
        assert [t.get_position()[1] for t in at] == [19] * stars
        assert [t.get_position()[1] for t in ax.texts if "undefined" in t.get_text()] == [7]
        points = [line for line in ax.lines if line.get_marker() != "None"]
        filled = [line.get_xdata()[0] for line in points if line.get_markerfacecolor() != "white"]
        assert sorted(filled) == [-7, 10]
    write(figure, tmp_path / "f.png", rows)
    assert [r["winner"] for r in table(tmp_path / "f.csv")].count("True") == 2


def test_every_method_has_its_own_look():
    looks = {n: style_of(n) for n in names()}
    assert len(set(looks.values())) == len(looks)
    assert style_of("a plugin's") == style_of("a plugin's")
    listed_colours = {style.colour for style in STYLES.values()}
    assert listed_colours.isdisjoint(OTHERS)


# whole folders


def test_all_figures_of_an_experiment(experiment, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(experiment, out)
    made = write_figures(out, bags=["e"], methods=["abmil"])
    names_ = {p.name for p in made.written}
    stems = ("improvement", "ranks", "differences")
    assert names_ == {
        f"{stem}.{kind}"
        for stem in (*stems, "attention-one-e", "attention-two-e")
        for kind in ("png", "csv")
    }
    assert {p.name for p in (out / "figures").iterdir()} == names_
    assert made.missing == ()
    gains_ = table(out / "figures" / "improvement.csv")
    assert {r["data"] for r in gains_} == {"one", "two", MEAN}


def test_tables_and_figures_compute_a_thing_once(experiment, tmp_path, monkeypatch):
    """Comparisons and instance metrics are computed once: both take minutes in a real
    experiment."""
    out = tmp_path / "out"
    shutil.copytree(experiment / "cells" / "one", out / "cells" / "one")
    summaries = []
    comparisons = []

    def summarised(scores):
        summaries.append(scores.method.name)
        return validation_of(scores)

    def compared(scores):
        comparisons.append(scores.method.name)
        return kinds_of(scores)

    monkeypatch.setattr("probsa.benchmark.results.instances.validation_of", summarised)
    monkeypatch.setattr("probsa.benchmark.results.comparing.kinds_of", compared)
    write_report(out, bags=["e"])
    assert sorted(summaries) == sorted({s.method.name for s in read_results(out).scores})
    # the comparison and two variants
    assert len(comparisons) == 3


def test_the_same_bytes_every_time(tmp_path):
    for name in ("a", "b"):
        write(draw_improvement(many_gains()), tmp_path / f"{name}.png", many_gains())
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.png", "b.csv", "b.png"]


def test_the_smallest_experiment_has_the_figures_it_can_have(tmp_path):
    for model, kl in (("abmil", None), ("abmil-probsa-dirac", 0.1)):
        p = {"a": 0.2, "b": 0.8, "c": 0.3, "d": 0.7}
        y = {"a": 0, "b": 1, "c": 1, "d": 0}
        write_run(tmp_path, model=model, kl_weight=kl, folds=False, test=p, y=y)
    made = write_figures(tmp_path)
    drawn = {p.stem for p in made.written}
    assert {"improvement", "ranks", "differences"} <= drawn
    with pytest.raises(InputError):
        write_figures(tmp_path / "elsewhere")


def test_bags_are_chosen_by_rule(experiment):
    scores = [s for s in read_results(experiment).scores if s.data == "one"]
    shown = [s.method.name for s in default_methods(scores)]
    probsa = ["abmil-probsa-dirac λ=cyclical", "abmil-probsa-diag λ=cyclical"]
    assert shown == ["abmil", *probsa, "dsmil"]
    (reference,) = [s for s in scores if s.method.name == shown[2]]
    p = chance("one", 2, 0)
    result, missing = default_bags(reference, seed=0)
    kinds = [
        [b for b in Y if Y[b] and p[b] >= 0.5],
        [b for b in Y if Y[b] and p[b] < 0.5],
        [b for b in Y if not Y[b]],
    ]
    by_hand = [sorted(k, key=lambda b: p[b])[(len(k) - 1) // 2] for k in kinds if k]
    assert [c.bag for c in result] == by_hand
    assert len(missing) == sum(not k for k in kinds)


def test_maps_of_named_bags_are_of_the_runs_that_tested_them(experiment, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(experiment, out)
    # bag e is tested on split 1
    made = attention_figures(out, bags=["e"], methods=["dsmil", "abmil"], seed=1)
    assert made.missing == ()
    result = [p.name for p in made.written if p.suffix == ".png"]
    assert result == ["attention-one-e.png", "attention-two-e.png"]
    rows = table(out / "figures" / "attention-one-e.csv")
    assert list(rows[0])[4:] == ["dsmil mean", "dsmil variance", "abmil mean", "abmil variance"]
    (out / "cells/one/dsmil/split1-seed1/predictions/instances/e.h5").unlink()
    made = attention_figures(out, bags=["e"], methods=["dsmil", "abmil"], seed=1)
    ((figure, why),) = made.missing
    assert figure == "attention-one-e" and "dsmil" in why
    assert "abmil mean" in table(out / "figures" / "attention-one-e.csv")[0]


def test_unknown_bags_and_methods_are_refused(experiment):
    with pytest.raises(UnknownName, match="'z'"):
        attention_figures(experiment, bags=["z"])
    with pytest.raises(UnknownName, match="'dsmil'"):
        attention_figures(experiment, methods=["dsmill"])


def test_names_that_hold_dollars_are_names(tmp_path):
    ranks = [
        AverageRank(family="local", metric="F1", method=f"a$_{k}$^", model="dsmil", rank=float(k))
        for k in (1, 2)
    ]
    write(draw_ranks(ranks), tmp_path / "r.png", ranks)
    assert [r["method"] for r in table(tmp_path / "r.csv")] == ["a$_1$^", "a$_2$^"]

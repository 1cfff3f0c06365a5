"""Maps of whole folders: which files there are, and what is said of the others."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from support.made_maps import assert_fits, prediction, slide, write_folder, written
from support.refusals import refused

from probsa.errors import BagError, UnknownName
from probsa.evaluation import read_predictions, stored_trust, write_predictions
from probsa.maps import DOUBTS, against, draw_map, map_limits, render_folder, reservations
from probsa.maps.draw import heading
from probsa.maps.folder import (
    UNLIKE_TRAINING,
    Contradiction,
    find_contradiction,
    is_unlike_training,
)
from probsa.maps.scale import common_limits
from probsa.statistics import Threshold


@pytest.fixture
def preds(tmp_path):
    bags = [replace(slide(at=k), name=f"s{k}") for k in range(3)]
    return write_folder(tmp_path / "preds", *bags, labels={"s0": 1, "s1": 0})


def test_common_limits_are_quantiles_over_all_instances():
    rng = np.random.default_rng(0)
    bags = [prediction(None, rng.normal(size=n), rng.random(n)) for n in (500, 30, 1)]
    silent = replace(bags[0], attention_variance=np.zeros(500, np.float32))
    limits = common_limits([*bags, silent])
    mean = np.concatenate([b.attention_mean for b in (*bags, silent)]).astype(float)
    variance = np.concatenate([b.attention_variance for b in bags]).astype(float)
    np.testing.assert_allclose(limits.mean, np.quantile(mean, [0.01, 0.99]))
    np.testing.assert_allclose(limits.variance, np.quantile(variance, [0.01, 0.99]))
    with pytest.raises(BagError):
        common_limits([])


def test_a_folder_is_drawn_and_what_fails_is_named(tmp_path, preds):
    out = tmp_path / "maps"
    (preds / "instances" / "s1.h5").write_bytes(b"damaged")
    progress = []
    failed = render_folder(preds, out, progress=lambda *a: progress.append(a))
    assert [bag for bag, _ in failed] == ["s1"]
    assert "s1.h5" in failed[0][1]
    assert sorted(f.name for f in out.glob("[!.]*")) == ["s0.png", "s2.png"]
    assert progress == [(1, 3), (2, 3), (3, 3)]
    with Image.open(out / "s2.png") as picture:
        assert picture.format == "PNG"


def test_only_the_bags_asked_for(tmp_path, preds):
    out = tmp_path / "maps"
    assert render_folder(preds, out, bags=["s2"]) == []
    assert [f.name for f in out.glob("[!.]*")] == ["s2.png"]
    refused(UnknownName, r"s22.*Did you mean 's2'", render_folder, preds, out, bags=["s0", "s22"])
    assert [f.name for f in out.glob("[!.]*")] == ["s2.png"]


def test_a_folders_fixed_scale_is_that_of_all_its_bags(tmp_path, preds):
    limits = map_limits(preds)
    everything = common_limits([slide(at=k) for k in range(3)])
    np.testing.assert_allclose(limits.mean, everything.mean, rtol=1e-6)
    render_folder(preds, tmp_path / "a", bags=["s1"], scale="fixed")
    p = replace(slide(at=1), name="s1")
    spread = f"±: {p.of_task.words.page.spread_hint}."
    of_run = stored_trust(read_predictions(preds)).line
    title = f"{heading(p, label='0').line}\n{of_run}"
    how = {"also": DOUBTS, "title": title, "caption": spread}
    alone, _ = written(p, tmp_path, limits=limits, **how)
    shown = np.asarray(Image.open(tmp_path / "a" / "s1.png").convert("RGB"))
    np.testing.assert_array_equal(shown, alone)


def test_the_scale_is_that_of_the_validation_bags(tmp_path):
    bags = [replace(slide(at=k), name=f"s{k}") for k in range(2)]
    bags[0] = replace(bags[0], attention_mean=bags[0].attention_mean * 9)
    parts = {"s0": "train", "s1": "val"}
    write_predictions(
        tmp_path / "p", bags, labels={}, parts=parts, classes=["0", "1"], threshold=0.5, metadata={}
    )
    assert map_limits(tmp_path / "p") == common_limits(bags[1:])


def test_what_makes_p_where_the_map_contradicts_the_call(tmp_path):
    p = replace(slide(), score_kind="evidence", probability=np.array([0.25], np.float32))
    folder = write_folder(
        tmp_path / "p",
        p,
        reservations=["Not shown better."],
        map_score=CHOICE,
    )
    stored = Threshold(value=0.21, origin="stored")
    table = replace(read_predictions(folder), call_threshold=stored)
    low, high = (replace(p, attention_mean=k - 4 + p.attention_mean) for k in (0, 9))
    assert find_contradiction(table, p) is find_contradiction(table, high) is None
    little = replace(low, attention_mean=np.append(low.attention_mean[1:], np.float32(0.01)))
    below_half = Contradiction(called_positive=True, cause="threshold")
    assert find_contradiction(table, little) == find_contradiction(table, low) == below_half
    sure = replace(low, probability=np.array([0.9], np.float32))
    by_pooling = Contradiction(called_positive=True, cause="pooling")
    assert find_contradiction(table, sure) == by_pooling
    sums = find_contradiction(table, replace(sure, contribution=np.full(8, -0.5, np.float32)))
    assert (sums.cause, sums.contribution) == ("bias", -4)
    assert sums.logit == pytest.approx(np.log(9), rel=1e-6)
    negative = replace(high, probability=np.array([0.1], np.float32))
    assert not find_contradiction(table, negative).called_positive
    assert find_contradiction(table, replace(low, score_kind="logit")) is None
    assert reservations(table) == ("Not shown better.",)
    assert not is_unlike_training(table, 0)
    assert not is_unlike_training(replace(table, ood=np.array([0.99])), 0)
    assert is_unlike_training(replace(table, ood=np.array([1.0])), 0)


CHOICE = {
    "chosen": "evidence",
    "drops": {"evidence": 0.02},
    "bags": 9,
    "reason": "why",
    "rule": "how",
}


@pytest.mark.parametrize("reservations_said", [0, 7])
@pytest.mark.parametrize("training_bags", [None, 12, 200])
@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("remark", ["", "unlike", "against", "unsure"])
def test_a_picture_says_its_bag_and_one_line_of_the_run(
    tmp_path, monkeypatch, reservations_said, training_bags, patient, remark
):
    """What holds for every bag of a run is said once, and does not hide what holds for this one."""
    p = replace(slide(), score_kind="evidence", name="bag")
    if patient:
        p = replace(p, slides=("one", "two"), slide=np.arange(8) % 2)
    if remark == "against":
        p = replace(p, attention_mean=-np.abs(p.attention_mean))
    if remark == "unsure":
        p = replace(p, probability=np.float32([0.52]), std=np.float32([0.2]))
    said = [f"Reservation {k} about this run." for k in range(reservations_said)]
    more = {} if training_bags is None else {"training_bags": training_bags}
    trust = {"map": "evidence", "failed": ["chance"], "untested": ["faithfulness"]}
    folder = write_folder(
        tmp_path / "p", p, reservations=said, map_score=CHOICE, map_trust=trust, **more
    )
    table = read_predictions(folder)
    if remark == "unlike":
        table = replace(table, ood=np.array([1.5]))
    monkeypatch.setattr("probsa.maps.folder.read_predictions", lambda _: table)
    drawn = []

    def draw(p, *, title, caption, **_):
        drawn.append((title, caption))
        return Figure()

    monkeypatch.setattr("probsa.maps.folder.draw_map", draw)
    assert render_folder(folder, tmp_path / "maps", scale="per-bag") == []
    assert len(drawn) == (2 if patient else 1)
    for title, caption in drawn:
        assert title.name == "bag"
        assert title.more == (stored_trust(table).line,)
        assert not any(each in title.line + caption for each in said)
        assert (UNLIKE_TRAINING in caption) == is_unlike_training(table, 0)
        assert against(table, p) in caption
        marks = {"unlike": "unlike", "against": "contradicts", "unsure": "unsure"}
        assert [m for m, word in marks.items() if word in title.line] == (
            [remark] if remark else []
        )
        assert (f"{training_bags} training bags" in caption) is (training_bags == 12)


def test_a_long_line_of_a_bag_is_broken(tmp_path):
    title = " · ".join(["bag", *(f"remark {k} about this bag" for k in range(9))]) + "\nthe run"
    figure = draw_map(slide(), title=title)
    assert_fits(figure)

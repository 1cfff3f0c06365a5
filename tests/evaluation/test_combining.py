"""Predictions of several runs: their mean, what is left out of it, and what is refused."""

import json
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from scipy.stats import rankdata
from support.made_predictions import made
from support.made_runs import make_config, with_data
from support.refusals import refused

from probsa import predict_folder
from probsa.cli.entry import main
from probsa.core import TextTable
from probsa.errors import BagError, InputError, OutputExists
from probsa.evaluation import (
    combine_predictions,
    evaluate,
    read_null_scores,
    read_predictions,
    write_predictions,
)
from probsa.statistics import choose_threshold
from probsa.training import train
from probsa.workflow import finish_run

EVIDENCE = {"embed": 8, "attention_dim": 4}


def written(folder, bags, *, parts, labels, threshold=0.5, **about):
    write_predictions(
        folder, bags, labels=labels, parts=parts, classes=about.pop("classes", ("0", "1")),
        threshold=threshold, metadata={"model": folder.name, **about},
    )  # fmt: skip
    return folder


def pair(tmp_path, **changed):
    """Write two folders of eight bags; `changed` are fields of y's bag b3, `first` its size."""
    g, folders = np.random.default_rng(1), []
    labels = {f"b{k}": k % 2 for k in range(8)}
    parts = {name: "val" if k < 4 else "test" for k, name in enumerate(labels)}
    coords = np.arange(5)[:, None]
    for name in ("x", "y"):
        bags = [
            made(
                b, g.normal(size=5), np.arange(5) == 0, probability=(g.random(),), group=f"g{b}",
                attention_variance=g.random(5), coords=coords, score_kind="evidence",
                bag_ood=k / 8, bag_ood_distance=float(k), kind="ct",
                ood=g.random(5).astype(np.float32),
            )
            for k, b in enumerate(labels)
        ]  # fmt: skip
        if name == "y" and changed:
            size, whole = changed.pop("first", 5), bags[3]
            arrays = {**whole.per_instance(), "coords": coords}
            arrays["instance_labels"] = whole.instance_labels
            bags[3] = replace(whole, **{k: v[:size] for k, v in arrays.items()} | changed)
        folders.append(
            written(
                tmp_path / name,
                bags,
                parts=parts,
                labels=labels,
                seed=1,
                reservations=["its map is no better than a null map"],
            )
        )
    return folders


def test_the_mean_and_its_parts_are_those_of_the_definition(tmp_path):
    folders = pair(tmp_path)
    found = combine_predictions([*map(str, folders)], str(tmp_path / "out"))
    tables, out = [read_predictions(f) for f in folders], read_predictions(tmp_path / "out")
    assert (found.bags, found.failures) == (8, ()) and out.bags == tables[0].bags
    assert (out.parts, out.labels, out.group_of) == (
        tables[0].parts, tables[0].labels, tables[0].group_of
    )  # fmt: skip
    for bag in out.bags:
        x, y, p = (t.instances(bag) for t in (*tables, out))
        np.testing.assert_allclose(p.probability, (x.probability + y.probability) / 2, rtol=1e-6)
        mean = (x.attention_mean + y.attention_mean) / 2
        within = (x.attention_variance + y.attention_variance) / 2
        between = (x.attention_mean - y.attention_mean) ** 2 / 4
        np.testing.assert_allclose(p.attention_mean, mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(p.variance_between, between, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(p.attention_variance, within + between, rtol=1e-4)
        np.testing.assert_allclose(p.ood, (x.ood + y.ood) / 2, rtol=1e-5)
    np.testing.assert_allclose(out.ood, (tables[0].ood + tables[1].ood) / 2)
    assert out.metadata["model"] == "x + y" and out.metadata["members"] == 2
    assert out.metadata["combined"] == [str(f) for f in folders] and out.metadata["seed"] == 1
    assert "reservations" not in out.metadata  # they speak of other maps


def test_the_threshold_is_chosen_again_on_the_validation_bags(tmp_path):
    folders = pair(tmp_path)
    found = combine_predictions(folders, tmp_path / "out")
    out = read_predictions(tmp_path / "out")
    y = np.array(out.labels) == 1
    x = read_predictions(folders[0]).probability[:, 0]
    expected = choose_threshold(y[:4], out.probability[:4, 0]).value
    others = choose_threshold(y[:4], x[:4]).value, choose_threshold(y, out.probability[:, 0]).value
    assert found.threshold == pytest.approx(expected)
    assert all(abs(expected - other) > 1e-3 for other in others)
    assert out.threshold == found.threshold != 0.5
    for k, folder in enumerate(folders):  # no negative validation bag
        table = read_predictions(folder)
        written(
            tmp_path / f"few{k}", [table.instances(b) for b in table.bags[1:2]],
            parts={"b1": "val"}, labels={"b1": 1}, threshold=0.2 + 0.2 * k,
        )  # fmt: skip
    few = combine_predictions([tmp_path / "few0", tmp_path / "few1"], tmp_path / "few")
    assert few.threshold == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "other"}, "has no prediction of it"),
        ({"coords": np.arange(5)[:, None] * 2}, "its instances have different coordinates"),
        ({"coords": None}, "its instances have different coordinates"),
        (4, "it has 5 and 4 instances in .*/x and .*/y"),
    ],
    ids=["absent", "places", "no-places", "size"],
)
def test_a_bag_that_differs_is_left_out_with_its_reason(tmp_path, capsys, changed, reason):
    folders = pair(tmp_path, **(changed if isinstance(changed, dict) else {"first": changed}))
    out = tmp_path / "out"
    assert main(["combine", *map(str, folders), "--out", str(out), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    rows = {row["bag"]: row["reason"] for row in TextTable.read(out / "failed.csv").rows}
    assert "b3" in rows and rows == {f["bag"]: f["reason"] for f in document["failed"]}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(rows["b3"])
    assert "b3" not in read_predictions(out).bags and document["bags"] == 7


@pytest.mark.parametrize(
    ("part", "label", "reason"),
    [
        ("test", 1, "it is a val and a test bag of the runs of"),
        ("val", 0, "it has the labels 1 and 0 in"),
    ],
)
def test_a_bag_of_another_part_or_label_is_left_out(tmp_path, part, label, reason):
    folders = pair(tmp_path)
    table = read_predictions(folders[1])
    parts = dict(zip(table.bags, table.parts, strict=True)) | {"b3": part}
    labels = dict(zip(table.bags, table.labels, strict=True)) | {"b3": label}
    bags = [table.instances(b) for b in table.bags]
    written(tmp_path / "z", bags, parts=parts, labels=labels)
    ((bag, said),) = combine_predictions([folders[0], tmp_path / "z"], tmp_path / "out").failures
    assert bag == "b3" and reason in said


def test_what_has_no_mean_is_refused(tmp_path):
    folders = pair(tmp_path, score_kind="logit")
    out = tmp_path / "out"
    refused(InputError, "1 folder is given", combine_predictions, folders[:1], out)
    refused(InputError, "kinds evidence and logit", combine_predictions, folders, out)
    table = read_predictions(folders[0])
    bags = [table.instances(b) for b in table.bags]
    named = written(tmp_path / "n", bags, parts={}, labels={}, classes=("a", "b"))
    refused(InputError, "class names .*'0', '1'.* and .*'a', 'b'", combine_predictions,
            [folders[0], named], out)  # fmt: skip
    alone = [replace(b, name=f"c{k}") for k, b in enumerate(bags)]
    strange = written(tmp_path / "s", alone, parts={}, labels={})
    refused(BagError, "no bag can be combined", combine_predictions, [folders[0], strange], out)
    assert not out.exists()
    combine_predictions([folders[0]] * 2, out)
    refused(OutputExists, "--overwrite", combine_predictions, [folders[0]] * 2, out)
    combine_predictions([folders[0]] * 2, out, overwrite=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with one split, and one of the same bags with features of another width."""
    root = tmp_path_factory.mktemp("runs")
    config = make_config(
        root / "data", bags=18, model="evidence-field", model_arguments=EVIDENCE, epochs=2
    )
    other = root / "wide"
    other.mkdir()
    for path in config.data.features.glob("*.h5"):
        with h5py.File(path) as f, h5py.File(other / path.name, "w") as new:
            new["features"] = np.concatenate([f["features"][:], f["features"][:, :2] ** 2], 1)
            new["coords"], new["instance_labels"] = f["coords"][:], f["instance_labels"][:]
            new["coords"].attrs["kind"] = "ct"
    wide = with_data(config, features=other)
    made_runs = []
    for name, given in (("a", config), ("b", replace(config, seed=1, data_seed=0)), ("c", wide)):
        made_runs.append(train(given, root / name))
        finish_run(made_runs[-1], bootstrap=0, maps="none")
    return config, made_runs


def test_combined_predictions_are_those_of_several_runs(runs, tmp_path):
    config, (a, b, _) = runs
    combine_predictions([a.predictions, b.predictions], tmp_path / "out")
    predict_folder([a.path, b.path], config.data.features, out=tmp_path / "both", device="cpu")
    one, other = read_predictions(tmp_path / "out"), read_predictions(tmp_path / "both")
    test = [name for name, part in zip(one.bags, one.parts, strict=True) if part == "test"]
    assert test
    for name in test:
        p, q = one.instances(name), other.instances(name)
        for field in ("probability", "std", "attention_mean", "variance_between", "contribution"):
            x, y = getattr(p, field), getattr(q, field)
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=field)


def test_runs_with_two_encoders_have_one_map_and_its_null_maps(runs, tmp_path):
    _, (a, _, c) = runs
    found = combine_predictions([a.predictions, c.predictions], tmp_path / "out")
    assert not found.failures
    table = read_predictions(tmp_path / "out")
    name = next(b for b, part, y in zip(table.bags, table.parts, table.labels, strict=True)
                if part == "test" and y)  # fmt: skip
    size = len(table.instances(name).attention_mean)
    scores = [
        read_null_scores(folder, name, instances=size)
        for folder in (tmp_path / "out", a.predictions, c.predictions)
    ]
    for null in ("norm", "mean_features", "centre"):
        ranks = [rankdata(of[null]) for of in scores[1:]]
        np.testing.assert_allclose(scores[0][null], np.mean(ranks, 0))
    report = evaluate(tmp_path / "out", bootstrap=20)
    assert "norm" in report.to_dict()["within_bags"]["null_maps"]
    without = tmp_path / "without"
    shutil.copytree(c.predictions, without, ignore=shutil.ignore_patterns("null_maps"))
    combine_predictions([a.predictions, without], tmp_path / "few")
    found = evaluate(tmp_path / "few", bootstrap=20).to_dict()["within_bags"]["null_maps"]
    assert list(found) == ["centre"]

"""Preparing the sets of LocalMIL: what is written, and what is refused."""

import csv

import h5py
import numpy as np
import pytest
import yaml
from support.refusals import refused

from probsa.benchmark.grid.grid import read_grid
from probsa.cli.entry import main
from probsa.datasets.localmil import describe, prepare_localmil, read_card
from probsa.errors import GraphError, InputError

DESCRIPTION = {
    "title": "toy", "source": "made", "licence": "none", "commit": "1", "graph": "grid"
}  # fmt: skip


def _set(root, *, name="toy", bags=18, description=DESCRIPTION, labels=None, truth=True, axes=2):
    folder = root / name
    (folder / "features").mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for k in range(bags):
        y, n = k % 2, 4
        with h5py.File(folder / "features" / f"b{k:02}.h5", "w") as f:
            f["features"] = rng.normal(size=(n, 3)).astype(np.float32)
            coords = np.stack([np.arange(n), np.zeros(n)], 1)[:, :axes] * 256
            f["coords"] = coords.astype(np.int64)
            if truth:
                f["instance_labels"] = np.array([y, 0, 0, y], np.int8)
        rows.append({"bag": f"b{k:02}", "label": y, "group": f"g{k // 2}", "fold": k // 2 % 3})
    rows = labels(rows) if labels else rows
    with (folder / "labels.csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    if description is not None:
        (folder / "set.yaml").write_text(yaml.safe_dump(description))
    return folder


def test_a_prepared_set_is_complete_and_can_be_prepared_again(tmp_path):
    _set(tmp_path / "in")
    (card,) = prepare_localmil(tmp_path / "in", tmp_path / "out")
    assert (card.bags, card.positive_bags, card.groups, card.folds) == (18, 9, 9, 3)
    assert (card.instances, card.positive_instances, card.features) == (72, 18, 3)
    assert card.labelled_bags == 18
    out = tmp_path / "out" / "toy"
    assert read_card(out) == card and read_card(tmp_path) is None
    assert len(list((out / "features").glob("*.h5"))) == 18
    text = (out / "labels.csv").read_text()
    assert text.startswith("bag,label,group,fold\nb00,0,g0,0\n")
    assert prepare_localmil(tmp_path / "in", tmp_path / "out") == [card]
    with h5py.File(tmp_path / "in" / "toy" / "features" / "b01.h5", "a") as f:
        f["instance_labels"][...] = [1, 1, 0, 1]
    (after,) = prepare_localmil(tmp_path / "in", tmp_path / "out")
    assert after.fingerprint != card.fingerprint


def test_a_grid_builds_the_graph_that_the_card_states(tmp_path):
    _set(tmp_path / "in", description={**DESCRIPTION, "graph": "knn"})
    prepare_localmil(tmp_path / "in", tmp_path / "out")
    grid = tmp_path / "grid.yaml"
    grid.write_text("models: [abmil]\n")
    for data, kind in (("out", "knn"), ("in", "auto")):
        (row,) = read_grid(grid, data=[str(tmp_path / data)]).rows
        assert row.config.data.graph.kind == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: toy\nlicence: MIT: yes\n", r", line 2, cannot be read as YAML: mapping values"),
        ("title: 'toy\n", ", line 2, cannot be read as YAML: .*unexpected end of stream"),
        ("title: a\0b\n", r"set\.yaml cannot be read as YAML: special characters are not allowed"),
        ("commit: 2024-13-45\n", r"set\.yaml cannot be read: month must be in"),
    ],
)
def test_a_syntax_error_is_one_message_with_file_and_line(tmp_path, text, message):
    (tmp_path / "set.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        describe("toy", tmp_path)
    assert "\n" not in str(raised.value) and str(tmp_path / "set.yaml") in str(raised.value)


def test_optional_texts_may_be_empty_and_numbers_and_dates_are_texts(tmp_path):
    (tmp_path / "set.yaml").write_text(
        "title: 7\nsource: made\nlicence: none\ncommit: 2024-01-02\ngraph: none\nsplits: fold\n"
        "note:\n"
    )
    found = describe("toy", tmp_path)
    assert (found.title, found.commit, found.note, found.splits) == ("7", "2024-01-02", "", "fold")


def test_without_a_column_of_groups_none_are_counted(tmp_path, capsys):
    without = {"labels": lambda rows: [{k: r[k] for k in r if k != "group"} for r in rows]}
    _set(tmp_path / "in", name="a", **without)
    _set(tmp_path / "in", name="b")
    a, b = prepare_localmil(tmp_path / "in", tmp_path / "out")
    assert (a.groups, b.groups) == (None, 9)
    assert read_card(tmp_path / "out" / "a") == a
    assert (
        main(["dataset", "localmil", "--data", str(tmp_path / "in"), "--out", str(tmp_path)]) == 0
    )
    shown = capsys.readouterr().out
    assert "a: 18 bags (9 positive) in 3 folds, groups not known (labels.csv has no column" in shown
    assert "b: 18 bags (9 positive) of 9 groups in 3 folds; 72 instances" in shown


def test_scattered_points_are_a_set_with_nearest_neighbours(tmp_path):
    """Nuclei, for example, lie on no lattice, and a set that says so has its own graph."""
    folder = _set(tmp_path / "in", description={**DESCRIPTION, "graph": "knn"})
    rng = np.random.default_rng(0)
    for path in (folder / "features").glob("*.h5"):
        with h5py.File(path, "a") as f:
            labels = np.resize(f["instance_labels"][:], 300)
            del f["features"], f["coords"], f["instance_labels"]
            f["features"], f["instance_labels"] = rng.normal(size=(300, 3)), labels
            f["coords"] = rng.integers(0, 500, (300, 2))
    (card,) = prepare_localmil(tmp_path / "in", tmp_path / "out")
    assert card.instances == 18 * 300
    description = yaml.safe_dump({**DESCRIPTION, "graph": "grid"})
    (folder / "set.yaml").write_text(description)
    refused(GraphError, "or --graph knn", prepare_localmil, tmp_path / "in", tmp_path / "other")


@pytest.mark.parametrize("name", ["ct_ich", "colon_tiles", "apnea", "magnetic_tiles"])
def test_known_sets_have_a_description(tmp_path, name):
    assert describe(name, tmp_path).graph == ("grid" if name.endswith("tiles") else "chain")


def _change(column, value, *, row=0):
    return lambda rows: [{**r, column: value} if k == row else r for k, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (None, "'toy' has no description: write .*set.yaml"),
        ({"url": "x"}, "unknown key 'url'"),
        ({"name": "x"}, "unknown key 'name'. Its heading has the key 'title'. Expected the keys"),
        ({"license": "x"}, r"unknown key 'license'\. Did you mean 'licence'\?"),
        ({"source": None}, "set.yaml lacks 'source': expected the keys title, source"),
        ({"title": " "}, "set.yaml lacks 'title'"),
        ({"commit": False}, "commit in .*set.yaml is False: expected a text; put it in quotes"),
        ({"title": ["a"]}, "title in .*set.yaml is .'a'.: expected a text"),
        ({"graph": "tree"}, "set.yaml is damaged: graph is 'tree'"),
        ({"graph": "chain"}, "coordinates with 2 axes"),
    ],
)
def test_unusable_descriptions_are_refused(tmp_path, description, message):
    given = None if description is None else {**DESCRIPTION, **description}
    _set(tmp_path / "in", description=given)
    refused(InputError, message, prepare_localmil, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change("label", 0, row=1), "'b01' of toy is negative, but 2 of"),
        (_change("label", 2), "needs negative .0. and positive .1. bags"),
        (_change("fold", 1), "group 'g0' is in two parts"),
        (lambda rows: [{k: r[k] for k in ("bag", "label")} for r in rows], "no column 'fold'"),
        (lambda rows: [{**r, "fold": int(r["group"][1:]) % 2} for r in rows], "has 2 folds"),
        (
            lambda rows: [{**r, "fold": k % 4, "group": k} for k, r in enumerate(rows)],
            r"fold 0 of .* has bags of class \{0\} only",
        ),
    ],
)
def test_unusable_labels_are_refused(tmp_path, change, message):
    _set(tmp_path / "in", labels=change)
    refused(InputError, message, prepare_localmil, tmp_path / "in", tmp_path / "out")


def test_sets_and_cards_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(InputError, match="has no sets: expected folders with features/"):
        prepare_localmil(tmp_path, tmp_path / "out")
    _set(tmp_path / "in", truth=False)
    with pytest.raises(InputError, match="no bag of toy has a positive instance label"):
        prepare_localmil(tmp_path / "in", tmp_path / "out")
    with pytest.raises(InputError, match="has no set 'other': it has toy"):
        prepare_localmil(tmp_path / "in", tmp_path / "out", sets=["other"])
    (tmp_path / "card.json").write_text('{"name": "toy"}')
    refused(InputError, r"card\.json is damaged: .* Prepare the set again", read_card, tmp_path)

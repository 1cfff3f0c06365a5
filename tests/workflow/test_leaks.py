"""Bags of several parts that are copies: a run says so before it trains, and is the same run."""

import json
from dataclasses import replace

import h5py
import numpy as np
from support.made_runs import assert_same_run, make_config

from probsa.core import TextTable
from probsa.datasets import NO_TEST, open_bags, read_table, telling_metadata
from probsa.datasets.labels import select_rows
from probsa.training import Reporter, train
from probsa.workflow import finish_run, train_and_report
from probsa.workflow.runs import NO_GROUP


class Remarks(Reporter):
    """Keep the remarks before the first epoch and those after it."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self.started = False

    def start(self, *, done: int, epochs: int) -> None:
        self.started = True

    def remark(self, text: str) -> None:
        (self.after if self.started else self.before).append(text)


def test_a_run_states_the_leaks_of_its_split_and_is_no_other_run(tmp_path) -> None:
    config = make_config(tmp_path / "data", model="mean-pool")
    clean = train_and_report(config, tmp_path / "clean", maps="none")
    assert clean.leaks == () and clean.to_dict()["leaks"] == []
    assert not clean.run.leaks_file.exists() and clean.report.warnings == ()
    features = config.data.features  # 000 and 006 test, 002 validates, 004 and 005 train
    (features / "004.h5").write_bytes((features / "000.h5").read_bytes())
    with h5py.File(features / "002.h5") as f, h5py.File(features / "005.h5", "r+") as g:
        x = f["features"][...] * np.float32(1.0001)
        del g["features"], g["coords"], g["instance_labels"]
        g["features"] = x
    (features / "006.h5").write_bytes(b"damaged")  # as without the check, it costs its prediction
    reporter = Remarks()
    trained = train_and_report(config, tmp_path / "run", maps="none", reporter=reporter)
    leaks, no_group = reporter.before
    assert str(trained.run.leaks_file) in leaks and no_group == NO_GROUP
    assert trained.report.warnings == (leaks,)
    assert any(str(trained.run.notes_file) in remark for remark in reporter.after)
    assert len(json.loads(trained.run.notes_file.read_text())) == 1
    rows = TextTable.read(trained.run.leaks_file).rows
    assert [tuple(r.values())[:5] for r in rows] == [
        ("copy", "004", "train", "000", "test"),
        ("near-copy", "005", "train", "002", "val"),
    ]
    assert json.loads(json.dumps(trained.to_dict()))["leaks"] == rows
    assert [bag for bag, _ in trained.failures] == ["006"]
    unchecked = train(config, tmp_path / "unchecked")
    finish_run(unchecked, maps="none")
    assert_same_run(trained.run, unchecked)


def test_what_is_doubtful_about_the_data_is_said_before_the_first_epoch(tmp_path) -> None:
    config = make_config(tmp_path / "data", model="mean-pool")
    reporter = Remarks()
    for k, path in enumerate(sorted(config.data.features.iterdir())):
        with h5py.File(path, "r+") as f:
            f["coords"].attrs["mpp_level0"] = 0.2502 if k % 2 else 0.46 + k / 10
    table = config.data.labels.read_text().splitlines()
    config.data.labels.write_text("\n".join(line[: line.rindex(",")] for line in table) + "\n")
    config = replace(config, data=replace(config.data, test_fold=None))
    trained = train_and_report(config, tmp_path / "run", reporter=reporter, note="no model")
    assert NO_TEST in trained.report.warnings
    bags = open_bags(config.data.features)
    table = read_table(config.data.labels)
    shortcut = telling_metadata(bags, table)
    assert "0.25" in shortcut
    assert reporter.before == [NO_TEST, NO_GROUP, shortcut, "no model"]
    some = select_rows(table, [*range(0, 12, 2), 1, 3, 5])
    assert telling_metadata(bags, some) == ""  # three bags may have it by chance
    with h5py.File(config.data.features / "000.h5", "r+") as f:
        f["coords"].attrs["mpp_level0"] = 0.25
    assert telling_metadata(open_bags(config.data.features), table) == ""

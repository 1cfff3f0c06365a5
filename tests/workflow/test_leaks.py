"""Bags of several parts that are copies: a run says so before it trains, and is the same run."""

import json

import h5py
import numpy as np
from support.made_runs import assert_same_run, make_config

from probsa.core import TextTable
from probsa.training import Reporter, train
from probsa.workflow import finish_run, train_and_report


class Remarks(Reporter):
    """Keep the remarks, and what was said before the first epoch."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self, *, done: int, epochs: int) -> None:
        self.said.append("start")

    def remark(self, text: str) -> None:
        self.said.append(text)


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
    sentence = (
        "1 copied bag, 1 near-copied bag in more than one of train, val and test, so the "
        f"evaluation may be too good: see {tmp_path / 'run' / 'leaks.csv'}"
    )
    assert reporter.said[:2] == [sentence, "start"]
    assert trained.report.warnings == (sentence,)
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

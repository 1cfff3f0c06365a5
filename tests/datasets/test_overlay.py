"""Instance labels from a separate folder: precedence, errors, and use in runs."""

from pathlib import Path

import numpy as np
import pytest
from support.stored import write_folder

from probsa.datasets import open_bags
from probsa.errors import BagError, TableError
from probsa.training import open_data, prepare
from probsa.training.config import DataConfig, RunConfig


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path, Path]:
    features, labels = write_folder(tmp_path)
    overlay = tmp_path / "instance_labels"
    overlay.mkdir()
    return features, labels, overlay


def test_a_file_goes_before_what_the_bag_holds_and_other_bags_keep_theirs(data) -> None:
    features, _, overlay = data
    plain = open_bags(features)
    other = np.full(plain.size("001"), -1)
    other[-1] = 1
    np.save(overlay / "001.npy", other)
    bags = open_bags(features, instance_labels=overlay)
    assert bags.stored("001").instance_labels.tolist() == other.tolist()
    assert bags.bag("001").instance_labels.tolist() == other.tolist()
    assert plain.bag("001").instance_labels.tolist() != other.tolist()
    for name in ("000", "003"):
        assert bags.bag(name).instance_labels.tolist() == plain.bag(name).instance_labels.tolist()


def test_a_file_of_another_length_names_the_bag_and_itself(data) -> None:
    features, _, overlay = data
    np.save(overlay / "002.npy", np.zeros(99, np.int64))
    bags = open_bags(features, instance_labels=overlay)
    with pytest.raises(BagError, match=r"bag '002' has \d instances.*002\.npy.*\(99,\)"):
        bags.bag("002")


@pytest.mark.parametrize("wrong", [np.float32(0.5), np.int64(-2)])
def test_what_is_no_label_is_refused(data, wrong) -> None:
    features, _, overlay = data
    np.save(overlay / "002.npy", np.full(open_bags(features).size("002"), wrong))
    with pytest.raises(BagError, match=r"002\.npy.*expected integers"):
        open_bags(features, instance_labels=overlay).stored("002")


def test_a_folder_of_other_bags_and_no_folder_are_refused(data) -> None:
    features, _, overlay = data
    np.save(overlay / "slide_0.npy", np.zeros(3, np.int64))
    with pytest.raises(BagError, match=r"none of the 1 files .* is named after a bag"):
        open_bags(features, instance_labels=overlay)
    with pytest.raises(BagError, match="there is no folder"):
        open_bags(features, instance_labels=overlay / "absent")


def test_a_run_reads_them_with_its_own_features_alone(data, tmp_path: Path) -> None:
    features, labels, overlay = data
    np.save(overlay / "001.npy", np.full(open_bags(features).size("001"), -1))
    config = DataConfig(features=features, labels=labels, instance_labels=overlay, test_fold=0)
    assert (open_data(config).stored("001").instance_labels == -1).all()
    others, _ = write_folder(tmp_path / "others", seed=1)
    assert (open_data(config, features=others).stored("001").instance_labels >= 0).all()
    run = RunConfig(data=config, model="abmil")
    again = RunConfig.from_dict(run.to_dict())
    assert again.data.instance_labels == overlay


def test_bags_that_the_table_does_not_name_are_left_out_where_that_is_asked_for(data) -> None:
    features, labels, _ = data
    lines = [line for line in labels.read_text().splitlines() if not line.startswith("004,")]
    labels.write_text("\n".join(lines) + "\n")
    config = DataConfig(features=features, labels=labels, test_fold=0)
    with pytest.raises(TableError, match="'004'"):
        prepare(RunConfig(data=config, model="abmil"))
    config = DataConfig(features=features, labels=labels, test_fold=0, unlabelled="leave_out")
    split = prepare(RunConfig(data=config, model="abmil")).split
    assert split.part_of("004") == "unused"
    assert len(split.train + split.val + split.test) == 11

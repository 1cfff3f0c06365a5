"""What a run needs of disk, memory and time, and what it is advised."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.made_runs import make_config, with_data
from support.stored import write_folder

from probsa.cli import main
from probsa.core import write_bag
from probsa.tasks import TargetOptions
from probsa.training import Demands, demands_of, prepare, reading_speed
from probsa.training.demands import ReadingSpeed

COHORT = Demands(
    instances=10_000 * 20_000,
    features=1536,
    speed=ReadingSpeed(
        bytes_per_second=1e9,
        bytes_per_value=2,
        edges_per_instance=4.0,
        graph_seconds_per_instance=1e-5,
    ),
    cache_gb=4.0,
    host_gb=64.0,
    device_gb=76.8,
    step_seconds=100.0,
)
"""10,000 slides of 20,000 patches."""


def with_speed(demands, **changed):
    return replace(demands, speed=replace(demands.speed, **changed))


def test_the_demands_of_a_large_cohort():
    assert COHORT.epoch_gb == pytest.approx(614.4)
    assert COHORT.weights_gb == pytest.approx(3.2)
    assert COHORT.cached_share == pytest.approx(0.8 / 614.4)
    assert COHORT.device_share == pytest.approx(0.125)
    assert not COHORT.remakes_graphs
    assert COHORT.graph_seconds == pytest.approx(2000)
    assert COHORT.reading_seconds == pytest.approx(613.6)
    assert COHORT.epoch_seconds == COHORT.reading_seconds
    assert COHORT.run_seconds(10) == pytest.approx(6136 + 2000)


def test_weights_that_the_cache_does_not_hold_are_made_in_every_epoch():
    small = replace(COHORT, cache_gb=3.0)
    assert small.remakes_graphs and small.cached_share == 0
    assert small.reading_seconds == pytest.approx(614.4 + 2000)
    assert small.run_seconds(10) == pytest.approx(26_144)


@pytest.mark.parametrize(
    ("demands", "advice"),
    [
        (COHORT, "workers"),
        (with_speed(COHORT, bytes_per_value=4), "half_precision"),
        (replace(COHORT, cache_gb=3.0), "cache_for_graphs"),
        (replace(COHORT, host_gb=2000.0), "larger_cache"),
        (replace(COHORT, host_gb=None), "workers"),
        (replace(COHORT, step_seconds=700.0), None),
        (replace(COHORT, cache_gb=700.0), None),
        (replace(COHORT, step_seconds=None), None),
    ],
)
def test_advice_is_given_where_reading_decides(demands, advice):
    assert demands.advice == advice


def test_a_device_holds_all_or_a_part_of_the_features():
    assert replace(COHORT, device_gb=700.0).device_share == 1
    assert replace(COHORT, device_gb=None).device_share is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_sizes_are_those_of_the_files(tmp_path, dtype):
    config = make_config(tmp_path / "data")
    sizes = {}
    for file in config.data.features.glob("*.h5"):
        n = 20 + int(file.stem)
        corners = np.stack([np.arange(n) % 5, np.arange(n) // 5], 1) * 256
        sizes[file.stem] = n
        write_bag(file, features=np.ones((n, 6), dtype), coords=corners, kind="slide")
    prepared = prepare(with_data(config, cache_gb=1.0))
    demands = demands_of(
        prepared,
        device=torch.device("cpu"),
        speed=reading_speed(prepared),
        step_seconds=None,
    )
    used = (*prepared.split.train, *prepared.split.val)
    assert demands.instances == sum(sizes[name] for name in used)
    assert demands.features == 6
    assert demands.speed.bytes_per_value == np.dtype(dtype).itemsize
    assert demands.epoch_gb == pytest.approx(demands.instances * 6 * np.dtype(dtype).itemsize / 1e9)
    assert 2 < demands.speed.edges_per_instance < 4
    assert demands.speed.bytes_per_second > 0
    assert demands.cached_share == 1
    assert demands.device_share is None
    assert demands.run_seconds(3) is None


def test_the_files_of_patients_are_read_slide_by_slide(tmp_path):
    config = make_config(tmp_path / "data")
    rows = config.data.labels.read_text().splitlines()
    table = ["bag,label,patient,fold"]
    for k in range(len(rows) - 1):
        patient = k // 2
        table.append(f"{k:03d},{patient % 2},p{patient},{patient % 3}")
    config.data.labels.write_text("\n".join(table) + "\n")
    prepared = prepare(with_data(config, targets=TargetOptions(unit="patient")))
    speed = reading_speed(prepared)
    assert speed.bytes_per_value == 4
    assert speed.bytes_per_second > 0


@pytest.mark.parametrize("model", ["abmil", "instance-lr"])
def test_a_dry_run_states_them(tmp_path, capsys, model):
    features, labels = write_folder(tmp_path / "data")
    flags = ["--features", features, "--labels", labels, "--test-fold", 0, "--model", model]
    assert main(["train", *map(str, flags), "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["instances"] > 0 and data["epoch_gb"] > 0
    assert data["cached_share"] == 1 and not data["graphs_every_epoch"]
    assert (data["step_seconds"] is None) == (model == "instance-lr")
    assert main(["train", *map(str, flags), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert f"{data['instances']:,} instances" in text

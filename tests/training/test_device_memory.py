"""What is said when a GPU runs out of memory: how many instances fit, and which options help."""

import pytest
import torch
from support.made_runs import make_config, with_training

from probsa.errors import InputError
from probsa.training import device_memory, train
from probsa.training.device_memory import MemoryState, Shortage, fitting_instances
from probsa.training.loop import TrainingLoop

GB = 10**9


def shortage(*sizes, fitting=None, is_training=True, precision="float32"):
    return Shortage(sizes=sizes, fitting=fitting, is_training=is_training, precision=precision)


@pytest.mark.parametrize(
    ("peak", "resting", "capacity", "expected"),
    [
        (11 * GB, 1 * GB, 100 * GB, 89_000),  # (.9 · 100 − 1) / (10 / 10,000)
        (11 * GB, 1 * GB, 10 * GB, 8_000),
        (11 * GB, 1 * GB, 1 * GB, 0),
        (1 * GB, 1 * GB, 10 * GB, 8 * GB),  # no memory per instance was measured
    ],
)
def test_memory_grows_in_proportion_to_instances(peak, resting, capacity, expected):
    fitting = fitting_instances(instances=10_000, peak=peak, resting=resting, capacity=capacity)
    assert fitting == expected


@pytest.mark.parametrize(
    ("case", "options"),
    [
        # several bags, each of which fits
        (shortage(*[900] * 8, fitting=4321), {"max_instances": "4300", "precision": "bf16"}),
        # a bag that does not fit by itself
        (shortage(7200, fitting=4321), {"window": "4300", "precision": "bf16"}),
        (
            shortage(6000, 1200, fitting=4321, precision="bf16"),
            {"window": "4300", "max_instances": "4300"},
        ),
        # nothing was measured: half of the batch
        (shortage(600, 600, precision="bf16"), {"max_instances": "600"}),
        # what was measured says that the batch fits, but it did not
        (shortage(50, 50, fitting=5000, precision="bf16"), {"max_instances": "99"}),
        # validation takes whole bags
        (
            shortage(*[1000] * 8, fitting=4321, is_training=False, precision="bf16"),
            {"batch_size": "4"},
        ),
        (shortage(7200, fitting=4321, is_training=False), {"precision": "bf16"}),
        (shortage(7200, fitting=4321, is_training=False, precision="bf16"), {}),
        (shortage(1, fitting=0, precision="bf16"), {}),
    ],
)
def test_options_that_help(case, options):
    assert case.options == options


class Gauge:
    """Stands for a device on which each instance of a step takes a megabyte."""

    def __init__(self):
        self.asked = 0

    def __call__(self, device):
        self.asked += 1
        return MemoryState(allocated=GB, peak=GB + 10**6 * self.largest, capacity=2 * GB)


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path / "data", epochs=2)


@pytest.mark.parametrize("failing_step", [0, 3])
def test_a_step_that_runs_out_of_memory_says_what_fits(config, tmp_path, monkeypatch, failing_step):
    gauge = Gauge()
    sizes = []
    step = TrainingLoop.step

    def fails(loop, part, bags, weight):
        if len(sizes) == failing_step:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(bags.x))
        gauge.largest = max(sizes)
        return step(loop, part, bags, weight)

    monkeypatch.setattr(TrainingLoop, "step", fails)
    monkeypatch.setattr(device_memory, "memory_state", gauge)
    with pytest.raises(InputError) as raised:
        train(config, tmp_path / "run")
    text = str(raised.value)
    assert "max_instances: " in text and "precision: bf16" in text
    assert ("about 800 instances" in text) == (failing_step > 0)
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_a_device_is_asked_only_after_a_step_larger_than_all_before(config, tmp_path, monkeypatch):
    gauge = Gauge()
    gauge.largest = 1
    sizes = []
    step = TrainingLoop.step

    def recorded(loop, part, bags, weight):
        sizes.append(len(bags.x))
        return step(loop, part, bags, weight)

    monkeypatch.setattr(TrainingLoop, "step", recorded)
    monkeypatch.setattr(device_memory, "memory_state", gauge)
    train(config, tmp_path / "run")
    records = {max(sizes[: k + 1]) for k in range(len(sizes))}
    assert gauge.asked == len(records) < len(sizes)


def test_validation_that_runs_out_of_memory_says_so(config, tmp_path, monkeypatch):
    def fails(loop, bags):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TrainingLoop, "_on_device", fails)
    monkeypatch.setattr(TrainingLoop, "train_epoch", lambda loop: {})
    with pytest.raises(InputError, match=r"validation of .* batch_size: 1"):
        train(with_training(config, precision="bf16"), tmp_path / "run")

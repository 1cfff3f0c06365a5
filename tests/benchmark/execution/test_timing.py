"""Steps are timed on real batches, in turns, beside torchmil's if it is installed."""

from dataclasses import asdict, replace

import pytest
import torch

from probsa.benchmark.execution import timing
from probsa.benchmark.execution.timing import StepTime, race, read_timing, time_steps, write_timing
from probsa.benchmark.execution.torchmil import MODELS, UNLIKE
from probsa.benchmark.grid.methods_and_cells import Cell, Method
from probsa.core.files import write_csv
from probsa.errors import InputError
from probsa.models import names
from probsa.training.config import DataConfig, RunConfig, TrainingConfig


@pytest.fixture
def cells(shared_data):
    folder = shared_data / "bags" / "ct_ich"
    if not folder.is_dir():
        pytest.skip("the stand-in data set is not there")
    data = DataConfig(features=folder / "features", labels=folder / "labels.csv", test_fold=0)
    training = TrainingConfig(batch_size=4, device="cpu", tensorboard=False)

    def cell(model, kl=None, **arguments):
        return Cell(
            data="ct_ich",
            method=Method(label=model, model=model, arguments=arguments, kl_weight=kl),
            split=0,
            seed=0,
            config=RunConfig(data=data, model=model, model_arguments=arguments, training=training),
        )

    return [cell("abmil-probsa-diag", "cyclical"), cell("abmil"), cell("dsmil")]


def clock(monkeypatch, seconds):
    """Return steps that advance a fake clock by the given seconds per round."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def step(name):
        def run(k):
            now[0] += seconds[name][k]

        return run

    return {name: step(name) for name in seconds}


def test_contestants_take_turns_and_the_first_round_does_not_count(monkeypatch):
    order = []
    seconds = {"a": [9.0, 1.0, 2.0], "b": [9.0, 3.0, 5.0]}
    steps = clock(monkeypatch, seconds)

    def noted(name):
        return lambda k: (order.append((k, name)), steps[name](k))

    times = race({n: noted(n) for n in steps}, rounds=2)
    assert times == {"a": [1.0, 2.0], "b": [3.0, 5.0]}
    assert order == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_times_are_medians_and_overheads_medians_of_paired_ratios(cells, monkeypatch, tmp_path):
    # milliseconds per round; the first round warms up
    fixed = {
        "abmil-probsa-diag": [0.0, 4.0, 8.0, 6.0],
        "abmil": [0.0, 2.0, 2.0, 1.0],
        "dsmil": [0.0, 1.0, 3.0, 2.0],
        "torchmil abmil": [0.0, 6.0, 4.0, 2.0],
        "torchmil abmil-probsa-diag": [0.0, 8.0, 8.0, 9.0],
        "torchmil dsmil": [0.0, 1.0, 3.0, 2.0],
    }

    def fake(steps, *, rounds):
        assert rounds == 3
        return {n: [v / 1000 for v in fixed[n][1:]] for n in steps}

    monkeypatch.setattr(timing, "race", fake)
    path = write_timing(cells, tmp_path, rounds=3)
    assert path == tmp_path / "timing.csv"
    found = {t.method: t for t in read_timing(tmp_path)}
    # in the order of the paper
    assert list(found) == ["abmil-probsa-diag", "abmil", "dsmil"]
    diag = found["abmil-probsa-diag"]
    assert (diag.milliseconds, diag.lower, diag.upper) == (6.0, 5.0, 7.0)
    # 4/2, 8/2, 6/1
    assert diag.overhead == 4.0
    assert found["abmil"].overhead == 1.0
    # 1/2, 3/2, 2/1
    assert found["dsmil"].overhead == 1.5
    assert (diag.data, diag.bags, diag.threads, diag.device) == ("ct_ich", 4, 1, "cpu")


def test_a_step_trains_on_real_batches(cells):
    threads = torch.get_num_threads()
    state = torch.random.get_rng_state()
    found = time_steps(cells, rounds=2, batches=2)
    assert [t.method for t in found] == ["abmil-probsa-diag", "abmil", "dsmil"]
    for t in found:
        assert 0 < t.lower <= t.milliseconds <= t.upper
        assert t.overhead is not None and t.overhead > 0
        # four scans of 20 to 50 slices
        assert 4 * 10 < t.instances < 4 * 60
    # the global state of torch is restored
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_timed_step_moves_the_weights(cells):
    config = cells[0].config
    prepared = timing.prepare(config)
    held = timing._batches(config, prepared, count=1, device=torch.device("cpu"))
    model = timing._model(config, prepared)
    before = {k: v.clone() for k, v in model.named_parameters()}
    timing._our_step(model, config, held)(0)
    still = [k for k, v in model.named_parameters() if torch.equal(v, before[k])]
    assert still == []


def test_one_cell_a_method_is_timed_whatever_its_kl_split_and_seed(cells, monkeypatch, tmp_path):
    seen = []

    def fake(given, *, rounds, threads):
        seen.append([(c.method.label, c.method.kl_weight, c.seed) for c in given])
        assert (rounds, threads) == (3, 2)
        return []

    monkeypatch.setattr(timing, "time_steps", fake)
    first = cells[0]
    other = replace(first, seed=1, method=replace(first.method, kl_weight=0.1))
    elsewhere = replace(cells[1], data="colon_tiles")
    write_timing([*cells, other, elsewhere], tmp_path, rounds=3, threads=2)
    assert sorted(seen[0]) == [
        ("abmil", None, 0),
        ("abmil-probsa-diag", "cyclical", 0),
        ("dsmil", None, 0),
    ]
    assert seen[1] == [("abmil", None, 0)]


def test_without_the_plain_model_there_is_no_overhead(cells):
    (only,) = time_steps(cells[2:], rounds=1, batches=1)
    assert only.overhead is None


def test_no_file_is_no_times_and_a_damaged_one_is_named(tmp_path):
    assert read_timing(tmp_path) == []
    (tmp_path / "timing.csv").write_text("data,method\na,b\n")
    with pytest.raises(InputError, match=r"timing\.csv cannot be used"):
        read_timing(tmp_path)


def test_theirs_stands_beside_the_same_network_alone(cells, monkeypatch):
    """A model with arguments that torchmil's lacks is timed by itself."""
    monkeypatch.setattr(timing, "torchmil_model", lambda *_, **__: torch.nn.Linear(1, 1))
    monkeypatch.setattr(timing, "torchmil_batch", lambda _: {})
    monkeypatch.setattr(timing, "torchmil_loss", lambda *_: None)
    config = cells[0].config
    held = timing._batches(config, timing.prepare(config), count=1, device=torch.device("cpu"))
    for arguments, beside in (({}, True), ({"samples": 4}, True), ({"embed": 8}, False)):
        method = replace(cells[0].method, arguments=arguments)
        assert (timing._torchmil_step(method, config, held, samples=4) is not None) == beside


def test_rounds_are_at_least_one(cells):
    with pytest.raises(InputError, match="0 rounds"):
        time_steps(cells, rounds=0)
    with pytest.raises(InputError, match="rounds of 0 batches"):
        time_steps(cells, batches=0)


def test_torchmil_is_timed_beside_ours_with_as_many_samples(cells):
    pytest.importorskip("torchmil", reason="torchmil is not installed")
    found = {t.method: t for t in time_steps(cells, rounds=1, batches=1)}
    assert all(t.torchmil is not None and t.torchmil_ratio is not None for t in found.values())


def test_every_model_of_torchmils_is_one_of_ours():
    assert set(UNLIKE) <= set(MODELS) <= set(names())


def test_times_survive_the_file(tmp_path):
    time = StepTime(
        data="a",
        method="b",
        model="abmil",
        bags=4,
        instances=130.5,
        milliseconds=1.25,
        lower=1.0,
        upper=2.0,
        overhead=None,
        torchmil=2.5,
        torchmil_ratio=2.0,
        threads=1,
        device="cpu",
        torch="2",
    )
    write_csv(tmp_path / "timing.csv", list(asdict(time)), [asdict(time)])
    assert read_timing(tmp_path) == [time]

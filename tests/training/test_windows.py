"""Windows: which instances an epoch trains on, and that nothing else decides it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, shortest_path
from support.made_runs import (
    Breaker,
    Stopped,
    assert_same_run,
    history_of,
    loop_of,
    make_config,
    with_training,
)
from support.stored import write_folder

from probsa import Bag
from probsa.cli import main
from probsa.core import chain, grid, join_bags, select_instances
from probsa.datasets import BagList
from probsa.errors import InputError
from probsa.models import look_up, names
from probsa.training import Reporter, RunConfig, prepare, train
from probsa.training.batching import BagReader, Loader, Shard
from probsa.training.residency import ResidentFeatures, ResidentReader
from probsa.training.windows import draw_window, window_rows


def bag_of(coords, edges, *, name="bag"):
    """Return a bag whose only feature is the row of each instance."""
    n = len(coords)
    weights = torch.rand(edges.shape[1], generator=torch.Generator().manual_seed(1)) + 0.1
    return Bag(
        name=name,
        x=torch.arange(n, dtype=torch.float32)[:, None],
        coords=coords,
        edges=edges,
        weights=weights,
        y=1,
        instance_labels=torch.arange(n) % 2,
    )


def lattice(side, *, holes=0.0, seed=0, origin=(0, 0)):
    cells = torch.cartesian_prod(torch.arange(side), torch.arange(side)) + torch.tensor(origin)
    kept = torch.rand(len(cells), generator=torch.Generator().manual_seed(seed)) >= holes
    return cells[kept] * 256


def slide(side=20, *, holes=0.0, seed=0, name="slide"):
    coords = lattice(side, holes=holes, seed=seed)
    return bag_of(coords, grid(coords, stride=256.0), name=name)


def scan(n, *, shuffled=False):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2))
    positions = (order if shuffled else torch.arange(n)) * 5
    return bag_of(positions[:, None], chain(n, positions))


def adjacency(bag):
    i, j = bag.edges.numpy()
    return coo_array((np.ones(len(i)), (i, j)), shape=(len(bag), len(bag))).tocsr()


def count_components(bag):
    return connected_components(adjacency(bag), directed=False)[0]


def rows_of(bag, size, seed):
    return window_rows(bag, size=size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("holes", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 2, 7, 49, 130])
def test_a_window_of_a_slide_is_connected_and_compact(holes, size):
    bag = slide(20, holes=holes)
    _, component = connected_components(adjacency(bag), directed=False)
    is_whole = np.bincount(component)[component] >= size
    seen = set()
    for seed in range(30):
        rows = rows_of(bag, size, seed)
        assert len(rows) == size and (np.diff(rows) > 0).all()
        window = select_instances(bag, torch.from_numpy(rows))
        if is_whole[rows].any():
            assert count_components(window) == 1
        # no instance is farther from the centre than any that was left out, for some centre
        steps = shortest_path(adjacency(bag), directed=False, unweighted=True, indices=rows)
        left_out = np.setdiff1d(np.arange(len(bag)), rows)
        assert (steps[:, rows].max(1) <= steps[:, left_out].min(1)).any()
        seen.add(rows.tobytes())
    assert len(seen) > 10


def test_a_window_of_a_full_lattice_is_a_block():
    bag = slide(40)
    for seed in range(20):
        cells = bag.coords[rows_of(bag, 49, seed)].numpy() / 256
        sides = np.ptp(cells, axis=0) + 1
        # 7 by 7 inside; at an edge of the slide the block is cut, and longer on the other sides
        assert sides.max() <= 13
        if cells.min() > 7 and cells.max() < 32:
            assert sides.tolist() == [7, 7]


def test_of_instances_that_are_equally_many_steps_away_the_nearest_are_taken():
    bag = slide(40)
    inside = 0
    for seed in range(20):
        cells = bag.coords[rows_of(bag, 45, seed)].numpy() // 256
        if cells.min() > 0 and cells.max() < 39:
            inside += 1
            corner = np.abs(cells - cells.mean(0).round()).min(1) == 3
            assert not corner.any()  # of a block of 7 by 7
    assert inside > 3


def test_edges_weights_and_labels_of_a_window_are_those_of_the_bag():
    bag = slide(12, holes=0.2)
    window = draw_window(bag, size=40, generator=torch.Generator().manual_seed(4))
    rows = window.x[:, 0].long()
    weight_of = dict(zip(map(tuple, bag.edges.T.tolist()), bag.weights.tolist(), strict=True))
    inside = set(rows.tolist())
    expected = {pair: w for pair, w in weight_of.items() if inside.issuperset(pair)}
    pairs = map(tuple, rows[window.edges].T.tolist())
    assert dict(zip(pairs, window.weights.tolist(), strict=True)) == expected
    assert torch.equal(window.coords, bag.coords[rows])
    assert torch.equal(window.instance_labels, bag.instance_labels[rows])
    assert window.y == bag.y and window.name == bag.name


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("size", [1, 2, 9, 29])
def test_a_window_of_a_scan_is_a_run_of_slices(shuffled, size):
    bag = scan(30, shuffled=shuffled)
    first_slices = set()
    for seed in range(80):
        positions = np.sort(bag.coords[rows_of(bag, size, seed), 0].numpy())
        assert len(positions) == size and (np.diff(positions) == 5).all()
        first_slices.add(int(positions[0]))
    assert {0, (30 - size) * 5} <= first_slices


def test_a_window_leaves_its_piece_of_tissue_only_when_that_is_used_up():
    pieces = [lattice(4), lattice(4, origin=(10, 0)), lattice(4, origin=(50, 0))]
    coords = torch.cat(pieces)
    bag = bag_of(coords, grid(coords, stride=256.0))
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        centre = int(torch.randint(48, (1,), generator=generator))
        own = centre // 16
        nearest, farthest = {0: (1, 2), 1: (0, 2), 2: (1, 0)}[own]
        for size in (10, 16, 20, 32, 40):
            counts = np.bincount(rows_of(bag, size, seed) // 16, minlength=3)
            expected = [0, 0, 0]
            expected[own] = min(size, 16)
            expected[nearest] = min(max(size - 16, 0), 16)
            expected[farthest] = max(size - 32, 0)
            assert counts.tolist() == expected
            rows = torch.from_numpy(rows_of(bag, size, seed))
            assert count_components(select_instances(bag, rows)) == np.count_nonzero(expected)


def test_a_window_of_a_patient_takes_one_slide_after_another():
    slides = []
    for name, side in {"a": 2, "b": 3, "c": 4}.items():
        coords = torch.cat([lattice(side), lattice(side, origin=(30, 0))])
        slides.append(bag_of(coords, grid(coords, stride=256.0), name=name))
    patient = join_bags("patient", slides, y=1)
    sizes = [8, 18, 32]
    starts = set()
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        own = int(patient.slide[torch.randint(58, (1,), generator=generator)])
        starts.add(own)
        for size in (5, 20, 40, 55):
            rows = torch.from_numpy(rows_of(patient, size, seed))
            counts = np.bincount(patient.slide[rows].numpy(), minlength=3)
            remaining = size
            for k in (own, (own + 1) % 3, (own + 2) % 3):
                assert counts[k] == min(sizes[k], remaining)
                remaining -= counts[k]
            # each slide has two pieces, of which the second is begun when the first is used up
            pieces = -(-2 * counts // np.array(sizes))
            assert count_components(select_instances(patient, rows)) == pieces.sum()
    assert starts == {0, 1, 2}


def test_without_coordinates_a_window_stays_in_its_component():
    i = torch.arange(30)
    edges = torch.stack([i[:-1], i[1:]])[:, i[1:] % 10 > 0]  # three chains of ten
    bag = replace(bag_of(i[:, None], edges), coords=None)
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        own = int(torch.randint(30, (1,), generator=generator)) // 10
        for size in (4, 10, 14, 20):
            counts = np.bincount(rows_of(bag, size, seed) // 10, minlength=3)
            assert counts[own] == min(size, 10)
            rows = torch.from_numpy(rows_of(bag, size, seed))
            assert count_components(select_instances(bag, rows)) == -(-size // 10)


def test_without_a_graph_and_coordinates_a_window_is_a_random_sample():
    n = 60
    bag = Bag(
        name="bag", x=torch.randn(n, 2), edges=torch.zeros(2, 0).long(), weights=torch.zeros(0)
    )
    counts = np.zeros(n)
    for seed in range(600):
        rows = rows_of(bag, 15, seed)
        assert len(np.unique(rows)) == 15
        counts[rows] += 1
    # each instance is in a quarter of the windows: mean 150, standard deviation 10.6
    assert counts.min() > 100 and counts.max() < 200


def test_a_bag_that_is_not_larger_than_the_window_is_left_as_it_is():
    bag = slide(5)
    generator = torch.Generator().manual_seed(0)
    assert draw_window(bag, size=25, generator=generator) is bag
    assert draw_window(bag, size=26, generator=generator) is bag


WINDOW = 3
"""Bags of the folder have 3 to 9 instances."""


@pytest.fixture(params=["ct", "slide"])
def config(tmp_path, request):
    write_folder(tmp_path / "data", bags=18, kind=request.param)
    return make_config(tmp_path / "data", window=WINDOW)


def batches_of(config: RunConfig, folder, shards, *, workers=0):
    reader = loop_of(config, folder).reader
    loader = Loader(reader, workers=workers, device=torch.device("cpu"))
    with loader.epoch(shards) as batches:
        return [bags for _, bags in batches]


def test_a_window_depends_on_seed_epoch_and_bag_alone(config, tmp_path):
    train_bags = prepare(config).split.train
    together = batches_of(config, tmp_path, [Shard(train_bags, len(train_bags), epoch=1)])[0]
    assert all(size <= WINDOW for size in together.sizes)
    alone = [Shard((name,), len(train_bags), epoch=1) for name in reversed(train_bags)]
    windows = batches_of(config, tmp_path, alone)[::-1]
    assert torch.equal(torch.cat([bags.x for bags in windows]), together.x)
    in_workers = batches_of(config, tmp_path, alone, workers=2)[::-1]
    assert torch.equal(torch.cat([bags.x for bags in in_workers]), together.x)

    def windows_with(run, epoch):
        return batches_of(run, tmp_path, [Shard(train_bags, len(train_bags), epoch=epoch)])[0].x

    assert not torch.equal(windows_with(config, 0), together.x)
    assert not torch.equal(windows_with(replace(config, seed=1), 1), together.x)
    # members of a run, which have seeds of their own, train on the same windows
    member = replace(config, seed=1, data_seed=0)
    assert torch.equal(windows_with(member, 1), together.x)


def test_bags_of_one_shape_have_windows_of_their_own():
    bags = BagList([slide(name=f"slide {k}") for k in range(6)])
    reader = BagReader(bags, {}, model="abmil", window=9, seed=0)
    windows = reader[Shard(bags.names, 6, epoch=0)]
    assert windows.sizes == (9,) * 6
    assert len({x.numpy().tobytes() for x in windows.x.split(9)}) > 3


def test_windows_of_features_that_stay_on_a_device_are_the_same(config, tmp_path):
    reader = loop_of(config, tmp_path).reader
    part = prepare(config).split.train
    resident = ResidentFeatures(part[::2], device=torch.device("cpu"), nbytes=0)
    resident_reader = ResidentReader(reader, resident)
    for epoch in range(3):  # from the second one on, the features are on the device
        shard = Shard(part, len(part), epoch=epoch)
        expected = reader[shard]
        bags = resident.on_device(resident_reader[shard])
        assert torch.equal(bags.x, expected.x) and torch.equal(bags.edges, expected.edges)


def test_without_an_epoch_bags_are_read_whole(config, tmp_path):
    prepared = prepare(config)
    part = prepared.split.train
    (whole,) = batches_of(config, tmp_path, [Shard(part, len(part))])
    assert whole.sizes == tuple(prepared.bags.size(name) for name in part)


@pytest.mark.parametrize("model", ["abmil-probsa-diag", "evidence-field", "clam-sb"])
def test_a_window_over_all_instances_changes_nothing(tmp_path, model):
    config = make_config(tmp_path / "data", model=model, model_arguments={"embed": 8})
    whole = train(config, tmp_path / "whole")
    windowed = train(with_training(config, window=9), tmp_path / "windowed")
    assert_same_run(whole, windowed)
    smaller = train(with_training(config, window=WINDOW), tmp_path / "smaller")
    assert [r["loss"] for r in history_of(smaller)] != [r["loss"] for r in history_of(whole)]


@pytest.mark.parametrize(
    "training", [{}, {"members": 2}, {"sampling": "balanced", "max_instances": 7}], ids=str
)
def test_an_interrupted_run_on_windows_ends_with_the_same_bits(config, tmp_path, training):
    config = with_training(config, epochs=4, batch_size=3, **training)
    whole = train(config, tmp_path / "whole")
    for steps in (2, 3):
        with pytest.raises(Stopped):
            train(config, tmp_path / "broken", resume=True, reporter=Breaker(steps))
    assert_same_run(whole, train(config, tmp_path / "broken", resume=True))


def test_workers_draw_the_same_windows(config, tmp_path):
    a = history_of(train(config, tmp_path / "a"))
    b = history_of(train(with_training(config, workers=2), tmp_path / "b"))
    for row, other in zip(a, b, strict=True):
        del row["seconds"]
        del other["seconds"]
    assert a == b


def test_the_limit_of_a_step_counts_windows(config, tmp_path):
    config = with_training(config, batch_size=4, max_instances=2 * WINDOW)
    loop = loop_of(config, tmp_path)
    for plan in loop.plans:
        # every window has three instances, so that a batch is closed after two bags
        assert [len(batch) for batch in plan] == [2, 2, 2]
    whole = loop_of(with_training(config, window=None), tmp_path)
    assert any(len(batch) == 1 for plan in whole.plans for batch in plan)


def test_validation_sees_whole_bags(config, tmp_path):
    loop = loop_of(config, tmp_path)
    sizes = []
    predict = loop.predict

    def recorded_predict(bags):
        sizes.append(bags.sizes)
        return predict(bags)

    loop.predict = recorded_predict
    loop.validate()
    validation_bags = loop.prepared.split.val
    expected = [loop.prepared.bags.size(name) for name in validation_bags]
    assert [size for batch in sizes for size in batch] == expected
    assert max(expected) > WINDOW


NEED_WHOLE_BAGS = {"camil", "iibmil", "setmil", *(n for n in names() if n.startswith("transmil"))}
"""Models that are trained by steps and refuse windows, beside those that are fitted in one go."""


@pytest.mark.parametrize("model", names())
def test_models_that_need_whole_bags_refuse_windows(tmp_path, model):
    write_folder(tmp_path / "data", kind="slide")
    config = make_config(tmp_path / "data", model=model, model_arguments={}, window=WINDOW)
    is_refused = look_up(model).model.fits_directly or model in NEED_WHOLE_BAGS
    if not is_refused:
        assert prepare(config).notes
        return
    with pytest.raises(InputError) as refused:
        prepare(config)
    assert f"window is {WINDOW}" in str(refused.value) and model in str(refused.value)
    with pytest.raises(InputError):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not prepare(with_training(config, window=None)).notes


@pytest.mark.parametrize("window", ["0", "-4", "2.5", "half", "true"])
def test_a_window_that_is_no_positive_whole_number_is_refused(tmp_path, capsys, window):
    features, labels = write_folder(tmp_path / "data")
    flags = ["--features", str(features), "--labels", str(labels), "--window", window, "--dry-run"]
    assert main(["train", *flags]) == 2
    assert "window" in capsys.readouterr().err


class Listener(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_window_larger_than_every_bag_is_noted(config, tmp_path):
    listener = Listener()
    train(with_training(config, window=500, epochs=1), tmp_path / "run", reporter=listener)
    (note,) = [note for note in listener.notes if "window" in note]
    assert "500" in note and "no effect" in note


def test_the_run_and_its_dry_run_show_the_window(tmp_path, capsys):
    features, labels = write_folder(tmp_path / "data")
    flags = ["--features", features, "--labels", labels, "--test-fold", 0, "--model", "abmil"]
    flags += ["--epochs", 1, "--window", 4, "--maps", "none", "--device", "cpu"]
    assert main(["train", *map(str, flags), "--dry-run"]) == 0
    note = next(line for line in capsys.readouterr().err.splitlines() if "window" in line)
    assert main(["train", *map(str, flags), "--out", str(tmp_path / "run")]) == 0
    assert note in capsys.readouterr().err.splitlines()
    assert "window: 4" in (tmp_path / "run" / "run.yaml").read_text()

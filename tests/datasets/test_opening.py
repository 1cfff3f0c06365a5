"""Opening folders of bags of each tool, and bags in memory; notes and errors."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from support import foreign
from support.foreign import expected_edges, slide
from support.refusals import refused
from support.stored import write_folder

from probsa import Bag
from probsa.core import GraphOptions, graphs, pack, write_bag
from probsa.datasets import (
    BagList,
    BagSet,
    EstimatedStride,
    IsolatedPatches,
    LeftOut,
    MissingSlices,
    MissingSlides,
    NoCoordinates,
    SlicesAtOnePosition,
    SlicesNotInOrder,
    StoredText,
    check_labels_match,
    most_frequent,
    open_bags,
    read_notes,
    read_table,
    write_notes,
)
from probsa.datasets.studies.study import StudyOptions, StudySource
from probsa.datasets.studies.table import draft
from probsa.errors import BagError, GraphError, InputError, TableError
from probsa.training import DataConfig, RunConfig, open_data, prepare

N = 12
WIDTH = 5
TRIDENT = {"patch_size": 512, "patch_size_level0": 1024, "overlap": 0, "name": "s"}


def features(seed: int, *, n: int = N, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(dtype)


def corners(*, step: int, n: int = N) -> np.ndarray:
    """Return corners in four columns, row by row."""
    i = np.arange(n)
    return np.stack([i % 4, i // 4], axis=1) * step


LATTICE = graphs.grid(torch.from_numpy(corners(step=1)), stride=1.0)


def slides(folder: Path, names: str = "abc", **options: object) -> Path:
    for i, name in enumerate(names):
        arguments = {"features": features(i), "coords": corners(step=1024), "kind": "slide"}
        write_bag(folder / f"{name}.h5", **(arguments | {"attributes": TRIDENT} | options))
    return folder


def missing(*gaps: tuple[float, float], more: int = 0, step: float = 1.0) -> MissingSlices:
    positions = tuple((float(low), float(high)) for low, high in gaps)
    return MissingSlices(gaps=positions, more_gaps=more, step=step)


def scan(folder: Path, positions: list[float]) -> BagSet:
    x = features(0, n=len(positions))
    position = np.array(positions)[:, None]
    write_bag(folder / "scan.h5", features=x, coords=position, kind="ct")
    return open_bags(folder)


def test_a_folder_of_our_files(tmp_path):
    labels = np.arange(N) % 2
    slides(tmp_path, "b", instance_labels=labels, features=features(7, dtype="float16"))
    slides(tmp_path, "a", features=features(8, dtype="float16"))
    slides(tmp_path / "patches", "abc")  # files of coordinates below are no bags
    bags = open_bags(tmp_path)
    assert (bags.names, bags.in_dim, bags.size("b"), len(bags)) == (("a", "b"), WIDTH, N, 2)
    bag = bags.bag("b")
    assert (bag.name, bag.y, bag.stride, bag.x.dtype) == ("b", None, 1024.0, torch.float16)
    np.testing.assert_array_equal(bag.x.numpy(), features(7, dtype="float16"))
    assert torch.equal(bag.coords, torch.from_numpy(corners(step=1024)))
    assert torch.equal(bag.instance_labels, torch.from_numpy(labels))
    assert torch.equal(bag.edges, LATTICE)
    assert torch.equal(bag.weights, graphs.edge_weights(bag.x, bag.edges))
    assert bags.stored("b").inferred_kind == "slide" and bags.notes == {}
    assert pack([bag, bags.bag("a")]).sizes == (N, N)


def test_a_trident_job_with_two_encoders(tmp_path):
    for seed, encoder in enumerate(("uni", "resnet50")):
        foreign.trident(tmp_path, slide(seed=seed), encoder=encoder)
    job = tmp_path / "20x_512px_0px_overlap"
    for given, message in (
        (None, "features_resnet50, features_uni.*or choose"),
        ("features_un", r"no folders .* named 'features_un'.*Did you mean 'features_"),
    ):
        refused(BagError, message, open_bags, job, features=given)
    for bags in (open_bags(job, features="uni"), open_bags(job / "features_uni")):
        np.testing.assert_array_equal(bags.bag("s1").x.float(), slide().features)


@pytest.mark.parametrize("sets", [("features_a",), ("features_a", "features_b")])
def test_files_in_the_folder_itself_go_before_its_folders_of_features(tmp_path, sets):
    slides(tmp_path, ("top",))
    for name in sets:
        slides(tmp_path / name, (name,))
    assert open_bags(tmp_path).names == (*sets, "top")
    assert open_bags(tmp_path, features="a").names == ("features_a",)


def test_tensors_beside_arrays_of_the_same_bags_do_not_keep_these_from_being_read(tmp_path):
    np.save(tmp_path / "a.npy", features(0))
    torch.save(torch.from_numpy(features(0)), tmp_path / "a.pt")
    np.testing.assert_array_equal(open_bags(tmp_path).bag("a").x.numpy(), features(0))


def clam(folder: Path, root: str) -> tuple[Path, Path]:
    """Write CLAM's folder, and return it and that of patches, which for FEAT is one level up."""
    path = foreign.clam(folder / root, slide(scan=40))
    patches = folder / "patches" if root == "FEAT" else path / "patches"
    (path / "patches").rename(patches)
    shutil.rmtree(path / "pt_files")
    return path, patches / "s1.h5"


@pytest.mark.parametrize("root", ["FEAT", "OUT"])  # patches one level up, and beside h5_files
@pytest.mark.parametrize("given", [".", "h5_files"])
def test_a_clam_folder_takes_the_patch_size_from_patches(tmp_path, root, given):
    bags = open_bags(clam(tmp_path, root)[0] / given)
    bag = bags.bag("s1")
    assert (bags.names, bag.stride, bag.coords.dtype) == (("s1",), 1024, torch.int64)
    assert bag.edges.shape == expected_edges(slide())[0].shape and bags.notes == {}


def test_clam_s_patch_size_is_cross_checked_or_estimated(tmp_path):
    path, patches = clam(tmp_path, "FEAT")
    with h5py.File(patches, "r+") as f:
        f["coords"].attrs["patch_size"] = 512
    refused(GraphError, "s1: .* 2048 .*1024", open_bags(path).bag, "s1")
    told = open_bags(path, graph=GraphOptions(stride=1024.0)).bag("s1")
    assert told.edges.shape == expected_edges(slide())[0].shape
    patches.unlink()
    bags = open_bags(path)
    assert bags.bag("s1").stride == 1024
    assert bags.notes == {"s1": (EstimatedStride(stride=1024.0),)}


def test_a_scan_beside_slides_needs_no_patches(tmp_path):
    path, _ = clam(tmp_path, "OUT")
    position = np.arange(N)[:, None]
    write_bag(path / "h5_files" / "scan.h5", features=features(3), coords=position, kind="ct")
    bags = open_bags(path)
    assert bags.stored("scan").inferred_kind == bags.metadata("scan").kind == "ct"


def torchmil(root: Path, *, scans: bool = False, encoders: tuple[str, ...] = ("resnet50",)) -> Path:
    for i, name in enumerate(("w1", "w2")):
        parts = {f"features/features_{e}": features(10 * i + len(e)) for e in encoders}
        parts |= {"labels": np.array([i])}
        parts["slice_labels" if scans else "patch_labels"] = np.full((N, 1), i)
        if not scans:
            parts["coords"] = corners(step=512)
        for folder, values in parts.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            np.save(root / folder / f"{name}.npy", values)
    return root


def test_torchmil_slides_and_scans(tmp_path):
    root = torchmil(tmp_path / "patches_512")
    for given in (tmp_path, root, root / "features" / "features_resnet50"):
        bags = open_bags(given)
        bag = bags.bag("w2")
        assert (bags.names, bags.in_dim, bags.size("w1")) == (("w1", "w2"), WIDTH, N)
        np.testing.assert_array_equal(bag.x.numpy(), features(18))
        assert (bag.instance_labels.tolist(), bag.stride) == ([1] * N, 512)
        assert torch.equal(bag.edges, LATTICE) and bags.stored("w2").inferred_kind == "slide"
    bags = open_bags(torchmil(tmp_path / "ct", scans=True, encoders=("a", "bt")), features="bt")
    bag = bags.bag("w1")
    assert torch.equal(bag.edges, graphs.chain(N))
    assert (bag.coords, bag.stride, bags.stored("w1").inferred_kind) == (None, None, "ct")
    np.testing.assert_array_equal(bag.x.numpy(), features(2))


def test_damaged_torchmil_files(tmp_path):
    root = torchmil(tmp_path / "patches_256")
    path = root / "features" / "features_resnet50" / "w1.npy"
    coords = root / "coords" / "w1.npy"
    whole = path.read_bytes()
    refused(GraphError, "256 .*512", open_bags(root).bag, "w1")
    for damage, message in (
        (lambda: np.save(coords, corners(step=512)[:5]), "'w1' .*: features have 12 rows, coords"),
        (coords.unlink, r"bag 'w1': there is no .*coords/w1\.npy"),
        # objects are not unpickled
        (lambda: np.save(path, np.array([{"a": 1}]), allow_pickle=True), r"w1\.npy cannot be read"),
        (lambda: path.write_bytes(whole[:-8]), r"w1\.npy cannot be read"),
    ):
        damage()
        if message.endswith("read"):
            np.save(coords, corners(step=512))
        refused(BagError, message, open_bags(root).bag, "w1")


def test_two_bags_of_one_name(tmp_path):
    slides(tmp_path / "x", "a")
    slides(tmp_path / "y", "a")
    refused(BagError, r"'a': .*x/a\.h5 and .*y/a\.h5", open_bags, tmp_path)
    (tmp_path / "y" / "a.h5").rename(tmp_path / "x" / "a.hdf5")
    refused(BagError, r"'a': .*a\.h5 and .*a\.hdf5", open_bags, tmp_path / "x")


def test_a_folder_without_bags(tmp_path):
    (tmp_path / "features").mkdir()
    near = r"no folder .*featurs: .* Did you mean 'features'"
    refused(BagError, near, open_bags, tmp_path / "featurs")
    (tmp_path / "features" / "a.svs").touch()
    first = "`probsa patch` and `probsa extract`"
    refused(BagError, first, open_bags, tmp_path / "features")
    (tmp_path / "features" / "a.svs").unlink()
    (tmp_path / "features").rmdir()
    refused(BagError, r"\.h5 .*nothing", open_bags, tmp_path)
    (tmp_path / "work" / "20x" / "patches").mkdir(parents=True)
    for work in (tmp_path / "work", tmp_path / "work" / "20x"):
        refused(BagError, r"probsa extract .*work$", open_bags, work)
    (tmp_path / "slide.pt").touch()
    (tmp_path / ".a.h5.x1.h5").touch()  # a temporary file of a killed writer
    refused(BagError, r"found .*\.pt", open_bags, tmp_path)
    refused(InputError, "cache_gb is -1", open_bags, slides(tmp_path / "x"), cache_gb=-1.0)


def test_a_name_or_a_width_that_does_not_fit(tmp_path):
    bags = open_bags(slides(tmp_path, ("slide_1", "slide_2")))
    refused(BagError, "'slide1' .*'slide_", bags.bag, "slide1")
    write_bag(tmp_path / "z.h5", features=features(0)[:, :3], kind="slide")
    with pytest.raises(BagError, match=r"'z' .* 3 .*'slide_1' .*5"):
        open_bags(tmp_path).bag("z")


KNN = graphs.knn(torch.from_numpy(corners(step=1024)), k=3)
GRAPHS = [
    (GraphOptions(), LATTICE),
    (GraphOptions(kind="grid"), LATTICE),
    (GraphOptions(kind="chain"), graphs.chain(N)),
    (GraphOptions(kind="none"), torch.zeros(2, 0, dtype=torch.long)),
    (GraphOptions(kind="knn", neighbours=3), KNN),
    *[(GraphOptions(edge_weights=kind), LATTICE) for kind in ("exp", "rbf", "binary")],
    *[(GraphOptions(weight_scale=s), LATTICE) for s in (3.0, "median", "degree", None)],
]


@pytest.mark.parametrize(("graph", "edges"), GRAPHS)
def test_each_option_of_graphs(tmp_path, graph, edges):
    bag = open_bags(slides(tmp_path, "a"), graph=graph).bag("a")
    assert torch.equal(bag.edges, edges) and bag.stride == 1024
    expected = graphs.edge_weights(bag.x, edges, kind=graph.edge_weights, scale=graph.weight_scale)
    assert torch.equal(bag.weights, expected)
    plain = GraphOptions(kind=graph.kind, neighbours=graph.neighbours)
    if graph != plain:
        assert not torch.equal(bag.weights, open_bags(tmp_path, graph=plain).bag("a").weights)


def test_a_graph_that_needs_coordinates(tmp_path):
    write_bag(tmp_path / "a.h5", features=features(0), kind="slide")
    assert open_bags(tmp_path).bag("a").edges.shape == (2, 0)
    for kind in ("grid", "knn"):
        bags = open_bags(tmp_path, graph=GraphOptions(kind=kind))
        refused(GraphError, f"'a' .*'{kind}'", bags.bag, "a")
    scan(tmp_path / "ct", [1, 2, 3])
    with pytest.raises(GraphError, match=r"'scan' .*chain"):
        open_bags(tmp_path / "ct", graph=GraphOptions(kind="grid")).bag("scan")


@pytest.mark.parametrize(
    ("positions", "note"),
    [
        ([1, 2, 3, 4], None),
        ([4, 3, 2, 1], None),
        ([7], None),
        ([9, 10, 11, 15, 16], missing((11, 15))),
        ([16, 15, 11, 10, 9], missing((11, 15))),
        ([1, 2, 4, 5, 6, 8], missing((2, 4), (6, 8))),
        ([0.0, 2.5, 5.0, 10.0, 12.5], missing((5, 10), step=2.5)),
        ([1, 2, 2, 3], SlicesAtOnePosition(position=2.0, slices=2, other_positions=0)),
        ([3, 2, 2, 1], SlicesAtOnePosition(position=2.0, slices=2, other_positions=0)),
        ([0, 0, 0, 1, 1], SlicesAtOnePosition(position=0.0, slices=3, other_positions=1)),
        (
            [*range(0, 24, 3), 100, 101, *range(200, 212)],
            missing((0, 3), (3, 6), (6, 9), (9, 12), (12, 15), more=4),
        ),
    ],
)
def test_missing_slices_are_noted(tmp_path, positions, note):
    bags = scan(tmp_path, positions)
    assert torch.equal(bags.bag("scan").edges, graphs.chain(len(positions)))
    assert bags.notes == ({} if note is None else {"scan": (note,)})


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (missing((11, 15)), "12-14"),
        (missing((2, 4), (6, 8)), "3, 7"),
        (missing((5, 10), step=2.5), "between 5 and 10"),
        (missing((1, 4), more=3), "2-3 and 3 more gaps"),
    ],
)
def test_missing_slices_are_named_by_number_or_position(note, text):
    assert f" {text} " in note.text


def test_slices_out_of_order_are_noted_and_their_neighbours_are_next_in_position(tmp_path):
    bags = scan(tmp_path, [1, 10, 11, 2, 3])
    assert bags.bag("scan").edges.T.tolist() == [[0, 3], [1, 2], [1, 4], [3, 4]]
    notes = bags.notes["scan"]
    assert notes == (SlicesNotInOrder(first_row=1), missing((3, 10)))


def test_notes_are_stored_with_their_facts_and_those_of_version_0_2_are_texts(tmp_path):
    path = tmp_path / "notes.json"
    slides_missing = MissingSlides(used=1, missing={"s2": "no bag"})
    notes = {
        "b": (SlicesNotInOrder(first_row=1), missing((3, 10))),
        "a": (EstimatedStride(stride=8.0), IsolatedPatches(share=0.8)),
        "p": (slides_missing,),
        "q": (LeftOut(reason="torn"), NoCoordinates(), StoredText(stored_text="x")),
    }
    write_notes(path, notes)
    assert read_notes(path, advice="") == notes
    path.write_text('{"a": "slices 3 missing", "b": [{"kind": "new", "text": "odd"}]}')
    texts = {bag: [note.text for note in each] for bag, each in read_notes(path, advice="").items()}
    assert texts == {"a": ["slices 3 missing"], "b": ["odd"]}
    path.write_text('{"a": [3]}')
    refused(InputError, "notes.json", read_notes, path, advice="")


def test_the_most_frequent_note_is_of_a_kind():
    two = (EstimatedStride(stride=8.0), missing((2, 4)))
    torn = (LeftOut(reason="torn"),)
    assert most_frequent([two, (missing((0, 3)),), torn]) == MissingSlices.title
    assert most_frequent([torn]) == torn[0].text and most_frequent([]) == ""


def test_a_slide_of_scattered_patches_is_noted(tmp_path):
    columns = np.array([0, 1, 4, 8, 13, 19, 26, 34, 43, 53]) * 1024
    coords = np.stack([columns, np.zeros_like(columns)], axis=1)
    bags = open_bags(slides(tmp_path, "a", coords=coords, features=features(0, n=10)))
    assert torch.equal(bags.bag("a").edges, torch.tensor([[0], [1]]))
    assert list(bags.notes) == ["a"]
    (note,) = bags.notes["a"]
    assert isinstance(note, IsolatedPatches) and note.share == pytest.approx(0.8)


def test_real_scans_and_tiles(shared_data):
    folder = shared_data / "bags" / "ct_ich"
    bags = open_bags(folder / "features")
    t = read_table(folder / "labels.csv")
    check_labels_match(t, bags.names, allow_unlabelled=False)
    assert (len(bags), bags.in_dim, sum(map(bags.size, bags.names))) == (82, 254, 2471)
    assert sum(t.labels) == 36
    for name, y in zip(t.bags, t.labels, strict=True):
        bag = bags.bag(name)
        assert torch.equal(bag.edges, graphs.chain(len(bag)))
        assert int(bag.instance_labels.max()) == y
        gaps = bool((bag.coords.diff(dim=0) != 1).any())
        assert (name in bags.notes) == gaps, name
    assert bags.notes["050"] == (missing((21, 23)),)
    folder = shared_data / "bags" / "colon_tiles"
    bags = open_bags(folder)
    t = read_table(folder / "labels.csv")
    check_labels_match(t, bags.names, allow_unlabelled=False)
    assert (len(bags), bags.in_dim, bags.stored(bags.names[0]).inferred_kind) == (100, 102, "slide")
    expected = graphs.grid(torch.from_numpy(np.indices((10, 10)).reshape(2, -1).T.copy()))
    for bag in map(bags.bag, bags.names):
        assert bag.stride == 50 and torch.equal(bag.edges, expected)  # 10 × 10 tiles in any order
        assert bool((bag.weights > 0).all()) and torch.isfinite(bag.weights).all()


def test_bags_in_memory_are_like_a_folder(tmp_path):
    folder = open_bags(write_folder(tmp_path, bags=3)[0])
    memory = BagList([folder.bag(name) for name in folder.names])
    assert memory.names == folder.names and memory.in_dim == folder.in_dim
    for name in memory.names:
        assert memory.size(name) == folder.size(name)
        assert torch.equal(memory.bag(name).x, folder.bag(name).x)
        assert memory.metadata(name).kind == folder.metadata(name).kind == "ct"
        mine = memory.stored(name)
        theirs = folder.stored(name)
        assert (mine.features == theirs.features).all() and (mine.coords == theirs.coords).all()
        assert (mine.instance_labels == theirs.instance_labels).all()
    refused(InputError, "it is tested", memory.sealed(["000"], why="it is tested").bag, "000")
    one, wide = (Bag.from_arrays(torch.ones(2, d), name=n) for n, d in (("a", 3), ("b", 4)))
    for bags, message in (
        ([], "no bags"),
        ([one, one], "two bags are named 'a'"),
        ([one], "no bag named 'b'"),
        ([one, wide], "'b' .* has 4 features per instance, 'a' has 3"),
    ):
        with pytest.raises(InputError, match=message):
            BagList(bags).bag("b")


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path, Path]:
    (tmp_path / "instance_labels").mkdir()
    return *write_folder(tmp_path), tmp_path / "instance_labels"


def test_instance_labels_of_a_folder_go_before_those_of_the_bags(data, tmp_path):
    stored, labels, overlay = data
    plain = open_bags(stored)
    other = np.full(plain.size("001"), -1)
    other[-1] = 1
    np.save(overlay / "001.npy", other)
    bags = open_bags(stored, instance_labels=overlay)
    for held in (bags.stored("001"), bags.bag("001")):
        assert held.instance_labels.tolist() == other.tolist()
    assert bags.bag("000").instance_labels.tolist() == plain.bag("000").instance_labels.tolist()
    # a run reads them with its own features alone
    config = DataConfig(features=stored, labels=labels, instance_labels=overlay, test_fold=0)
    assert open_data(config).stored("001").instance_labels.tolist() == other.tolist()
    others, _ = write_folder(tmp_path / "others", seed=1)
    assert (open_data(config, features=others).stored("001").instance_labels >= 0).all()
    run = RunConfig(data=config, model="abmil")
    assert RunConfig.from_dict(run.to_dict()).data.instance_labels == overlay


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(99, np.int64), r"bag '002' has \d instances.*002\.npy.*\(99,\)"),
        (np.float32(0.5), r"002\.npy.*instance labels"),
        (np.int64(-2), r"002\.npy.*instance labels"),
    ],
)
def test_what_is_no_label_of_instances_is_refused(data, values, message):
    stored, _, overlay = data
    same = np.full(open_bags(stored).size("002"), values) if not values.ndim else values
    np.save(overlay / "002.npy", same)
    refused(BagError, message, open_bags(stored, instance_labels=overlay).stored, "002")


def test_a_folder_of_labels_of_other_bags_and_no_folder_are_refused(data):
    stored, _, overlay = data
    with pytest.raises(BagError, match="instance_labels"):  # an empty folder
        open_bags(stored, instance_labels=overlay)
    np.save(overlay / "slide_0.npy", np.zeros(3, np.int64))
    with pytest.raises(BagError, match="1 files"):
        open_bags(stored, instance_labels=overlay)
    refused(BagError, "absent", open_bags, stored, instance_labels=overlay / "absent")


def test_bags_without_a_label_are_left_out_and_named(data):
    stored, labels, _ = data
    lines = [line for line in labels.read_text().splitlines() if not line.startswith("004,")]
    labels.write_text("\n".join(lines) + "\n")
    config = {"features": stored, "labels": labels, "test_fold": 0}
    strict = DataConfig(**config, unlabelled="refuse")
    refused(TableError, "'004'", prepare, RunConfig(data=strict, model="abmil"))
    run = RunConfig(data=DataConfig(**config), model="abmil")
    prepared = prepare(run)
    assert prepared.split.part_of("004") == "unused" and prepared.unlabelled == ("004",)
    assert len(prepared.split.train + prepared.split.val + prepared.split.test) == 11
    # a line whose label is missing, whatever word says so
    cells = lines[1].split(",")
    cells[lines[0].split(",").index("label")] = "NA"
    labels.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    prepared = prepare(run)
    assert set(prepared.unlabelled) == {"004", cells[0]} and prepared.left_out == ()
    assert any("written NA: line 2" in note for note in prepared.table.notes)
    refused(TableError, "line 2, bag", prepare, RunConfig(data=strict, model="abmil"))
    # labels without a bag are another matter
    labels.write_text("\n".join([*lines, lines[1].replace(cells[0], "absent")]) + "\n")
    refused(TableError, "'absent'; line 13", prepare, run)


def test_files_of_runs_and_predictions_among_features_are_no_bags(data):
    stored, _, _ = data
    names = open_bags(stored).names
    run = stored / "runs" / "one"
    for folder in (run, stored / "predicted"):
        (folder / "instances").mkdir(parents=True)
        (folder / "predictions.csv").write_text("bag\n")
        (folder / "instances" / "001.h5").write_bytes(b"")
    (run / "run.yaml").write_text("")
    (run / "predictions" / "instances").mkdir(parents=True)
    (run / "predictions" / "instances" / "002.h5").write_bytes(b"")
    (stored / "predictions.csv").write_text("bag\n")
    (stored / "instances").mkdir()
    (stored / "instances" / "003.h5").write_bytes(b"")
    assert open_bags(stored).names == names


ODD_LABELS = {
    "text": np.array(list("abcd")),
    "bytes": np.array([b"a"] * 4),
    "dates": np.array(["2020-01-01"] * 4, "M8[D]"),
    "durations": np.array([1] * 4, "m8[s]"),
    "NaN": np.array([0, 1, np.nan, 0]),
    "half": np.array([0, 1.5, 0, 0]),
    "complex": np.array([0, 1, 1j, 0]),
    "large": np.array([0, 2**40, 0, 0]),
}


@pytest.mark.parametrize("labels", ODD_LABELS.values(), ids=ODD_LABELS)
def test_instance_labels_of_another_kind_are_a_reason_against_their_bag_alone(tmp_path, labels):
    features = np.ones((4, 3), np.float32)
    for name in ("a", "b"):
        write_bag(tmp_path / "features" / f"{name}.h5", features=features, kind="ct")
    (tmp_path / "instance_labels").mkdir()
    np.save(tmp_path / "instance_labels" / "a.npy", labels)
    np.save(tmp_path / "instance_labels" / "b.npy", np.array([0.0, 1, -1, 0]))
    bags = open_bags(tmp_path / "features", instance_labels=tmp_path / "instance_labels")
    refused(BagError, r"a\.npy.*instance labels", bags.bag, "a")
    assert bags.bag("b").instance_labels.tolist() == [0, 1, -1, 0]
    (tmp_path / "labels.csv").write_text("bag,label\na,0\nb,1\n")
    source = StudySource(
        root=tmp_path,
        bags=open_bags(tmp_path / "features"),
        options=StudyOptions(),
        features=tmp_path / "features",
        feature_set=None,
    )
    read = draft(source).instance_labels_of
    refused(BagError, r"a\.npy.*instance labels", read, "a")
    assert read("b")[0].tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3)])
def test_corners_of_a_slide_have_two_axes(tmp_path, shape):
    for folder, values in (("features", np.ones((4, 3))), ("coords", np.zeros(shape))):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", values)
    refused(BagError, r"bag 'a' .*coords have", open_bags(tmp_path / "features").bag, "a")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_tensors_of_small_floats_are_read(tmp_path, name):
    values = torch.tensor([[0.5, 1.0], [2.0, -4.0]])
    (tmp_path / "pt_files").mkdir()
    torch.save(values.to(getattr(torch, name)), tmp_path / "pt_files" / "a.pt")
    assert torch.equal(open_bags(tmp_path / "pt_files").bag("a").x.float(), values)


def test_tensors_without_numbers_are_refused_by_name(tmp_path):
    (tmp_path / "pt_files").mkdir()
    for name in ("bits8", "float4_e2m1fn_x2", "bool"):
        values = torch.zeros(4, 3, dtype=torch.uint8).view(getattr(torch, name))
        torch.save(values, tmp_path / "pt_files" / f"{name}.pt")
    bags = open_bags(tmp_path / "pt_files")
    for name in bags.names:
        refused(BagError, rf"{name}\.pt", bags.bag, name)

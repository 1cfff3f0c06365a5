"""Opening folders of bags of each tool; notes and errors."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from probsa.core import GraphOptions, graphs
from probsa.core.bags import pack
from probsa.core.store import write_bag
from probsa.datasets import BagSet, check_labels_match, open_bags, read_table
from probsa.errors import BagError, GraphError, InputError

N, WIDTH = 12, 5
TRIDENT = {"patch_size": 512, "patch_size_level0": 1024, "overlap": 0, "name": "s"}


def features(seed: int, *, n: int = N, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(dtype)


def corners(*, step: int, n: int = N) -> np.ndarray:
    """Return corners in four columns, row by row."""
    i = np.arange(n)
    return np.stack([i % 4, i // 4], axis=1) * step


def lattice_edges(n: int = N) -> torch.Tensor:
    return graphs.grid(torch.from_numpy(corners(step=1, n=n)), stride=1.0)


def slides(folder: Path, names: str = "abc", **options: object) -> Path:
    for i, name in enumerate(names):
        arguments = {"features": features(i), "coords": corners(step=1024), "kind": "slide"}
        write_bag(folder / f"{name}.h5", **(arguments | {"attributes": TRIDENT} | options))
    return folder


def scan(folder: Path, positions: list[float], *, name: str = "scan") -> BagSet:
    position = np.array(positions)
    write_bag(
        folder / f"{name}.h5",
        features=features(0, n=len(position)),
        coords=position[:, None],
        kind="ct",
    )
    return open_bags(folder)


def test_a_folder_of_our_files(tmp_path: Path) -> None:
    labels = np.arange(N) % 2
    slides(tmp_path, "b", instance_labels=labels, features=features(7, dtype="float16"))
    slides(tmp_path, "a", features=features(8, dtype="float16"))
    bags = open_bags(tmp_path)
    assert (bags.names, bags.in_dim, bags.size("b"), len(bags)) == (("a", "b"), WIDTH, N, 2)
    bag = bags.bag("b")
    assert (bag.name, bag.y, bag.stride) == ("b", None, 1024.0)
    assert bag.x.dtype == torch.float16
    np.testing.assert_array_equal(bag.x.numpy(), features(7, dtype="float16"))
    assert torch.equal(bag.coords, torch.from_numpy(corners(step=1024)))
    assert torch.equal(bag.instance_labels, torch.from_numpy(labels))
    assert torch.equal(bag.edges, lattice_edges())
    assert torch.equal(bag.weights, graphs.edge_weights(bag.x, bag.edges))
    assert bags.stored("b").inferred_kind == "slide"
    assert bags.notes == {}
    assert pack([bag, bags.bag("a")]).sizes == (N, N)


def test_files_of_coordinates_below_are_no_bags(tmp_path: Path) -> None:
    slides(tmp_path, "ab")
    slides(tmp_path / "patches", "abc")
    assert open_bags(tmp_path).names == ("a", "b")


def test_a_trident_job(tmp_path: Path) -> None:
    """Write TRIDENT's layout: no stamps, one feature folder per encoder beside `patches`."""
    job = tmp_path / "20x_512px_0px_overlap"
    for encoder in ("features_uni", "features_resnet50"):
        (job / encoder).mkdir(parents=True)
        with h5py.File(job / encoder / "s1.h5", "w") as f:
            f.create_dataset("features", data=features(len(encoder)), chunks=(1, WIDTH))
            f["coords"] = corners(step=1024)
            f["coords"].attrs.update(TRIDENT)
    (job / "patches").mkdir()
    with h5py.File(job / "patches" / "s1_patches.h5", "w") as f:
        f["coords"] = corners(step=1024)
    with pytest.raises(
        BagError, match=r"several folders of features: features_resnet50, features_"
    ):
        open_bags(job)
    for bags in (open_bags(job, features="features_uni"), open_bags(job / "features_uni")):
        bag = bags.bag("s1")
        np.testing.assert_array_equal(bag.x.numpy(), features(len("features_uni")))
        assert bag.stride == 1024
        assert torch.equal(bag.edges, lattice_edges())
    with pytest.raises(
        BagError, match=r"no folders .* named 'features_un'.*Did you mean 'features_"
    ):
        open_bags(job, features="features_un")


def clam(root: Path, *, step: int = 1024, patch_size: int = 256) -> Path:
    (root / "h5_files").mkdir(parents=True)
    with h5py.File(root / "h5_files" / "slide_1.h5", "w") as f:
        f.create_dataset("features", data=features(3), chunks=(4, WIDTH))
        f["coords"] = corners(step=step).astype(np.int32)
    patches = root.parent / "patches" if root.name == "FEAT" else root / "patches"
    patches.mkdir()
    with h5py.File(patches / "slide_1.h5", "w") as f:
        f["coords"] = corners(step=step)
        f["coords"].attrs.update(
            {"patch_size": patch_size, "patch_level": 1, "downsample": np.array([4.0, 4.0])}
        )
    return root


@pytest.mark.parametrize("root", ["FEAT", "OUT"])  # patches one level up, and beside h5_files
@pytest.mark.parametrize("given", [".", "h5_files"])
def test_a_clam_folder_takes_the_patch_size_from_patches(
    tmp_path: Path, root: str, given: str
) -> None:
    bags = open_bags(clam(tmp_path / root) / given)
    assert bags.names == ("slide_1",)
    bag = bags.bag("slide_1")
    assert bag.stride == 1024
    assert bag.coords.dtype == torch.int64
    assert torch.equal(bag.edges, lattice_edges())
    assert bags.notes == {}


def test_clam_s_patch_size_is_cross_checked(tmp_path: Path) -> None:
    bags = open_bags(clam(tmp_path / "FEAT", patch_size=512))
    with pytest.raises(GraphError, match=r"slide_1: .* 2048 apart, but the coordinates say 1024"):
        bags.bag("slide_1")
    told = open_bags(tmp_path / "FEAT", graph=GraphOptions(stride=1024.0))
    assert torch.equal(told.bag("slide_1").edges, lattice_edges())


def test_without_any_stated_size_the_stride_is_estimated_and_noted(tmp_path: Path) -> None:
    clam(tmp_path / "FEAT")
    (tmp_path / "patches" / "slide_1.h5").unlink()
    bags = open_bags(tmp_path / "FEAT")
    assert bags.bag("slide_1").stride == 1024
    assert bags.notes == {"slide_1": "stride estimated as 1024"}


def torchmil(root: Path, *, scans: bool = False, encoders: tuple[str, ...] = ("resnet50",)) -> Path:
    label_kind = "slice_labels" if scans else "patch_labels"
    for i, name in enumerate(("w1", "w2")):
        parts = {f"features/features_{e}": features(10 * i + len(e)) for e in encoders}
        parts |= {"labels": np.array([i]), label_kind: np.full((N, 1), i)}
        if not scans:
            parts["coords"] = corners(step=512)
        for folder, values in parts.items():
            (root / folder).mkdir(parents=True, exist_ok=True)
            np.save(root / folder / f"{name}.npy", values)
    return root


def test_torchmil_slides(tmp_path: Path) -> None:
    root = torchmil(tmp_path / "patches_512")
    for given in (tmp_path, root, root / "features" / "features_resnet50"):
        bags = open_bags(given)
        bag = bags.bag("w2")
        assert (bags.names, bags.in_dim, bags.size("w1")) == (("w1", "w2"), WIDTH, N)
        np.testing.assert_array_equal(bag.x.numpy(), features(18))
        assert bag.instance_labels.tolist() == [1] * N
        assert bag.stride == 512
        assert torch.equal(bag.edges, lattice_edges())
        assert bags.stored("w2").inferred_kind == "slide"


def test_torchmil_scans_are_chained_in_row_order(tmp_path: Path) -> None:
    bags = open_bags(torchmil(tmp_path, scans=True))
    bag = bags.bag("w1")
    assert torch.equal(bag.edges, graphs.chain(N))
    assert (bag.coords, bag.stride, bags.stored("w1").inferred_kind) == (None, None, "ct")
    assert bag.instance_labels.tolist() == [0] * N


def test_one_of_several_encoders_is_chosen(tmp_path: Path) -> None:
    root = torchmil(tmp_path, encoders=("UNI", "resnet50_bt"))
    with pytest.raises(
        BagError, match=r"features/features_UNI, features/features_resnet50_bt.*Choose"
    ):
        open_bags(root)
    bags = open_bags(root, features="features_UNI")
    np.testing.assert_array_equal(bags.bag("w1").x.numpy(), features(3))


def test_damaged_torchmil_files(tmp_path: Path) -> None:
    root = torchmil(tmp_path / "patches_256")
    bags = open_bags(root)
    with pytest.raises(GraphError, match="256 apart, but the coordinates say 512"):
        bags.bag("w1")
    path = root / "features" / "features_resnet50" / "w1.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(BagError, match=r"w1\.npy cannot be read as \.npy: it is damaged"):
        open_bags(root).bag("w1")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BagError, match=r"w1\.npy cannot be read"):  # objects are not unpickled
        open_bags(root).bag("w1")
    (root / "coords" / "w2.npy").unlink()
    with pytest.raises(BagError, match=r"bag 'w2': there is no .*coords/w2\.npy"):
        bags.bag("w2")
    np.save(root / "coords" / "w2.npy", corners(step=512)[:5])
    with pytest.raises(BagError, match=r"bag 'w2' .*: features have 12 rows, coords 5"):
        bags.bag("w2")


def test_two_bags_of_one_name(tmp_path: Path) -> None:
    slides(tmp_path / "x", "a")
    slides(tmp_path / "y", "a")
    with pytest.raises(BagError, match=r"two bags are named 'a': .*x/a\.h5 and .*y/a\.h5"):
        open_bags(tmp_path)
    (tmp_path / "y" / "a.h5").rename(tmp_path / "x" / "a.hdf5")
    with pytest.raises(BagError, match=r"two bags are named 'a': .*a\.h5 and .*a\.hdf5"):
        open_bags(tmp_path / "x")


def test_a_folder_without_bags(tmp_path: Path) -> None:
    with pytest.raises(BagError, match=r"there is no folder .*gone"):
        open_bags(tmp_path / "gone")
    with pytest.raises(BagError, match=r"no bags in .*: expected \.h5 files .*; found nothing"):
        open_bags(tmp_path)
    (tmp_path / "slide.pt").touch()
    (tmp_path / ".a.h5.x1.h5").touch()  # a temporary file of a killed writer
    with pytest.raises(BagError, match=r"found .*\.pt"):
        open_bags(tmp_path)


def test_a_name_or_a_width_that_does_not_fit(tmp_path: Path) -> None:
    bags = open_bags(slides(tmp_path, ("slide_1", "slide_2")))
    with pytest.raises(BagError, match=r"no bag named 'slide1' in .* Did you mean 'slide_"):
        bags.bag("slide1")
    write_bag(tmp_path / "z.h5", features=features(0)[:, :3], kind="slide")
    with pytest.raises(BagError, match=r"bag 'z' .* has 3 features per instance, 'slide_1' has 5"):
        open_bags(tmp_path).bag("z")


@pytest.mark.parametrize(
    ("graph", "edges"),
    [
        (GraphOptions(), lattice_edges()),
        (GraphOptions(kind="grid"), lattice_edges()),
        (GraphOptions(kind="chain"), graphs.chain(N)),
        (GraphOptions(kind="none"), torch.zeros(2, 0, dtype=torch.long)),
        (
            GraphOptions(kind="knn", neighbours=3),
            graphs.knn(torch.from_numpy(corners(step=1024)), k=3),
        ),
    ],
)
def test_each_kind_of_graph(tmp_path: Path, graph: GraphOptions, edges: torch.Tensor) -> None:
    bag = open_bags(slides(tmp_path, "a"), graph=graph).bag("a")
    assert torch.equal(bag.edges, edges)
    assert bag.stride == 1024


@pytest.mark.parametrize(
    "graph",
    [
        GraphOptions(edge_weights="exp"),
        GraphOptions(edge_weights="rbf"),
        GraphOptions(edge_weights="binary"),
        GraphOptions(weight_scale=3.0),
        GraphOptions(weight_scale="median"),
        GraphOptions(weight_scale="degree"),
        GraphOptions(weight_scale=None),
    ],
)
def test_options_of_weights_reach_the_graph(tmp_path: Path, graph: GraphOptions) -> None:
    bag = open_bags(slides(tmp_path, "a"), graph=graph).bag("a")
    expected = graphs.edge_weights(
        bag.x, bag.edges, kind=graph.edge_weights, scale=graph.weight_scale
    )
    assert torch.equal(bag.weights, expected)
    assert not torch.equal(bag.weights, open_bags(tmp_path).bag("a").weights)


def test_a_graph_that_needs_coordinates(tmp_path: Path) -> None:
    write_bag(tmp_path / "a.h5", features=features(0), kind="slide")
    assert open_bags(tmp_path).bag("a").edges.shape == (2, 0)
    for kind in ("grid", "knn"):
        bags = open_bags(tmp_path, graph=GraphOptions(kind=kind))
        with pytest.raises(GraphError, match=f"bag 'a' has no coordinates.*'{kind}'"):
            bags.bag("a")
    scan(tmp_path / "ct", [1, 2, 3])
    with pytest.raises(GraphError, match=r"bag 'scan' has one coordinate per instance.*chain"):
        open_bags(tmp_path / "ct", graph=GraphOptions(kind="grid")).bag("scan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 0}, "neighbours is 0; expected at least 1"),
        ({"stride": 0.0}, r"stride is 0\.0; expected more than 0"),
        ({"weight_scale": -1.0}, r"weight_scale is -1\.0; expected"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GraphOptions(**options)
    with pytest.raises(InputError, match="cache_gb is -1"):
        open_bags(slides(tmp_path), cache_gb=-1.0)


@pytest.mark.parametrize(
    ("positions", "note"),
    [
        ([1, 2, 3, 4], None),
        ([4, 3, 2, 1], None),
        ([7], None),
        ([9, 10, 11, 15, 16], "slices 12-14 missing"),
        ([16, 15, 11, 10, 9], "slices 12-14 missing"),
        ([1, 2, 4, 5, 6, 8], "slices 3, 7 missing"),
        ([0.0, 2.5, 5.0, 10.0, 12.5], "slices between 5 and 10 missing"),
        ([3, 2, 4, 5, 6], "slice positions are not monotonic (row 1); chained in row order"),
        ([1, 2, 2, 3], "slice positions are not monotonic (row 2); chained in row order"),
        (
            [*range(0, 24, 3), 100, 101, *range(200, 212)],
            "slices 1-2, 4-5, 7-8, 10-11, 13-14 and 4 more gaps missing",
        ),
    ],
)
def test_missing_slices_are_noted(tmp_path: Path, positions: list[float], note: str | None) -> None:
    bags = scan(tmp_path, positions)
    assert torch.equal(bags.bag("scan").edges, graphs.chain(len(positions)))
    assert bags.notes == ({} if note is None else {"scan": note})


def test_a_slide_of_scattered_patches_is_noted(tmp_path: Path) -> None:
    columns = np.array([0, 1, 4, 8, 13, 19, 26, 34, 43, 53]) * 1024
    coords = np.stack([columns, np.zeros_like(columns)], axis=1)
    bags = open_bags(slides(tmp_path, "a", coords=coords, features=features(0, n=10)))
    assert torch.equal(bags.bag("a").edges, torch.tensor([[0], [1]]))
    assert bags.notes == {"a": "80% of the patches have no neighbour"}


def test_real_scans(shared_data: Path) -> None:
    folder = shared_data / "bags" / "ct_ich"
    bags = open_bags(folder / "features")
    t = read_table(folder / "labels.csv")
    check_labels_match(t, bags.names, allow_unlabelled=False)
    assert (len(bags), bags.in_dim) == (82, 254)
    assert sum(bags.size(n) for n in bags.names) == 2471
    for name, y in zip(t.bags, t.labels, strict=True):
        bag = bags.bag(name)
        assert torch.equal(bag.edges, graphs.chain(len(bag)))
        assert int(bag.instance_labels.max()) == y
        assert bags.stored(name).inferred_kind == "ct"
        gaps = bool((bag.coords.diff(dim=0) != 1).any())
        assert (name in bags.notes) == gaps, name
    assert bags.notes["050"] == "slices 22 missing"
    assert sum(int(y or 0) for y in t.labels) == 36


def test_real_tiles(shared_data: Path) -> None:
    folder = shared_data / "bags" / "colon_tiles"
    bags = open_bags(folder)
    t = read_table(folder / "labels.csv")
    check_labels_match(t, bags.names, allow_unlabelled=False)
    assert (len(bags), bags.in_dim, bags.stored(bags.names[0]).inferred_kind) == (100, 102, "slide")
    expected = graphs.grid(torch.from_numpy(np.indices((10, 10)).reshape(2, -1).T.copy()))
    for name in bags.names:
        bag = bags.bag(name)
        assert bag.stride == 50
        assert torch.equal(bag.edges, expected)  # 10 × 10 tiles in either order
        assert bool((bag.weights > 0).all())
        assert torch.isfinite(bag.weights).all()
    assert replace(bag, y=1).y == 1

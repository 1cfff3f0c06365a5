"""The store: round trips, files of other tools, and errors for invalid files."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.refusals import refused

from probsa.core import as_coordinates, peek_bag, read_bag, write_bag
from probsa.core.store import FORMAT
from probsa.errors import BagError, EmptyBag

TRIDENT = {
    "patch_size": 512,
    "patch_size_level0": 1024,
    "level0_magnification": 40,
    "target_magnification": 20,
    "overlap": 0,
    "name": "a",
}


def random(n: int, width: int, *, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, width)).astype(dtype)


def raw(path: Path, **datasets: np.ndarray) -> Path:
    """Write a file without stamps, as another tool would."""
    with h5py.File(path, "w") as f:
        for name, values in datasets.items():
            f[name] = values
    return path


def state(path: Path, **attributes: object) -> None:
    with h5py.File(path, "r+") as f:
        f["coords"].attrs.update(attributes)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_written_is_read_back(tmp_path, dtype):
    features = random(6, 4, dtype=dtype)
    coords = np.arange(12).reshape(6, 2) * 1024
    labels = np.array([0, 1, 0, 0, 1, -1])
    write_bag(
        tmp_path / "a.h5",
        features=features,
        coords=coords,
        kind="slide",
        instance_labels=labels,
        attributes=TRIDENT,
    )
    bag = read_bag(tmp_path / "a.h5")
    assert bag.name == "a"
    assert bag.features.dtype == dtype
    np.testing.assert_array_equal(bag.features, features)
    np.testing.assert_array_equal(bag.coords, coords)
    np.testing.assert_array_equal(bag.instance_labels, labels)
    assert (bag.coords.dtype, bag.instance_labels.dtype) == (np.int64, np.int64)
    assert (bag.kind, bag.stride) == ("slide", 1024.0)
    assert peek_bag(tmp_path / "a.h5") == (6, 4)


def test_the_file_on_disk_is_trident_s_with_our_stamps(tmp_path):
    write_bag(
        tmp_path / "a.h5",
        features=random(3, 4),
        coords=np.array([[0, 0], [1, 0], [2, 0]]),
        kind="slide",
        instance_labels=np.array([0, 1, 1]),
        attributes=TRIDENT | {"encoder": None},
    )
    with h5py.File(tmp_path / "a.h5") as f:
        assert dict(f.attrs) == {"probsa_kind": "slide", "probsa_version": FORMAT}
        assert {k: (f[k].dtype.str, f[k].chunks) for k in f} == {
            "coords": ("<i8", None),
            "features": ("<f4", None),
            "instance_labels": ("|i1", None),
        }
        assert f["coords"].attrs["patch_size_level0"] == 1024
        assert f["coords"].attrs["encoder"] == "None"
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_instance_labels_beyond_a_byte_are_kept(tmp_path):
    labels = np.array([0, 200, -3])
    write_bag(tmp_path / "a.h5", features=random(3, 2), kind="ct", instance_labels=labels)
    np.testing.assert_array_equal(read_bag(tmp_path / "a.h5").instance_labels, labels)


def test_a_refused_bag_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a.h5"
    write_bag(path, features=random(3, 2), kind="ct")
    before = path.read_bytes()
    refused(BagError, "row 1 ", write_bag, path, features=np.array([[0.0], [np.nan]]), kind="ct")
    with pytest.raises(TypeError):  # raised while the file is being written
        write_bag(path, features=random(4, 2), kind="ct", attributes={"a": object()})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


@pytest.mark.parametrize(
    ("attributes", "stride"),
    [
        ({"patch_size": 512, "patch_size_level0": 1024, "overlap": 0}, 1024.0),
        ({"patch_size": 256, "patch_size_level0": 512, "overlap": 64}, 384.0),
        ({"patch_size": 256, "patch_size_level0": 512, "overlap": "None"}, 512.0),
        ({"patch_size_level0": 512}, 512.0),
        ({"patch_size": 512}, None),
        ({"patch_size": 256, "patch_level": 1, "downsample": np.array([4.0, 4.0])}, 1024.0),
        ({"patch_size": 256, "patch_level": 0, "custom_downsample": 2}, 512.0),
        # relative to a level whose downsample is unknown
        ({"patch_size": 256, "patch_level": 1, "custom_downsample": 2}, None),
        ({"patch_size": 512, "patch_size_level0": 966, "pitch": 966.0377}, 966.0377),
        ({"patch_size": 512, "patch_size_level0": 966, "size_level0": 966.0377}, 966.0377),
        ({}, None),
    ],
)
def test_the_stride_is_in_level_0_pixels(tmp_path, attributes, stride):
    path = raw(tmp_path / "a.h5", features=random(2, 3), coords=np.zeros((2, 2), np.int32))
    state(path, **attributes)
    assert read_bag(path).stride == stride


def test_foreign_files_are_read(tmp_path):
    """No stamps, int32 corners as CLAM's, a leading batch axis, chunks of one row, float64."""
    x = random(5, 3, dtype="float64")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("features", data=x[None], chunks=(1, 1, 3), dtype=">f8")
        f.create_dataset("coords", data=np.arange(10, dtype=np.int32).reshape(1, 5, 2))
    bag = read_bag(tmp_path / "a.h5")
    assert (bag.kind, bag.stride, bag.instance_labels) == (None, None, None)
    assert bag.inferred_kind == "slide"
    assert bag.features.dtype == np.float32
    np.testing.assert_array_equal(bag.features, x.astype(np.float32))
    np.testing.assert_array_equal(bag.coords, np.arange(10).reshape(5, 2))
    assert peek_bag(tmp_path / "a.h5") == (5, 3)


def test_one_column_of_coordinates_means_a_scan(tmp_path):
    positions = np.array([0.5, 1.0, 1.75])
    bag = read_bag(raw(tmp_path / "a.h5", features=random(3, 2), coords=positions))
    assert bag.inferred_kind == "ct"
    np.testing.assert_array_equal(bag.coords, positions[:, None])  # in mm, not rounded


def test_a_missing_a_foreign_and_a_truncated_file(tmp_path):
    refused(BagError, r"gone\.h5", read_bag, tmp_path / "gone.h5")
    (tmp_path / "text.h5").write_text("bag,label\n")
    refused(BagError, r"text\.h5", read_bag, tmp_path / "text.h5")
    whole = raw(tmp_path / "cut.h5", features=random(500, 40))
    whole.write_bytes(whole.read_bytes()[:-4000])
    for read in (read_bag, peek_bag):
        refused(BagError, r"cut\.h5", read, whole)


def test_a_damaged_chunk_is_named(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        dataset = f.create_dataset("features", data=random(64, 8), chunks=(64, 8), fletcher32=True)
        start = dataset.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[start + 100] ^= 0xFF
    path.write_bytes(content)
    refused(BagError, r"a\.h5", read_bag, path)


@pytest.mark.parametrize(
    ("datasets", "error", "fact"),
    [
        ({"feats": random(2, 3), "coords": np.zeros((2, 2))}, BagError, "'features'"),
        ({}, BagError, "'features'"),
        ({"features": random(2, 3)[0]}, BagError, r"\(3,\)"),
        ({"features": np.zeros((2, 3, 4))}, BagError, r"\(2, 3, 4\)"),
        ({"features": np.zeros((0, 3))}, EmptyBag, ""),
        ({"features": np.zeros((1, 0, 3))}, EmptyBag, ""),
        ({"features": np.zeros((4, 0))}, BagError, ""),
        ({"features": np.array([[b"x"], [b"y"]])}, BagError, "features"),
        ({"features": random(3, 2), "coords": np.zeros((2, 2))}, BagError, "coords"),
        ({"features": random(3, 2), "coords": np.zeros((3, 3))}, BagError, "coords"),
        (
            {"features": random(3, 2), "instance_labels": np.zeros(4, int)},
            BagError,
            "instance_labels",
        ),
        (
            {"features": random(2, 2), "coords": np.array([[0, 0], [np.nan, 1]])},
            BagError,
            "coords.*row 1",
        ),
    ],
)
def test_content_that_does_not_hold_together(tmp_path, datasets, error, fact):
    refused(error, rf"a\.h5.*{fact}", read_bag, raw(tmp_path / "a.h5", **datasets))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 8191, 8192, 9999])
def test_the_first_row_that_is_not_finite_is_named(tmp_path, value, row):
    x = np.zeros((10_000, 2), np.float16)
    x[row:, 1] = value
    with pytest.raises(BagError, match=rf"a\.h5.* row {row} "):
        read_bag(raw(tmp_path / "a.h5", features=x))


def test_a_later_format_and_an_unknown_kind_are_refused(tmp_path):
    path = raw(tmp_path / "a.h5", features=random(2, 2))
    with h5py.File(path, "r+") as f:
        f.attrs["probsa_version"] = FORMAT + 1
    refused(BagError, rf"a\.h5.* {FORMAT + 1}", read_bag, path)
    with h5py.File(path, "r+") as f:
        f.attrs["probsa_version"] = FORMAT
        f.attrs["probsa_kind"] = "mri"
    refused(BagError, "probsa_kind.*mri", read_bag, path)


@pytest.mark.parametrize("room", [0, 100, 2_000, 6_000])
def test_a_disk_that_fills_within_a_file_is_an_error_and_no_crash(tmp_path, room):
    """Run in a subprocess with a file size limit, as a failed write crashes HDF5 at exit."""
    code = f"""
import resource, signal, sys
from pathlib import Path
import numpy as np
from probsa.core import write_bag
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, resource.RLIM_INFINITY))
try:
    write_bag(Path("x.h5"), features=np.ones((900, 9), np.float32), kind="slide",
              coords=np.ones((900, 2), int), stamps={{"a": "b" * 3000}})
except OSError as e:
    sys.exit(f"refused: {{e}}")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "refused: [Errno 27] File too large: 'x.h5'\n")
    assert list(tmp_path.iterdir()) == []


def test_the_intensity_of_readable_instances_is_read(tmp_path):
    level = np.array([10.5, 0.0, 99.0])
    unreadable = np.array([0, 1, 0])
    path = tmp_path / "a.h5"
    write_bag(path, features=random(3, 4), kind="ct", intensity=level, unreadable=unreadable)
    bag = read_bag(path)
    assert bag.intensity is not None and bag.intensity.dtype == np.float32
    assert bag.intensity.tolist() == [10.5, 99.0]
    assert read_bag(raw(tmp_path / "b.h5", features=random(3, 4))).intensity is None
    with pytest.raises(BagError, match="intensity"):
        write_bag(path, features=random(3, 4), kind="ct", intensity=level[:2])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_numbers_of_any_precision_are_compared_with_the_largest_coordinate(dtype):
    """Half precision cannot hold the limit; a warning would be an error here."""
    coords = np.arange(12).reshape(6, 2).astype(dtype)
    np.testing.assert_array_equal(as_coordinates(coords), np.arange(12).reshape(6, 2))

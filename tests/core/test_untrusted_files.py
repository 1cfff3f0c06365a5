"""Files that state more than they hold, or point elsewhere, are refused before they are read."""

import os
import zipfile

import h5py
import numpy as np
import pytest
from fuzz.alterations import npy_bytes
from support.refusals import refused

from probsa.core import (
    as_coordinates,
    as_instance_labels,
    attributes_of,
    bag_limit,
    load_array,
    load_arrays,
    max_bag_gb,
    open_hdf5,
    read_bag,
)
from probsa.errors import BagError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["features"] = X
        f["coords"] = np.arange(6).reshape(3, 2)
    return tmp_path / "a.h5"


def remake(path, **made):
    with h5py.File(path, "r+") as f:
        del f["features"]
        f.create_dataset("features", **made)


@pytest.mark.parametrize("rows", [10**7, 10**12])
@pytest.mark.parametrize("chunks", [None, (1024, 4)])
def test_rows_of_which_nothing_is_stored(path, rows, chunks):
    remake(path, shape=(rows, 4), dtype="f4", chunks=chunks)
    refused(BagError, r"a\.h5.*'features'", read_bag, path)


def test_the_limit_is_that_of_max_bag_gb(path):
    assert max_bag_gb() == 8.0
    with bag_limit(1e-8), pytest.raises(BagError, match="1e-08 GB"):
        read_bag(path)
    with bag_limit(1e-8), bag_limit(None):
        assert max_bag_gb() == 1e-8
    assert read_bag(path).features.tolist() == X.tolist()


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_values_in_other_files_are_not_read(path, kind):
    target = path.with_name("raw.bin")
    if kind == "pipe":
        os.mkfifo(target)
    else:
        target.write_bytes(X.tobytes())
    remake(path, shape=X.shape, dtype="f4", external=[(str(target), 0, X.nbytes)])
    refused(BagError, r"a\.h5.*'features'", read_bag, path)


def test_links_virtual_datasets_and_compressed_zeros_are_refused(path):
    other = path.with_name("other.h5")
    with h5py.File(other, "w") as f:
        f["x"] = X
    layout = h5py.VirtualLayout(shape=X.shape, dtype=X.dtype)
    layout[...] = h5py.VirtualSource(str(other), "x", shape=X.shape)
    with h5py.File(path, "r+") as f:
        del f["features"]
        f.create_virtual_dataset("features", layout)
    refused(BagError, r"a\.h5.*'features'", read_bag, path)
    with h5py.File(path, "r+") as f:
        del f["features"]
        f["features"] = h5py.ExternalLink(str(other), "/x")
    refused(BagError, r"'features'.*other\.h5", read_bag, path)
    zeros = np.zeros((10**7, 4), np.float32)
    remake(path, data=zeros, compression="gzip", chunks=(10**6, 4))
    assert path.stat().st_size < 10**6
    refused(BagError, r"a\.h5: .*0\.16 GB", read_bag, path)
    with h5py.File(path, "r+") as f:
        del f["coords"], f["features"]
        f["features"] = X
        f["coords"] = h5py.SoftLink("/nowhere")
    refused(BagError, r"a\.h5.*'coords'", read_bag, path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patch_size_level0", 1e300),
        ("downsample", np.array([1.0, 1.0, 1.0])),
        ("level_dim", 5 + 2j),
        ("pitch", "wide"),
        ("mpp", True),
        ("encoder", np.arange(3)),
        ("encoder", b"\xff"),
    ],
)
def test_odd_attributes_are_named(path, key, value):
    with h5py.File(path, "r+") as f:
        f["coords"].attrs[key] = value
    refused(BagError, rf"a\.h5.*'{key}'", read_bag, path)


NUMBERS = (
    "mpp",
    "mpp_level0",
    "patch_size",
    "patch_size_level0",
    "size_level0",
    "pitch",
    "downsample",
    "level0_magnification",
    "target_magnification",
    "level0_width",
    "overlap",
    "patch_level",
)
NOTHING = (
    np.nan,
    -1,
    np.inf,
    -np.inf,
    "",
    "None",
    "nan",
    b"None",
    np.zeros(0),
    h5py.Empty("f4"),
    np.array([-1]),
    np.array([np.nan]),
)


@pytest.mark.parametrize("value", NOTHING, ids=repr)
@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_that_cannot_be_one_state_nothing(path, key, value):
    with h5py.File(path, "r+") as f:
        f["coords"].attrs[key] = value
    with open_hdf5(path) as f:
        assert attributes_of(f["coords"]) == {key: "None"}
    assert read_bag(path).stride is None


@pytest.mark.parametrize("value", ["0.5", b"0.5", np.bytes_(b"0.5"), np.array([0.5]), 0.5])
def test_a_number_may_be_a_text(path, value):
    with h5py.File(path, "r+") as f:
        f["coords"].attrs["mpp"] = value
    with open_hdf5(path) as f:
        assert float(np.reshape(attributes_of(f["coords"])["mpp"], -1)[0]) == 0.5


@pytest.mark.parametrize("value", ["a", b"a", np.bytes_(b"a"), np.array([b"a"])], ids=repr)
@pytest.mark.parametrize("key", ["name", "encoder"])
def test_a_text_may_be_a_byte_string(path, key, value):
    with h5py.File(path, "r+") as f:
        f["coords"].attrs[key] = value
    with open_hdf5(path) as f:
        assert attributes_of(f["coords"]) == {key: "a"}


@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("fill", [0, -1])
def test_instance_labels_that_were_never_written_are_all_the_same(path, options, fill):
    with h5py.File(path, "r+") as f:
        rows = len(f["features"])
        f.create_dataset("instance_labels", (rows,), "i8", fillvalue=fill, **options)
    assert read_bag(path).instance_labels.tolist() == [fill] * rows
    with h5py.File(path, "r+") as f:
        del f["coords"]
        f.create_dataset("coords", (rows, 2), "i8", **options)
    refused(BagError, "'coords'", read_bag, path)


@pytest.mark.parametrize("value", [np.inf, "x", -1])
def test_an_odd_version_is_named(path, value):
    with h5py.File(path, "r+") as f:
        f.attrs["probsa_version"] = value
    refused(BagError, r"a\.h5.*'probsa_version'", read_bag, path)


def test_trident_may_state_that_it_does_not_know(path):
    with h5py.File(path, "r+") as f:
        f["coords"].attrs["mpp"] = "None"
    with open_hdf5(path) as f:
        assert attributes_of(f["coords"]) == {"mpp": "None"}


@pytest.mark.parametrize(
    "header",
    [
        {"shape": (10**12, 4)},
        {"shape": (4, 4)},
        {"shape": (-1, 4)},
        {"descr": "|O"},
        {"descr": "x"},
        {"shape": "x"},
        {"fortran_order": None},
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_headers_of_arrays(tmp_path, header, zipped):
    data = npy_bytes(X, header=header)
    path = tmp_path / ("a.npz" if zipped else "a.npy")
    if zipped:
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("x.npy", data)
    else:
        path.write_bytes(data)
    refused(BagError, r"a\.np[yz]", load_array, path)


def test_whole_arrays_are_read(tmp_path):
    np.save(tmp_path / "a.npy", X)
    np.savez_compressed(tmp_path / "b.npz", x=X, y=X[0])
    assert np.array_equal(load_array(tmp_path / "a.npy"), X)
    assert np.array_equal(load_array(tmp_path / "a.npy", mapped=True), X)
    assert np.array_equal(load_array(tmp_path / "b.npz"), X)
    assert np.array_equal(load_arrays(tmp_path / "b.npz")["y"], X[0])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as z:
        z.writestr("x.npy", npy_bytes(X, header={"shape": (10**12,)}))
    for load in (load_array, load_arrays):
        with pytest.raises(BagError, match=r"a\.npz.*'x\.npy'"):
            load(tmp_path / "a.npz")


def test_coordinates_and_labels_are_numbers_of_each_instance(path):
    for odd in (np.float64(3), np.array([b"x"]), np.array([1 + 2j]), np.array([1e300, 0.0])):
        refused(BagError, "coords", as_coordinates, np.asarray(odd))
    assert as_coordinates(np.zeros((0, 2))).shape == (0, 2)
    assert as_coordinates(np.arange(3)).tolist() == [[0], [1], [2]]
    for odd in (np.array([0.5]), np.array([np.nan]), np.array(["a"]), np.array([2**40])):
        refused(BagError, r"a\.h5", as_instance_labels, odd, source=path)
    assert as_instance_labels(np.array([[1.0], [-1.0]]), source=path).tolist() == [1, -1]

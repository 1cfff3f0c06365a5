"""What is done to a file: to its bytes, to the values of documents and tables, to its arrays.

An alteration is a value, so that Hypothesis can shrink it and print it; it is called with the path.
Places are thousandths of a file's length, of its values, or of its arrays.
"""

import csv
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

PLACES = st.integers(0, 999)
ODD = (
    st.sampled_from(
        [
            None,
            True,
            "",
            "x",
            "..",
            "/etc/passwd",
            "\0",
            "é" * 300,
            -1,
            0,
            1,
            10**6,
            10**30,
            0.5,
            1e308,
            float("nan"),
            float("inf"),
            [],
            [[]],
            [None],
            {},
            {"x": {"y": []}},
        ]
    )
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
)
"""Values that take the place of others in documents."""
CELLS = st.sampled_from(["", "nan", "inf", "-1", "1e999", "0x1", "é" * 200, '"', "a,b", "\0"])


def npy_bytes(array: np.ndarray, *, header: dict[str, Any] | None = None) -> bytes:
    """Return a .npy file, with other statements in its header."""
    stream = io.BytesIO()
    np.save(stream, array)
    if header is None:
        return stream.getvalue()
    stated = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | header
    text = (repr(stated) + "\n").encode("latin-1")
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + array.tobytes()


@dataclass(frozen=True)
class Bytes:
    """Some bytes, or all from a place on, are replaced by others, of whatever number."""

    place: int
    count: int
    new: bytes

    def __call__(self, path: Path) -> None:
        data = path.read_bytes()
        start = self.place * len(data) // 1000
        path.write_bytes(data[:start] + self.new + data[start + self.count :])


COUNTS = st.sampled_from([0, 1, 1, 8, 512, 10**9])
BYTES = st.builds(Bytes, PLACES, COUNTS, st.binary(max_size=8))


@dataclass(frozen=True)
class Value:
    """A value of a document is another one, or is removed."""

    where: int | tuple[str | int, ...]
    """Its place among all values, or the keys that lead to it."""
    new: Any
    removed: bool = False

    def __call__(self, path: Path) -> None:
        document, write = opened(path)
        keys = self.where
        if isinstance(keys, int):
            every = [found for found in paths_in(document) if found]
            keys = every[keys * len(every) // 1000]
        parent = reduce(lambda item, key: item[key], keys[:-1], document)
        if self.removed:
            del parent[keys[-1]]
        else:
            parent[keys[-1]] = self.new
        write(document)


def paths_in(document: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys that lead to each value of a document."""
    yield before
    items = document.items() if isinstance(document, dict) else ()
    items = enumerate(document) if isinstance(document, list) else items
    for key, value in items:
        yield from paths_in(value, (*before, key))


def opened(path: Path) -> tuple[Any, Callable[[Any], object]]:
    """Return the document of a file, and what writes another: the header of a safetensors file."""
    if path.suffix == ".yaml":
        return yaml.safe_load(path.read_text()), lambda d: path.write_text(yaml.safe_dump(d))
    if path.suffix != ".safetensors":
        return json.loads(path.read_text()), lambda d: path.write_text(json.dumps(d))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")

    def write(document: Any) -> None:
        header = json.dumps(document).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])

    return json.loads(data[8 : 8 + size]), write


DOCUMENTS = st.builds(Value, PLACES, ODD, removed=st.sampled_from([False, False, True]))


@dataclass(frozen=True)
class Cell:
    """A cell of a table is another one, or its row is removed, doubled or longer."""

    row: int
    column: int
    new: str
    how: str

    def __call__(self, path: Path) -> None:
        with path.open(newline="") as f:
            rows = list(csv.reader(f))
        at = self.row * len(rows) // 1000
        row = rows[at]
        if self.how == "cell":
            row[self.column * len(row) // 1000] = self.new
        else:
            rows[at : at + 1] = {
                "removed": [],
                "doubled": [row, row],
                "longer": [[*row, self.new]],
            }[self.how]
        with path.open("w", newline="") as f:
            csv.writer(f).writerows(rows)


ROWS = st.sampled_from(["cell", "cell", "cell", "removed", "doubled", "longer"])
TABLES = st.builds(Cell, PLACES, PLACES, CELLS | st.text(max_size=5), ROWS)

ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "flat": lambda a: a.reshape(-1),
    "half": lambda a: a[: len(a) // 2],
    "deeper": lambda a: a[None],
    "one number": lambda a: np.float64(3),
    "none": lambda a: np.zeros((0, *a.shape[1:])),
    "no columns": lambda a: a[:, :0] if a.ndim > 1 else a[:0],
    "complex": lambda a: a.astype(complex),
    "nan": lambda a: np.full(a.shape, np.nan),
    "infinite": lambda a: np.full(a.shape, np.inf),
    "large": lambda a: np.full(a.shape, 1e300),
    "texts": lambda a: np.full(len(a), b"x"),
    "structured": lambda a: np.zeros(len(a), dtype=[("a", "f4"), ("b", "i4")]),
    "u8": lambda a: a.astype("u8"),
    "f2": lambda a: a.astype("f2"),
    ">i2": lambda a: a.astype(">i2"),
    "bool": lambda a: a.astype(bool),
}
"""Other arrays, by what is odd about them."""
HOW = st.sampled_from(sorted(ARRAYS))


@dataclass(frozen=True)
class Array:
    """An array of an HDF5, .npy, .npz or .pt file is another one."""

    place: int
    how: str

    def __call__(self, path: Path) -> None:
        change = ARRAYS[self.how]
        if path.suffix == ".h5":
            with h5py.File(path, "r+") as f:
                name = sorted(f)[self.place * len(f) // 1000]
                replace_dataset(f, name, data=change(f[name][...]))
        elif path.suffix == ".pt":
            torch.save(torch.from_numpy(change(torch.load(path, weights_only=True).numpy())), path)
        else:
            rewrite_npy(path, self.place, lambda a: npy_bytes(np.asarray(change(a))))


@dataclass(frozen=True)
class Header:
    """The header of a .npy file, or of one in an .npz file, states something else."""

    place: int
    header: dict[str, Any]

    def __call__(self, path: Path) -> None:
        rewrite_npy(path, self.place, lambda a: npy_bytes(a, header=self.header))


def rewrite_npy(path: Path, place: int, change: Callable[[np.ndarray], bytes]) -> None:
    """Write other bytes for a .npy file, or for one of an .npz file."""
    if path.suffix == ".npy":
        path.write_bytes(change(np.load(path)))
        return
    with np.load(path) as stored:
        arrays = dict(stored)
    changed = sorted(arrays)[place * len(arrays) // 1000]
    with zipfile.ZipFile(path, "w") as z:
        for name, array in arrays.items():
            z.writestr(f"{name}.npy", change(array) if name == changed else npy_bytes(array))


SHAPES = [(10**12,), (10**8, 64), (2**62, 4), (-1, 4), (), (0, 4), "x"]
TYPES = ["|O", "<U10000000", "<c16", "|V8", "<M8[s]", "x", "|S0"]
HEADERS = st.sampled_from(
    [{"shape": s} for s in SHAPES] + [{"descr": t} for t in TYPES] + [{"fortran_order": None}]
)
NPY = st.builds(Array, PLACES, HOW) | st.builds(Header, PLACES, HEADERS)


def replace_dataset(f: h5py.File, name: str, **made: Any) -> None:
    """Replace a dataset, and keep its attributes."""
    attributes = dict(f[name].attrs)
    del f[name]
    f.create_dataset(name, **made).attrs.update(attributes)


@dataclass(frozen=True)
class Rows:
    """A dataset states many rows, of which none are stored."""

    place: int
    rows: int
    packed: bool

    def __call__(self, path: Path) -> None:
        with h5py.File(path, "r+") as f:
            name = sorted(f)[self.place * len(f) // 1000]
            width = f[name].shape[1:]
            made = {"compression": "gzip", "chunks": (1024, *width)} if self.packed else {}
            replace_dataset(f, name, shape=(self.rows, *width), dtype=f[name].dtype, **made)


@dataclass(frozen=True)
class Attribute:
    """An attribute of a file or of a dataset is another one; a new one is a key of ours."""

    place: int
    key: str | int
    new: Any

    def __call__(self, path: Path) -> None:
        with h5py.File(path, "r+") as f:
            items = [f, *(f[name] for name in sorted(f))]
            item = items[self.place * len(items) // 1000]
            present = sorted(item.attrs) or ["probsa_kind"]
            key = self.key
            item.attrs[present[key * len(present) // 1000] if isinstance(key, int) else key] = (
                self.new
            )


@dataclass(frozen=True)
class Linked:
    """A dataset is removed, or is a link or stored in another file."""

    place: int
    how: str

    def __call__(self, path: Path) -> None:
        with h5py.File(path, "r+") as f:
            name = sorted(f)[self.place * len(f) // 1000]
            shape = f[name].shape
            dtype = f[name].dtype
            del f[name]
            if self.how == "nowhere":
                f[name] = h5py.SoftLink("/nowhere")
            elif self.how == "itself":
                f[name] = h5py.SoftLink(f"/{name}")
            elif self.how == "group":
                f.create_group(name)
            elif self.how == "file":
                f[name] = h5py.ExternalLink("/dev/zero", "/x")
            elif self.how == "stored elsewhere":
                size = max(1, int(np.prod(shape)) * dtype.itemsize)
                f.create_dataset(name, shape, dtype, external=[("/dev/zero", 0, size)])


KEYS = st.sampled_from(
    [
        "patch_size",
        "patch_size_level0",
        "size_level0",
        "pitch",
        "overlap",
        "downsample",
        "kind",
        "patch_level",
        "level_dim",
        "level0_width",
        "mpp",
        "mpp_level0",
        "encoder",
        "tile_size_um",
        "level0_magnification",
        "unit",
        "feat_type",
        "score_kind",
        "probsa_kind",
        "probsa_encoder",
    ]
)
ATTRIBUTES = st.sampled_from(
    [
        0,
        -1,
        10**15,
        np.nan,
        np.inf,
        1e308,
        "",
        "x",
        "None",
        b"\xff",
        True,
        np.zeros(0),
        np.arange(5),
        np.zeros((2, 2)),
        h5py.Empty("f4"),
        np.array(1 + 2j),
        np.uint64(2**63),
    ]
)
LINKS = st.sampled_from(["removed", "nowhere", "itself", "group", "file", "stored elsewhere"])
HDF5 = (
    st.builds(Array, PLACES, HOW)
    | st.builds(Attribute, PLACES, PLACES | KEYS, ATTRIBUTES)
    | st.builds(Rows, PLACES, st.sampled_from([10**7, 10**12]), st.booleans())
    | st.builds(Linked, PLACES, LINKS)
)

FIELDS = {
    "dim": (40, "<h"),
    "dim1": (42, "<h"),
    "dim3": (46, "<h"),
    "datatype": (70, "<h"),
    "bitpix": (72, "<h"),
    "pixdim1": (80, "<f"),
    "pixdim3": (88, "<f"),
    "vox_offset": (108, "<f"),
    "scl_slope": (112, "<f"),
    "qform_code": (252, "<h"),
    "sform_code": (254, "<h"),
    "srow_x": (280, "<f"),
    "magic": (344, "<i"),
}
"""Fields of the header of NIfTI-1, with their offset and type."""


@dataclass(frozen=True)
class Field:
    """A field of a NIfTI header has another value."""

    name: str
    new: float

    def __call__(self, path: Path) -> None:
        data = path.read_bytes()
        data = bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)
        offset, kind = FIELDS[self.name]
        struct.pack_into(kind, data, offset, self.new if kind == "<f" else int(self.new))
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


NIFTI = st.builds(
    Field, st.sampled_from(sorted(FIELDS)), st.sampled_from([0, -1, 1, 3, 128, 32767, 352])
)
OF_SUFFIX: dict[str, SearchStrategy[Any]] = {
    ".h5": HDF5,
    ".npy": NPY,
    ".npz": NPY,
    ".pt": st.builds(Array, PLACES, HOW),
    ".csv": TABLES,
    ".nii": NIFTI,
    ".gz": NIFTI,
    **dict.fromkeys((".json", ".yaml", ".safetensors"), DOCUMENTS),
}
"""Alterations of what a file holds, beside those of its bytes."""

"""Seeded mutations of containers: HDF5, .npz, .pt and NIfTI files."""

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from fuzz.mutations import Draw, Mutation, npy_bytes, odd_array

HUGE = (10**7, 10**9, 10**12)
"""Numbers of rows that are stated, but not stored."""


def _odd_attributes() -> tuple[Any, ...]:
    return (
        0, -1, 1, 2, 10**15, 0.0, np.nan, np.inf, -np.inf, 1e308, "", "x", "None", "0", b"\xff",
        b"\xff\xfe", True, np.zeros(0), np.zeros((2, 2)),
        np.array([np.inf, 1.0]), np.array(["a", "b"], dtype="S1"), h5py.Empty("f4"), np.arange(5),
        np.array(1 + 2j), np.array([3]), np.uint64(2**63),
    )  # fmt: skip


KEYS = (
    "patch_size", "patch_size_level0", "size_level0", "pitch", "overlap", "downsample",
    "patch_level", "level_dim", "level0_width", "level0_height", "mpp", "mpp_level0",
    "custom_downsample", "kind", "encoder", "level0_magnification", "target_magnification",
    "stamp_version", "unit", "tile_size_um", "tile_size_px", "feat_type", "extractor", "tile_size",
    "name", "score_kind",
)  # fmt: skip
ROOT_KEYS = ("probsa_kind", "probsa_version", "probsa_encoder", "probsa_made_with")


def hdf5_attribute(path: Path, draw: Draw) -> str:
    with h5py.File(path, "r+") as f:
        present = [(f, k) for k in f.attrs]
        present += [(f[name], k) for name in f for k in f[name].attrs]
        item = f[draw.one(sorted(f))]
        new = [(item, draw.one(KEYS)), (f, draw.one((*ROOT_KEYS, *KEYS)))]
        where, key = draw.one([*present, *new]) if draw.below(3) else draw.one(new)
        value = draw.one(_odd_attributes())
        where.attrs[key] = value
        return f"{where.name}.{key} is {str(value)[:20]!r}"


def _replace(f: h5py.File, name: str, **made: Any) -> None:
    attributes = dict(f[name].attrs) if name in f else {}
    if name in f:
        del f[name]
    dataset = f.create_dataset(name, **made)
    dataset.attrs.update(attributes)


def hdf5_huge(path: Path, draw: Draw) -> str:
    rows, packed = draw.one(HUGE), bool(draw.below(2))
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        width = f[name].shape[1:] or ()
        made: dict[str, Any] = {"compression": "gzip", "chunks": (1024, *width)} if packed else {}
        _replace(f, name, shape=(rows, *width), dtype=f[name].dtype, **made)
    return f"{name} states {rows} rows, nothing stored, {'chunks' if packed else 'contiguous'}"


def hdf5_bomb(path: Path, draw: Draw) -> str:
    """Four gigabytes of zeros in chunks that all compress to almost nothing."""
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        width = f[name].shape[1:] or ()
        row = int(np.prod(width, dtype=np.int64)) * 4
        rows, step = 4 * 10**9 // row, 10**8 // row
        chunks = {"chunks": (step, *width), "compression": "gzip"}
        _replace(f, name, shape=(rows, *width), dtype="f4", **chunks)
        packed = gzip.zlib.compress(bytes(step * row), 9)
        for start in range(0, rows, step):
            f[name].id.write_direct_chunk((start, *(0 for _ in width)), packed)
    return f"{name} holds 4 GB of zeros in {path.stat().st_size / 1e6:.0f} MB"


def hdf5_external(path: Path, draw: Draw) -> str:
    how = draw.one(("pipe", "file", "missing", "/dev/zero"))
    target = path.with_name("raw.bin")
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        shape, dtype = f[name].shape, f[name].dtype
        size = int(np.prod(shape)) * dtype.itemsize
        if how == "pipe":
            os.mkfifo(target)
        elif how == "file":
            target.write_bytes(bytes(max(size, 1)))
        elif how == "/dev/zero":
            target = Path(how)
        _replace(f, name, shape=shape, dtype=dtype, external=[(str(target), 0, max(size, 1))])
    return f"{name} is stored externally: {how}"


def hdf5_link(path: Path, draw: Draw) -> str:
    how = draw.one(("external", "external pipe", "dangling", "itself", "group", "other"))
    other = path.with_name("other.bin")
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        array = f[name][...]
        del f[name]
        if how == "external":
            with h5py.File(other, "w") as g:
                g["x"] = array
            f[name] = h5py.ExternalLink(str(other), "/x")
        elif how == "external pipe":
            os.mkfifo(other)
            f[name] = h5py.ExternalLink(str(other), "/x")
        elif how == "dangling":
            f[name] = h5py.SoftLink("/nowhere")
        elif how == "itself":
            f[name] = h5py.SoftLink(f"/{name}")
        elif how == "group":
            f.create_group(name)
        else:
            f["other"] = array
    return f"{name}: link, {how}"


def hdf5_virtual(path: Path, draw: Draw) -> str:
    source = path.with_name("source.bin")
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        array = f[name][...]
        attributes = dict(f[name].attrs)
        if draw.below(2):
            with h5py.File(source, "w") as g:
                g["x"] = array
        layout = h5py.VirtualLayout(shape=array.shape, dtype=array.dtype)
        layout[...] = h5py.VirtualSource(str(source), "x", shape=array.shape)
        del f[name]
        f.create_virtual_dataset(name, layout).attrs.update(attributes)
    return f"{name} is virtual"


def hdf5_array(path: Path, draw: Draw) -> str:
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        array = f[name][...]
        n, how = len(array), draw.below(12)
        odd: Any = {
            0: lambda: array.reshape(-1),
            1: lambda: array[: n // 2],
            2: lambda: array[None],
            3: lambda: np.float64(3.0),
            4: lambda: np.zeros((0, *array.shape[1:])),
            5: lambda: np.array([b"x"] * n),
            6: lambda: array.astype(complex),
            7: lambda: np.full(array.shape, draw.one((np.nan, np.inf, 1e300, -1e38, 2.0**62))),
            8: lambda: np.zeros(n, dtype=[("a", "f4"), ("b", "i4")]),
            9: lambda: array[..., None, None],
            10: lambda: h5py.Empty("f4"),
            11: lambda: array[:, :0] if array.ndim > 1 else array[:1],
        }[how]()
        if how == 5 and draw.below(2):
            _replace(f, name, shape=(n,), dtype=h5py.vlen_dtype(np.int32))
        else:
            _replace(f, name, data=odd)
        return f"{name} changed, way {how}"


def hdf5_removed(path: Path, draw: Draw) -> str:
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        del f[name]
    return f"{name} removed"


def hdf5_type(path: Path, draw: Draw) -> str:
    with h5py.File(path, "r+") as f:
        name = draw.one(sorted(f))
        kind = draw.one(("f2", "f8", ">f4", "i8", "u1", ">i2", "u8", "?"))
        _replace(f, name, data=f[name][...].astype(kind))
    return f"{name} stored as {kind}"


HDF5: tuple[Mutation, ...] = (
    *(hdf5_attribute,) * 4, *(hdf5_array,) * 3, hdf5_huge, hdf5_huge, hdf5_bomb, hdf5_external,
    hdf5_link, hdf5_virtual, hdf5_removed, hdf5_type,
)  # fmt: skip


def npz_changed(path: Path, draw: Draw) -> str:
    with np.load(path) as stored:
        arrays = dict(stored)
    name = draw.one(sorted(arrays))
    members = {k: npy_bytes(v) for k, v in arrays.items()}
    how = draw.one(("array", "array", "bomb", "none", "names", "size", "twice"))
    what = how
    if how == "array":
        members[name], what = odd_array(arrays[name], draw)
    elif how == "bomb":
        zeros = npy_bytes(np.zeros(0), header={"shape": (10**8, 2)})
        members[name] = zeros + bytes(16 * 10**8 // 8)
    elif how == "none":
        members = draw.one(({}, {"readme": b"x"}))
    elif how == "names":
        members = {draw.one(("../x", "/x", "", "é", "a" * 300)): members[name]}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for key, data in members.items():
            z.writestr(f"{key}.npy" if key != "readme" else key, data)
    if how == "size":  # the sizes that the central directory states
        data = bytearray(path.read_bytes())
        at = data.rfind(b"PK\x01\x02")
        data[at + 20 : at + 28] = struct.pack(
            "<II", *(draw.one((0, 1, 2**31, 2**32 - 2)) for _ in "ab")
        )
        path.write_bytes(data)
    return f"members: {what}"


NPZ: tuple[Mutation, ...] = (npz_changed,) * 5


class Harmless:
    """An object whose unpickling calls a function, as malicious files do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("unpickled",))


def pt_changed(path: Path, draw: Draw) -> str:
    tensor = torch.load(path, weights_only=True)
    how = draw.below(16)
    made: Any = {
        0: lambda: [tensor],
        1: lambda: {"features": tensor},
        2: lambda: tensor.reshape(-1),
        3: lambda: tensor[None],
        4: lambda: tensor.bfloat16(),
        5: lambda: tensor.to(torch.complex64),
        6: lambda: tensor.to_sparse(),
        7: lambda: torch.zeros(1).expand(10**11, tensor.shape[1]),
        8: lambda: torch.empty(10**12, 4, device="meta"),
        9: lambda: torch.full_like(tensor, float(draw.one((np.nan, np.inf, 1e38)))),
        10: lambda: tensor > 0,
        11: lambda: Harmless(),
        12: lambda: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
        13: lambda: None,
        14: lambda: tensor[: len(tensor) // 2],
        15: lambda: torch.zeros(draw.one(((), (0,), (0, 6), (2, 0), (1, 2, 3, 4)))),
    }[how]()
    torch.save(made, path)
    return f"another object, way {how}"


def pt_member(path: Path, draw: Draw) -> str:
    """Change or remove a member of the archive that torch writes."""
    with zipfile.ZipFile(path) as z:
        members = {name: z.read(name) for name in z.namelist()}
    name = draw.one(sorted(members))
    how = draw.one(("removed", "emptied", "cut", "random", "packed"))
    if how == "removed":
        del members[name]
    elif how != "packed":
        cut = members[name][: len(members[name]) // 2]
        members[name] = {"emptied": b"", "cut": cut, "random": draw.bytes(64)}[how]
    stream = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if how == "packed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", method) as z:
        for key, data in members.items():
            z.writestr(key, data)
    path.write_bytes(stream.getvalue())
    return f"member {name} {how}"


PT: tuple[Mutation, ...] = (*(pt_changed,) * 4, pt_member)

NIFTI_FIELDS = {
    "sizeof_hdr": (0, "<i"), "dim": (40, "<h"), "dim1": (42, "<h"), "dim2": (44, "<h"),
    "dim3": (46, "<h"), "dim4": (48, "<h"), "datatype": (70, "<h"), "bitpix": (72, "<h"),
    "pixdim0": (76, "<f"), "pixdim1": (80, "<f"), "pixdim3": (88, "<f"), "vox_offset": (108, "<f"),
    "scl_slope": (112, "<f"), "scl_inter": (116, "<f"), "xyzt_units": (123, "<b"),
    "qform_code": (252, "<h"), "sform_code": (254, "<h"), "quatern_b": (256, "<f"),
    "srow_x": (280, "<f"), "magic": (344, "<i"),
}  # fmt: skip
"""Fields of the header of NIfTI-1, with their offset and type."""


def _plain(path: Path) -> bytearray:
    data = path.read_bytes()
    return bytearray(gzip.decompress(data) if path.suffix == ".gz" else data)


def nifti_field(path: Path, draw: Draw) -> str:
    data, done = _plain(path), []
    for _ in range(draw.one((1, 1, 3))):
        name = draw.one(sorted(NIFTI_FIELDS))
        if done and draw.below(2):
            name = draw.one(("dim1", "dim2", "dim3"))
        offset, kind = NIFTI_FIELDS[name]
        if kind == "<f":
            value: Any = draw.one((0.0, -1.0, np.nan, np.inf, 1e30, 1e-30, 352.5))
        else:
            short = (0, -1, 1, 3, 5, 2, 32767, 128, 1792, 2304)
            value = draw.one((0, -1, 1, 2, 4, 7, 64, 127) if kind == "<b" else short)
        struct.pack_into(kind, data, offset, value)
        done.append(f"{name} is {value}")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return ", ".join(done)


def nifti_bomb(path: Path, draw: Draw) -> str:
    data, side = _plain(path), draw.one((1500, 4000, 32767))
    struct.pack_into("<hhhh", data, 40, 3, side, side, side if draw.below(2) else 1500)
    if path.suffix == ".gz":
        data = gzip.compress(data) + gzip.compress(bytes(10**7)) * 30
    path.write_bytes(data)
    return f"states {side} voxels along an axis"


NIFTI: tuple[Mutation, ...] = (*(nifti_field,) * 4, nifti_bomb)

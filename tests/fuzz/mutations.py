"""Seeded mutations of files: their bytes, their text, and the values of JSON, YAML and tables.

A mutation changes a file in place and returns a description. `Draw` is NumPy's generator with what
the mutations need of it.
"""

import io
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Mutation = Callable[[Path, "Draw"], str]

ODD: tuple[Any, ...] = (
    None, True, "", "x", "..", "/etc/passwd", "a/b", "\0", "é" * 300, -1, 0, 1, 2, 10**6, 10**30,
    0.5, -0.0, 1e308, float("nan"), float("inf"), [], [[]], [None], {}, {"x": {"y": []}},
)  # fmt: skip
"""Values that take the place of others in documents."""


class Draw:
    """Random choices of one case, which depend on its seed alone."""

    def __init__(self, *seed: int | str) -> None:
        words = [s if isinstance(s, int) else zlib.crc32(s.encode()) for s in seed]
        self.g = np.random.default_rng(words)

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n − 1; 0 if there is no choice."""
        return int(self.g.integers(max(n, 1)))

    def one(self, options: Any) -> Any:
        """Return one of a sequence, without converting it to NumPy's types."""
        return options[self.below(len(options))]

    def bytes(self, n: int) -> bytes:
        """Return n random bytes."""
        return self.g.integers(256, size=n, dtype=np.uint8).tobytes()


def flipped(path: Path, draw: Draw) -> str:
    data, n = bytearray(path.read_bytes()), draw.one((1, 1, 4, 32))
    for _ in range(n):
        if data:
            data[draw.below(len(data))] ^= 1 << draw.below(8)
    path.write_bytes(data)
    return f"{n} bits flipped"


def header_flipped(path: Path, draw: Draw) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(4):
        if data:
            data[draw.below(min(len(data), 400))] = draw.below(256)
    path.write_bytes(data)
    return "4 bytes of the start changed"


def truncated(path: Path, draw: Draw) -> str:
    data = path.read_bytes()
    keep = draw.below(len(data))
    path.write_bytes(data[:keep])
    return f"cut to {keep} of {len(data)} bytes"


def zeroed(path: Path, draw: Draw) -> str:
    data = bytearray(path.read_bytes())
    start, n = draw.below(len(data)), draw.one((8, 64, 512, 4096))
    data[start : start + n] = bytes(len(data[start : start + n]))
    path.write_bytes(data)
    return f"{n} bytes zeroed at {start}"


def spliced(path: Path, draw: Draw) -> str:
    data = path.read_bytes()
    start, n = draw.below(len(data)), draw.one((1, 16, 256))
    middle = draw.one((b"", data[:n], draw.bytes(n)))
    path.write_bytes(data[:start] + middle + data[start + draw.below(n) :])
    return f"bytes inserted or removed at {start}"


def emptied(path: Path, _: Draw) -> str:
    path.write_bytes(b"")
    return "emptied"


def random_bytes(path: Path, draw: Draw) -> str:
    path.write_bytes(draw.bytes(draw.one((1, 10, 1000))))
    return "random bytes"


def replaced_by_folder(path: Path, _: Draw) -> str:
    path.unlink()
    path.mkdir()
    return "a folder in its place"


def removed(path: Path, _: Draw) -> str:
    path.unlink()
    return "removed"


BYTES: tuple[Mutation, ...] = (
    flipped, flipped, header_flipped, truncated, zeroed, spliced, emptied, random_bytes,
    replaced_by_folder, removed,
)  # fmt: skip
"""Mutations of any file."""


def recoded(path: Path, draw: Draw) -> str:
    text = path.read_text(encoding="utf-8")
    code = draw.one(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"))
    path.write_bytes(text.encode(code))
    return f"in {code}"


def other_bytes(path: Path, draw: Draw) -> str:
    data = path.read_bytes()
    start = draw.below(len(data))
    extra = draw.one((b"\0", b"\xff\xfe", "é".encode("latin-1"), b"\r", b'"', b"\n\n", b"\x1b[31m"))
    path.write_bytes(data[:start] + extra + data[start:])
    return f"{extra!r} at {start}"


def long_line(path: Path, draw: Draw) -> str:
    data = path.read_bytes()
    path.write_bytes(data + draw.one((b"x" * 200_000, b"," * 50_000, b"[" * 100_000, b"\n" * 9999)))
    return "a very long line"


TEXT: tuple[Mutation, ...] = (recoded, other_bytes, other_bytes, long_line)
"""Mutations of a text file."""


def _cells(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]


def _write_cells(path: Path, rows: list[list[str]]) -> None:
    path.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")


def cell_changed(path: Path, draw: Draw) -> str:
    rows = _cells(path)
    row = draw.one(rows)
    numbers = ("", "nan", "inf", "-1", "1e400", "9" * 30, "x", "0", "1")
    value = draw.one((*numbers, "²", "１", '"', "a/b", "1.0", " "))
    row[draw.below(len(row))] = value
    _write_cells(path, rows)
    return f"a cell is {value!r}"


def column_changed(path: Path, draw: Draw) -> str:
    rows, how = _cells(path), draw.one(("removed", "doubled", "renamed", "shifted"))
    k = draw.below(len(rows[0]))
    for n, row in enumerate(rows):
        if how == "removed":
            del row[k : k + 1]
        elif how == "doubled":
            row.insert(k, row[k])
        elif how == "renamed" and n == 0:
            row[k] = draw.one(("", "x", "bag", "label", "p_1", "sd_1"))
        elif how == "shifted" and n:
            row.insert(k, "")
    _write_cells(path, rows)
    return f"column {k} {how}"


def rows_changed(path: Path, draw: Draw) -> str:
    rows, how = _cells(path), draw.one(("header only", "no header", "doubled", "short", "unknown"))
    if how == "header only":
        rows = rows[:1]
    elif how == "no header":
        rows = rows[1:]
    elif how == "doubled":
        rows.append(rows[-1])
    elif how == "short":
        rows[-1] = rows[-1][:1]
    else:
        rows.append(["unknown", *rows[-1][1:]])
    _write_cells(path, rows)
    return f"rows: {how}"


TABLE: tuple[Mutation, ...] = (cell_changed, cell_changed, column_changed, rows_changed)
"""Mutations of a CSV table."""


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document, the whole first."""
    found = [at]
    if isinstance(value, dict):
        items: Any = value.items()
    else:
        items = list(enumerate(value))[:6] if isinstance(value, list) else ()
    for key, inner in items:
        found += _places(inner, (*at, key))
    return found


def _replace(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    value[at[0]] = _replace(value[at[0]], at[1:], new)
    return value


def _mutate_document(value: Any, draw: Draw) -> tuple[Any, str]:
    places = _places(value)
    at = draw.one(places)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    how = draw.one(("odd", "odd", "odd", "removed", "extra", "nested"))
    if how == "removed" and at:
        del inner[at[-1]]
        return value, f"{at} removed"
    if how == "extra" and isinstance(value, dict):
        return {**value, "unknown": 1, "": []}, "unknown keys"
    if how == "nested":
        deep: Any = []
        for _ in range(draw.one((50, 300))):
            deep = [deep]
        return _replace(value, at, deep), f"{at} nested deeply"
    odd = draw.one(ODD)
    return _replace(value, at, odd), f"{at} is {str(odd)[:20]!r}"


def json_changed(path: Path, draw: Draw) -> str:
    value, what = _mutate_document(json.loads(path.read_text(encoding="utf-8")), draw)
    path.write_text(json.dumps(value), encoding="utf-8")
    return what


def json_nested(path: Path, draw: Draw) -> str:
    depth = draw.one((1_000, 100_000))
    path.write_text(draw.one(("[" * depth, "[" * depth + "]" * depth, '{"a":' * depth)))
    return f"{depth} brackets"


def yaml_changed(path: Path, draw: Draw) -> str:
    value, what = _mutate_document(yaml.safe_load(path.read_text(encoding="utf-8")), draw)
    path.write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    return what


def yaml_tricks(path: Path, draw: Draw) -> str:
    start = path.read_text(encoding="utf-8")
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join(['*' + chr(97 + k)] * 9)}]" for k in range(9)
    ]
    trick = draw.one(
        ("\n".join(lines), "!!python/object/apply:os.system ['true']", "a: &x [*x]", "<<: [1]",
         "? [1, 2]\n: 3", "2026-13-45: 1", "a: 2026-99-99", "a: !!binary x",
         "--- 1\n--- 2", "\t a: b")
    )  # fmt: skip
    path.write_text(draw.one((trick, f"{start}\n{trick}\n")), encoding="utf-8")
    return f"YAML {trick[:30]!r}"


JSON: tuple[Mutation, ...] = (json_changed,) * 4 + (json_nested,)
YAML: tuple[Mutation, ...] = (yaml_changed,) * 4 + (yaml_tricks,)


def safetensors_changed(path: Path, draw: Draw) -> str:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    if draw.below(2) and isinstance(header.get("__metadata__"), dict) and header["__metadata__"]:
        metadata = header["__metadata__"]
        key = draw.one(sorted(metadata))
        try:
            inner, what = _mutate_document(json.loads(metadata[key]), draw)
            metadata[key] = json.dumps(inner)
        except ValueError:
            what = metadata[key] = draw.one(("", "x", "null", "[]", "{", "[" * 5000, "1e999"))
        what = f"metadata {key}: {what}"
    else:
        key = draw.one(sorted(set(header) - {"__metadata__"}))
        what = draw.one(("shape", "dtype", "name", "removed"))
        if what == "shape":
            header[key]["shape"] = draw.one(([10**12], [1], [], [2**40, 2**40], [-1]))
        elif what == "dtype":
            header[key]["dtype"] = draw.one(("F64", "I8", "BF16", "X", "F16"))
        elif what == "name":
            header["other"] = header.pop(key)
        else:
            del header[key]
        what = f"tensor {key}: {what}"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
    return what


SAFETENSORS: tuple[Mutation, ...] = (safetensors_changed,) * 4


def npy_bytes(array: np.ndarray, *, header: dict[str, Any] | None = None) -> bytes:
    """Return a .npy file, with other statements in its header."""
    stream = io.BytesIO()
    np.save(stream, array)
    if header is None:
        return stream.getvalue()
    stated = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | header
    text = (repr(stated) + "\n").encode("latin-1")
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + array.tobytes()


def odd_array(array: np.ndarray, draw: Draw) -> tuple[bytes, str]:
    """Return the bytes of a .npy file that differs in one thing from that of an array."""
    n = len(array)
    how = draw.below(10)
    if how == 0:
        shape = draw.one(
            ((10**12,), (10**8, 64), (2**62, 4), (-1, 4), (n,), (), (0, 4), "x", (n, 10**9))
        )
        return npy_bytes(array, header={"shape": shape}), f"header states the shape {shape}"
    if how == 1:
        kind = draw.one(
            ("|O", "<U10000000", "<f2", ">f8", "<c16", "|V8", "<M8[s]", "x", "<i1", "|S0")
        )
        return npy_bytes(array, header={"descr": kind}), f"header states the type {kind}"
    if how == 2:
        return npy_bytes(array, header={"fortran_order": draw.one((True, "x", None))}), "order"
    if how == 3:
        return npy_bytes(array, header={"x": 1}), "a key too many"
    changed: Any = {
        4: lambda: array.reshape(-1),
        5: lambda: array.astype(draw.one((complex, str, bool, "U3", "M8[s]"))),
        6: lambda: np.full_like(array.astype(np.float64), draw.one((np.nan, np.inf, 1e308, -1e30))),
        7: lambda: array[: n // 2],
        8: lambda: np.zeros(draw.one(((0,), (), (0, 0), (1, 1, 1, 1), (3, 0)))),
        9: lambda: array[None, None],
    }[how]()
    return npy_bytes(changed), f"array of {changed.dtype} with shape {changed.shape}"


def npy_changed(path: Path, draw: Draw) -> str:
    data, what = odd_array(np.load(path), draw)
    path.write_bytes(data)
    return what


NPY: tuple[Mutation, ...] = (npy_changed,) * 5

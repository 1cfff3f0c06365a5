"""Stored JSON is read into typed values: every error names the file and the key."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from support.refusals import refused

from probsa.core import PositiveFloat, as_record, parse_json, read_json, read_record, read_text
from probsa.errors import CheckpointError, InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    width: PositiveFloat


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    kind: Literal["a", "b"]
    names: tuple[str, ...]
    inner: Inner | None
    counts: dict[Literal["x", "y"], tuple[int, ...]]
    path: Path | None = None


GOOD = {
    "kind": "a",
    "names": ["p", "q"],
    "inner": {"width": 2},
    "counts": {"x": [1, 2]},
    "path": "there",
    "later": {"any": "thing"},
}


def test_a_record_has_the_types_of_its_annotations(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(GOOD))
    found = read_record(Outer, path)
    assert found == Outer(
        kind="a", names=("p", "q"), inner=Inner(width=2.0), counts={"x": (1, 2)}, path=Path("there")
    )
    assert found.inner is not None and type(found.inner.width) is float


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"kind": "c"}, "kind"),
        ({"kind": None}, "kind"),
        ({"names": "pq"}, "names"),
        ({"names": ["p", 3]}, r"names\[1\]"),
        ({"inner": {"width": -1}}, r"inner\.width"),
        ({"inner": {"width": True}}, r"inner\.width"),
        ({"inner": {}}, r"inner\.width is missing"),
        ({"inner": 3}, "inner"),
        ({"counts": {"x": [1.5]}}, r"counts\.x\[0\]"),
        ({"counts": {"z": []}}, "a key of counts"),
        ({"counts": []}, "counts"),
        ({"path": 3}, "path"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path, changed, key):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(GOOD | changed))
    refused(InputError, rf"r\.json is damaged: {key}", read_record, Outer, path)


@pytest.mark.parametrize("value", [None, [], 3, "text"])
def test_a_record_is_keys_and_values(value):
    with pytest.raises(CheckpointError, match="it"):
        as_record(Outer, value, where="it", error=CheckpointError)


def test_a_missing_key_is_refused_and_with_complete_also_one_with_a_default():
    some = {k: v for k, v in GOOD.items() if k != "path"}
    assert as_record(Outer, some, where="it").path is None
    refused(InputError, "path is missing", as_record, Outer, some, where="it", complete=True)
    refused(InputError, "kind is missing", as_record, Outer, {}, where="it")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        "[" * 200 + "]" * 200,
        '{"a": ' * 300 + "1" + "}" * 300,
        '"\\ud800"',
        '{"\\u0000": 1}',
        "1" * 400,
        "1" * 5000,
    ],
)
def test_what_is_not_usable_json_is_refused(text):
    refused(InputError, "it is damaged", parse_json, text, where="it")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "t"
    refused(InputError, "there is no file", read_text, path)
    path.write_bytes(b"\xff\xfe{")
    refused(InputError, "not UTF-8", read_json, path)
    refused(InputError, "at most 2", read_text, path, largest=2)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(InputError, "pipe is a named pipe", read_json, tmp_path / "pipe")

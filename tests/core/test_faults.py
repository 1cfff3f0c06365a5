"""Errors of this program and of its installation are told apart from those of decoders."""

import importlib.util
import json
import pickle
import zipfile

import h5py
import numpy as np
import pytest

from probsa.core import is_fault
from probsa.errors import MissingExtra, UnknownName

NOWHERE = "a_function_that_is_not_there"


def error_of(call) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def raising(error):
    def call():
        raise error

    return call


@pytest.fixture
def decoder(tmp_path):
    """A module as an installed decoder has it, whose functions fail."""
    path = tmp_path / "site-packages" / "decoder.py"
    path.parent.mkdir()
    path.write_text(
        "def key():\n    return {}['x']\n"
        "def kind():\n    return len(5)\n"
        "def attribute():\n    return None.pages\n"
        "def package():\n    import a_package_that_is_not_there\n"
        "def calls_key():\n    return key()\n"
        "def keyword():\n    return key(nothing=1)\n"
    )
    spec = importlib.util.spec_from_file_location("decoder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_decoder_says_of_data_is_no_fault(decoder, tmp_path):
    for call in (decoder.key, decoder.kind, decoder.attribute):
        assert not is_fault(error_of(call))
    with h5py.File(tmp_path / "a.h5", "w") as f:
        assert not is_fault(error_of(lambda: f["nothing"]))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        assert not is_fault(error_of(lambda: archive.open("nothing")))
    assert not is_fault(error_of(lambda: pickle.loads(b"random bytes")))
    assert not is_fault(error_of(lambda: json.loads("{")))
    assert not is_fault(error_of(raising(ValueError("x"))))
    assert not is_fault(error_of(raising(OSError("x"))))


def test_what_an_installation_lacks_is_a_fault(decoder):
    assert is_fault(error_of(decoder.package))
    assert is_fault(error_of(decoder.keyword))
    assert is_fault(error_of(lambda: getattr(np, NOWHERE)))
    assert is_fault(error_of(raising(ImportError("libtiff.so.6 is not there"))))


def test_wrong_keys_and_types_in_code_that_is_no_library_are_faults():
    assert is_fault(error_of(lambda: {}["x"]))
    assert is_fault(error_of(lambda: int(None)))  # pyright: ignore[reportArgumentType]
    assert is_fault(error_of(raising(KeyError("x"))))
    assert is_fault(error_of(raising(AssertionError())))


def test_what_probsa_raises_on_purpose_is_no_fault():
    assert not is_fault(error_of(raising(UnknownName("model", "x", ["y"]))))
    assert not is_fault(error_of(raising(MissingExtra("nibabel", "ct"))))


def test_a_line_of_neither_is_judged_by_its_caller(decoder, monkeypatch):
    def key():
        raise KeyError("x")

    monkeypatch.setattr(decoder, "key", key)
    assert not is_fault(error_of(decoder.calls_key))
    assert is_fault(error_of(decoder.key))

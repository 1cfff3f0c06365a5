"""A number that no model can have is refused, from flags, run files and checkpoints alike."""

import json
import time
from typing import Any, get_args, get_origin

import pytest
import torch
from safetensors.torch import save_file

from probsa.core.options import _alternatives
from probsa.errors import CheckpointError, InputError
from probsa.models import arguments, build, names
from probsa.training.checkpoints import load_checkpoint, restore_model

WRONG = (10**12, -(10**12), float("nan"), float("inf"), -float("inf"))


def numeric(annotation: Any) -> bool:
    kinds = [kind for kind, _ in _alternatives(annotation)]
    return any(kind in (int, float) for kind in kinds)


def lists_of_numbers(annotation: Any) -> int:
    """Return the length of a list of numbers that fits an annotation; 0 if none does."""
    for kind, _ in _alternatives(annotation):
        if get_origin(kind) in (tuple, list) and numeric(get_args(kind)[0]):
            return 2
    return 0


@pytest.mark.parametrize("name", names())
def test_no_argument_of_a_stored_model_is_beyond_all_limits(tmp_path, name):
    path = tmp_path / "a.safetensors"
    for argument, about in arguments(name).items():
        if argument == "seed":
            continue
        for wrong in WRONG:
            values = [wrong] if numeric(about.annotation) else []
            values += [[wrong] * 2] if lists_of_numbers(about.annotation) else []
            for value in values:
                stated = {"model": name, "arguments": {"in_dim": 4, argument: value}}
                header = json.dumps({"format": 1, "version": "0", **stated})
                save_file({"model.w": torch.zeros(1)}, path, metadata={"probsa": header})
                began = time.monotonic()
                with pytest.raises(CheckpointError, match=r"a\.safetensors") as caught:
                    restore_model(load_checkpoint(path))
                assert time.monotonic() - began < 1
                assert argument in str(caught.value)
                given = tuple(value) if isinstance(value, list) else value
                with pytest.raises(InputError, match=argument):
                    build(name, **{"in_dim": 4, argument: given})

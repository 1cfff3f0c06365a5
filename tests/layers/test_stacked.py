"""Stacking K modules: buffers, and parts that bring their own K-fold version."""

import pytest
import torch
from torch import nn

from probsa.errors import InputError
from probsa.layers import Stackable, per_model_names, stack


class Scale(nn.Module):
    """A factor per model, with a linear map inside that the K-fold version replaces as well."""

    def __init__(self, value):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(value))
        self.inner = nn.Linear(2, 2)

    def stacked(self, layers):
        new = Scale(0.0)
        new.factor = nn.Parameter(torch.stack([m.factor.detach() for m in layers]))
        new.inner = nn.Identity()
        return new


class Counting(nn.Module):
    """Buffers of every kind around a linear map."""

    shared_buffers = ("constant",)

    def __init__(self, value, *, part=None):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.part = part
        self.register_buffer("log_kappa", torch.tensor(value))
        self.register_buffer("constant", torch.ones(4))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("table", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)


def test_floating_buffers_are_stacked_unless_they_are_shared():
    stacked = stack([Counting(0.5), Counting(2.0)], first=None)
    assert stacked.log_kappa.tolist() == [0.5, 2.0]
    assert stacked.constant.shape == (4,) and stacked.count.shape == () and stacked.nothing is None
    assert stacked.table.shape == (2,)
    assert set(stacked.state_dict()) == {
        "log_kappa", "constant", "count", "layer.weight", "layer.bias",
    }  # fmt: skip
    assert per_model_names(stacked) == {"log_kappa", "layer.weight", "layer.bias"}


def test_a_module_may_bring_its_own_version():
    modules = [Counting(0.0, part=Scale(v)) for v in (1.0, 3.0)]
    assert isinstance(modules[0].part, Stackable)
    stacked = stack(modules, first=None)
    assert stacked.part.factor.tolist() == [1.0, 3.0]
    assert isinstance(stacked.part.inner, nn.Identity)
    assert "part.factor" in per_model_names(stacked)


def test_other_parameters_are_refused_by_name():
    class Unknown(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

    with pytest.raises(InputError, match=r"Unknown \(part\) cannot be stacked"):
        stack([Counting(0.0, part=Unknown()) for _ in range(2)], first=None)

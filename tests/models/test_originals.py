"""What is refused in the conversion of original weights, and how it is said."""

import pytest
import torch
from support.golden import Golden

from probsa.errors import CheckpointError, UnknownName
from probsa.models import from_original
from probsa.models._originals import _is_of, _sources, number, part, readers, source_of

STATE = {"a.weight": torch.zeros(128, 512), "norm.weight": torch.zeros(4)}


def sb(attention=128, *, gated=False):
    """Return the state dict of a CLAM_SB."""
    state = {
        "attention_net.0.weight": torch.zeros(512, 32),
        "attention_net.0.bias": torch.zeros(512),
        "classifiers.weight": torch.zeros(2, 512),
        "classifiers.bias": torch.zeros(2),
    }
    for c in range(2):
        state[f"instance_classifiers.{c}.weight"] = torch.zeros(2, 512)
        state[f"instance_classifiers.{c}.bias"] = torch.zeros(2)
    for name in ("attention_a.0", "attention_b.0") if gated else ("module.0",):
        state[f"attention_net.3.{name}.weight"] = torch.zeros(attention, 512)
        state[f"attention_net.3.{name}.bias"] = torch.zeros(attention)
    last = "attention_c" if gated else "module.2"
    state[f"attention_net.3.{last}.weight"] = torch.zeros(1, attention)
    state[f"attention_net.3.{last}.bias"] = torch.zeros(1)
    return state


@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("clam_sb_gatd", "clam_sb_gated"),
        ("clam_sb_", "clam_sb"),
        ("CLAM-SB", "clam_sb"),
        ("torchmil_abmill", "torchmil_abmil"),
        ("dsmil_c", "dsmil"),
        ("TransMIL_nystrom", "transmil"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_a_suggestion(reference, meant):
    says = f"no reference named {reference!r}. Did you mean {meant!r}"
    with pytest.raises(UnknownName, match=says):
        from_original(reference, sb())


def sets_of(folder, name):
    """Return the sets of reference outputs of an original."""
    return [p.stem for p in sorted(folder.glob("*.safetensors")) if _is_of(p.stem, name)]


def test_every_original_has_a_set_of_reference_outputs(shared_golden):
    without = [name for name in readers() if not sets_of(shared_golden, name)]
    # the same classes under other names, whose weights are those of a set
    assert set(without) <= {"ckpt_clam_mb", "patchgcn_repo_amil"}


def test_suffixes_do_not_make_two_originals_of_one_reference():
    literal = [f"{n}_{v}" for n, s in _sources.items() for v in s.variants if v.isidentifier()]
    assert "clam_sb_gated" in literal
    for reference in literal:
        read = {_sources[name].read for name in readers() if _is_of(reference, name)}
        assert read == {source_of(reference).read}, reference


def test_a_suffix_that_contradicts_the_weights_is_refused():
    assert from_original("clam_sb_plain", sb()).name == "clam-sb"
    assert from_original("clam_sb_gated", sb(gated=True)).name == "clam-sb"
    with pytest.raises(CheckpointError, match=r"these weights are plain.* give clam_sb$"):
        from_original("clam_sb_gated", sb())
    with pytest.raises(CheckpointError, match="these weights are gated"):
        from_original("clam_sb_plain", sb(gated=True))


def test_a_size_without_a_name_is_said_with_the_key_and_its_shape():
    with pytest.raises(CheckpointError) as said:
        from_original("clam_sb", sb(128), size_arg="small")
    assert str(said.value) == (
        "clam_sb: size_arg is 'small', but attention_net.3.module.0.weight has shape (128, 512), "
        "which fits no value of it (its rows: 256 for 'small', 384 for 'big')"
    )


@pytest.mark.parametrize(
    ("state", "ndim", "says"),
    [
        (STATE, None, None),
        ({"a.weight": torch.zeros(5)}, None, r"a\.weight has shape \(5,\), where L has 2 or more"),
        ({"a.weight": torch.zeros(5, 4, 3)}, None, None),
        ({"a.weight": torch.zeros(5, 4, 3)}, 2, r"has shape \(5, 4, 3\), where L has 2 dim"),
        ({"b": torch.zeros(5)}, None, r"no 'a\.weight' in this state dict: is it L"),
    ],
)
def test_a_tensor_of_another_rank_is_named_with_its_shape(state, ndim, says):
    if says is None:
        assert part(state, "a.weight", layout="L", ndim=ndim) is state["a.weight"]
        return
    with pytest.raises(CheckpointError, match=says):
        part(state, "a.weight", layout="L", ndim=ndim)


@pytest.mark.parametrize(
    ("value", "default", "says"),
    [("x", 4, "a whole number"), (2.5, 4, "a whole number"), (True, 4, "a whole number"),
     ("x", 0.5, "a number"), (None, 0.5, "a number"), ([1], 0.5, "a number")],
)  # fmt: skip
def test_an_argument_that_is_no_number_is_named(value, default, says):
    with pytest.raises(CheckpointError, match=f"^n is .*; expected {says}$"):
        number({"n": value}, "n", default)


def test_numbers_are_those_of_the_default():
    assert number({"n": 3}, "n", 0.5) == 3.0 and isinstance(number({"n": 3}, "n", 0.5), float)
    assert number({}, "n", 7) == 7


@pytest.mark.parametrize(
    "reference", ["torchmil_dtfdmil", "clam_sb", "dsmil", "torchmil_camil", "torchmil_gtp",
                  "torchmil_patchgcn", "transmil_nystrom014", "torchmil_abmil", "torchmil_smabmil"]
)  # fmt: skip
def test_no_original_ignores_an_argument_that_it_does_not_take(reference, shared_golden):
    golden = Golden(shared_golden, sets_of(shared_golden, reference)[0])
    with pytest.raises(UnknownName, match="named 'nonsense'"):
        from_original(reference, golden.state, **golden.constructor, nonsense=1)

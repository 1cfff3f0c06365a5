"""Original weights are read for the reference sets, whose values test_parity.py compares."""

import torch
from support.golden import Golden
from support.originals_of import reference_of, sources

from probsa import pack


def test_every_original_has_a_set_of_reference_outputs(shared_golden):
    stems = [p.stem.removeprefix("ckpt_") for p in shared_golden.glob("*.safetensors")]
    assert set(sources) == {reference_of(s) for s in stems if s.startswith(tuple(sources))}


def test_earlier_attention_of_transmil_keeps_the_wrong_rows_of_padded_bags(shared_golden):
    """The outputs of version 0.0.9, which TransMIL pins, are not those of its weights in ours."""
    golden = Golden(shared_golden, "transmil_nystrom009")
    model = golden.model()
    actual = torch.cat([model(pack([golden.bag(b)])).logits[0, 0] for b in range(3)])
    theirs = torch.cat([golden.expected(f"bag{b}.logits").flatten() for b in range(3)])
    assert (actual - theirs).abs().max().item() > 1e-3

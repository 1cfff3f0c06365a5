"""The number of parameters of each model at 2048 features equals the specification's count."""

import pytest

from probsa.models import build

ORIGINAL = {"preset": "original", "n_classes": 2}
FIRST = 2048 * 512 + 512
COUNTS = [
    ("abmil", {}, 1_115_393),
    ("abmil", {"score_bias": True, "trunk": "gated"}, 1_181_058),
    ("abmil", {"preset": "original"}, 2048 * 500 + 500 + 500 * 128 + 128 + 129 + 501),
    ("abmil-probsa-dirac", {}, 1_115_393),
    ("abmil-probsa-diag", {}, 1_115_522),
    ("abmil-probsa-diag", {"classifier_hidden": 64}, 1_115_522 + 513 * 64 + 65 - 513),
    ("dsmil", {}, 1_132_290),
    ("tabmil", {}, 7_418_113),
    ("tabmil", {"out_proj": False, "use_mlp": False}, 2_691_329),
    ("transmil", {}, 3_195_921),
    ("transmil", ORIGINAL, 2_672_146 + 1024 * 512),
    ("transmil-probsa-diag", {}, 3_195_921 + 65_664 + 128 + 129),
    # torchmil's has two more layer norms, of absent MLPs
    ("transmil", {"convolution": False, "out_proj": False}, 2_672_129 - 2 * 2 * 512),
    ("camil", {}, 4_068_241),
    ("clam-sb", {}, 1_183_110),
    ("clam-sb", ORIGINAL, 790_791 + 1024 * 512),
    ("clam-mb", {"n_classes": 2}, 1_183_752),
    ("gtp", {}, 5_568_613),
    ("gtp", {"code": "torchmil"}, 5_568_613 - 2 * 512 - 2 * 512 * 513),
    # the specification counts the layer norm that the original never calls
    ("patchgcn", {}, 5_389_701 - 2 * 512),
    ("patchgcn", {"preset": "original"}, 1_513_989 - 2 * 128),
    ("setmil", {}, 11_865_985),
    ("setmil", {**ORIGINAL, "in_dim": 1280}, 17_168_130),
    ("gtp", {"preset": "original", "in_dim": 512, "n_classes": 3}, 139_687),
    ("iibmil", {"n_classes": 2}, 26_814_468),
    # the count is at 1280 features, the input of one embedding and three residuals
    ("iibmil", ORIGINAL, 11_783_684 + 768 * (512 + 3 * 256)),
    ("dtfdmil", {"n_classes": 2}, 1_313_542),
    ("dtfdmil", ORIGINAL, 1_313_542),
    ("vmil", {}, 2 * FIRST + 512 * 513 + 2 * 513 + 2 * 3_152_384),
    ("smabmil", {}, 1_115_393 + 1),
    ("smabmil", {"preset": "original"}, 2048 * 128 + 128 + 128 + 1 + 2049),
    ("smabmil", {"encoder": "transformer"}, 7_418_113 + 3),
]


@pytest.mark.parametrize(("name", "arguments", "parameters"), COUNTS)
def test_parameters(name, arguments, parameters):
    model = build(name, **{"in_dim": 2048, **arguments})
    assert sum(p.numel() for p in model.parameters()) == parameters

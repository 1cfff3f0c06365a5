"""What errors suggest."""

import pytest

from probsa.errors import hint


@pytest.mark.parametrize(
    ("name", "known", "suggested"),
    [
        ("abmli", ["abmil", "dsmil"], "abmil"),
        ("lable", ["label", "bag"], "label"),
        ("clam_sb", ["clam-sb", "clam-mb"], "clam-sb"),
        ("slde5", ["slide5"], "slide5"),
        ("slide_005", ["slide-5"], "slide-5"),
        ("slide05", ["slide5"], "slide5"),
        ("slide9", ["slide5", "slide7"], ""),
        ("TCGA-AA-3562", ["TCGA-AA-3561", "TCGA-AB-3562"], "TCGA-AB-3562"),
        ("126", ["127", "128"], ""),
        ("resnet5", ["resnet50", "handcrafted"], "resnet50"),
    ],
)
def test_a_name_with_other_numbers_is_not_suggested(name, known, suggested):
    assert hint(name, known) == (f" Did you mean {suggested!r}?" if suggested else "")

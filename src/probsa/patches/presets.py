"""Named settings (four of CLAM, two of the paper), and how flags modify them."""

from dataclasses import fields
from typing import Any

from ..errors import UnknownName
from .options import PatchSettings, TissueOptions, pixel_size_conflict

CLAM = {
    "size": 256,
    "mpp": None,
    "grid": "contour",
    "rule": "four_pt",
    "unit": "patches",
    "resolution": None,
    "min_area": 100.0,
    "min_hole": 16.0,
    "max_holes": 8,
}
"""CLAM's sthresh, mthresh and close are the defaults here; a_t and a_h are in its patches."""
RESECTION = CLAM | {"threshold": 15, "median": 11}
BIOPSY = RESECTION | {"closing": 2, "min_area": 1.0, "min_hole": 1.0, "max_holes": 2}
PRESETS: dict[str, dict[str, Any]] = {
    "clam": CLAM,  # keeps only pieces larger than 100 squares of 512 level-0 pixels
    "clam-biopsy": BIOPSY,
    "clam-resection": RESECTION,
    "clam-tcga": CLAM | {"min_area": 16.0, "min_hole": 4.0},
    # inferred from the files that the paper's authors published (CAMELYON16, PANDA)
    "paper": BIOPSY | {"size": 512},
    # 20x according to the paper's text for CAMELYON16; with --mpp 1.0 for its 10x on PANDA
    "paper-text": BIOPSY | {"size": 512, "mpp": 0.5},
}
_TISSUE = {f.name: f.name for f in fields(TissueOptions) if f.name != "level"}
_TISSUE["mask_level"] = "level"
"""The fields of `TissueOptions` by the names of their flags."""
_FLAGS = _TISSUE.keys() | {f.name for f in fields(PatchSettings)} - {"tissue"}


def settings(preset: str | None = None, **flags: Any) -> PatchSettings:
    """Return a preset, or the defaults, modified by flags.

    Args:
        preset: `clam`, `clam-biopsy`, `clam-resection`, `clam-tcga`, `paper` or `paper-text`, which
            docs/slides.md describes; None for the defaults.
        flags: The fields of `PatchSettings` and `TissueOptions`, where `mask_level` is the level of
            the latter; None means "not given". `level` replaces `mpp` (patches in pixels of that
            level), `mask_level` replaces `resolution`, and `min_tissue` selects its rule.

    Raises:
        UnknownName: There is no such preset or setting.
        InputError: A value is not valid.
    """
    if preset is not None and preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    user_values = {name: value for name, value in flags.items() if value is not None}
    unknown = sorted(user_values.keys() - _FLAGS)
    if unknown:
        raise UnknownName("setting", unknown[0], _FLAGS)
    if {"mpp", "level"} <= user_values.keys():
        raise pixel_size_conflict(user_values["mpp"], user_values["level"])
    values = dict(PRESETS[preset]) if preset else {}
    # what the user gives replaces other settings of a preset or of the defaults
    if "min_tissue" in user_values:
        values["rule"] = "share"
    if "level" in user_values:
        values["mpp"] = None
    if "mask_level" in user_values:
        values["resolution"] = None
    values |= user_values
    tissue = {_TISSUE[name]: values.pop(name) for name in values.keys() & _TISSUE.keys()}
    return PatchSettings(tissue=TissueOptions(**tissue), **values)

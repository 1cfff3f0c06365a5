"""Named settings (four of CLAM, two of the paper), and how flags modify them."""

from dataclasses import fields, replace
from typing import Any

from ..errors import InputError, UnknownName
from .options import PatchSettings, TissueOptions


def _clam(
    *,
    threshold: int = 8,
    median: int = 7,
    closing: int = 4,
    min_area: float = 100.0,
    min_hole: float = 16.0,
    max_holes: int = 8,
) -> TissueOptions:
    """Return CLAM's sthresh, mthresh, close, a_t, a_h and max_n_holes; areas in its patches."""
    return TissueOptions(
        threshold=threshold,
        median=median,
        closing=closing,
        min_area=min_area,
        min_hole=min_hole,
        max_holes=max_holes,
        unit="patches",
        resolution=None,
    )


BIOPSY = _clam(threshold=15, median=11, closing=2, min_area=1.0, min_hole=1.0, max_holes=2)


def _cut_as_clam(
    name: str, tissue: TissueOptions, *, size: int = 256, mpp: float | None = None
) -> PatchSettings:
    return PatchSettings(
        size=size, mpp=mpp, grid="contour", rule="four_pt", tissue=tissue, preset=name
    )


_PRESETS: dict[str, tuple[str, PatchSettings]] = {
    "clam": (
        "CLAM's defaults, 256 level-0 pixels; keeps only pieces larger than 100 squares of 512",
        _cut_as_clam("clam", _clam()),
    ),
    "clam-biopsy": (
        "CLAM's bwh_biopsy, 256 level-0 pixels: pieces larger than one square of 512",
        _cut_as_clam("clam-biopsy", BIOPSY),
    ),
    "clam-resection": (
        "CLAM's bwh_resection, 256 level-0 pixels: large pieces, many holes",
        _cut_as_clam("clam-resection", _clam(threshold=15, median=11)),
    ),
    "clam-tcga": (
        "CLAM's tcga, 256 level-0 pixels: pieces larger than 16 squares of 512",
        _cut_as_clam("clam-tcga", _clam(min_area=16.0, min_hole=4.0)),
    ),
    "paper": (
        "512 level-0 pixels by clam-biopsy: inferred from the files that the paper's authors "
        "published (CAMELYON16, PANDA), which do not name the preset",
        _cut_as_clam("paper", BIOPSY, size=512),
    ),
    "paper-text": (
        "512 pixels at 0.5 µm (20x, according to the paper's text for CAMELYON16) by clam-biopsy; "
        "with --mpp 1.0 for its 10x on PANDA",
        _cut_as_clam("paper-text", BIOPSY, size=512, mpp=0.5),
    ),
}
_CUT = {f.name for f in fields(PatchSettings)} - {"tissue", "preset"}
_TISSUE = {f.name for f in fields(TissueOptions)} - {"level"}


def presets() -> dict[str, str]:
    """Return the name of every preset with a one-line description."""
    return {name: text for name, (text, _) in _PRESETS.items()}


def preset(name: str) -> PatchSettings:
    """Return the settings of a preset.

    Raises:
        UnknownName: there is no preset of this name.
    """
    return _named(name)


def _named(name: str) -> PatchSettings:
    if name not in _PRESETS:
        raise UnknownName("preset", name, _PRESETS)
    return _PRESETS[name][1]


def settings(preset: str | None = None, **flags: Any) -> PatchSettings:
    """Return a preset, or the defaults, modified by flags.

    `flags` are the fields of `PatchSettings` and `TissueOptions`, where `mask_level` is the level
    of the latter; None means "not given". `level` replaces `mpp` (patches in pixels of that level),
    `mask_level` replaces `resolution`, and `min_tissue` selects the rule that uses it.

    Raises:
        UnknownName: there is no such preset or setting.
        InputError: a value is not valid.
    """
    start = PatchSettings() if preset is None else _named(preset)
    given = {name: value for name, value in flags.items() if value is not None}
    for name in given:
        if name not in _CUT | _TISSUE | {"mask_level"}:
            raise UnknownName("setting", name, _CUT | _TISSUE | {"mask_level"})
    tissue = {name: value for name, value in given.items() if name in _TISSUE}
    if "mask_level" in given:
        tissue = {"resolution": None, **tissue, "level": given["mask_level"]}
    elif "resolution" in given:
        tissue["level"] = None
    cut = {name: value for name, value in given.items() if name in _CUT}
    if "min_tissue" in cut:
        cut = {"rule": "share", **cut}
    if "level" in cut:
        cut = {"mpp": None, **cut}
        if cut["mpp"] is not None:
            raise InputError(
                f"patches are in pixels of {cut['mpp']:g} µm or in pixels of level "
                f"{cut['level']}, not in both: give one of --mpp and --level"
            )
    return replace(start, tissue=replace(start.tissue, **tissue), **cut)

"""Where the tumour of each slide is drawn: files of polygons, or of masks at 1/32 of level 0.

Names are those of the bags; CAMELYON16's may be written in any of the release's ways.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8

from ...errors import InputError
from ...patches import raster
from ...slides import open_slide
from .annotations import read_area
from .camelyon16 import CORRECTED, DUPLICATE, MISLABELLED, NOT_EXHAUSTIVE, official
from .study import RECORD

POLYGONS, MASKS = (".xml", ".json"), (".npy", ".png", ".tif", ".tiff")
TOO_LARGE = 6
"""A mask this many times as large as what the patches cover, both ways, is of another level."""
NO_LESION_TASK = {
    NOT_EXHAUSTIVE: "CAMELYON16's test_114 is not annotated exhaustively",
    DUPLICATE: "CAMELYON16's test_049 is a duplicate, removed by the organisers",
}


def annotation_files(folder: Path, bags: Collection[str]) -> dict[str, Path]:
    """The file of each bag that has one in a folder, or below it; `<bag>_mask.tif` is one too.

    Raises:
        InputError: no such folder, two files for one bag, or no file of any.
    """
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}: --lesions expects annotations, <bag>.xml (ASAP) or "
            ".json, or masks, <bag>.npy, .png or .tif"
        )
    known = {_plain(bag): bag for bag in bags} | {bag: bag for bag in bags}
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (*POLYGONS, *MASKS) or path.name.startswith("."):
            continue
        stem = path.stem.removesuffix("_mask") if path.stem not in known else path.stem
        bag = known.get(stem) or known.get(_plain(stem))
        if bag is None:
            continue
        if bag in found:
            raise InputError(
                f"{found[bag]} and {path} both say where the tumour of {bag!r} is: leave one out, "
                "or give the folder that holds the annotations alone"
            )
        found[bag] = path
    if not found:
        raise InputError(
            f"no file in {folder} is named after a bag: expected {min(bags, default='<bag>')}.xml, "
            ".json, .npy, .png or .tif, and so on"
        )
    return found


def recorded_files(labels: Path, bags: Collection[str]) -> dict[str, Path] | None:
    """The annotations that a study's record names beside its labels; None: it names none.

    Raises:
        InputError: the record is damaged, or a file is not where it was.
    """
    path = labels.parent / RECORD
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8")).get("annotations") or {}
        found = {b: Path(p) for b, p in held.items() if b in set(bags)}
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): run probsa dataset again") from error
    gone = [p for p in found.values() if not p.is_file()]
    if gone:
        raise InputError(f"{gone[0]}, which {path} names, is gone: run probsa dataset again")
    return found or None


def out_of_lesions(bags: Collection[str]) -> dict[str, str]:
    """CAMELYON16's slides that take no part in its lesion task, and why.

    Only where every name is one of the release's: elsewhere test_114 is a slide like any other.
    """
    if not all(official(bag) for bag in bags):
        return {}
    return {b: NO_LESION_TASK[n] for b in bags if (n := official(b)) in NO_LESION_TASK}


def tumour_mask(
    path: Path, *, cover: tuple[float, float], downsample: int
) -> UInt8[np.ndarray, "rows columns"]:
    """Tumour as 1 on a canvas of so many level-0 pixels a pixel.

    Of polygons a pixel is tumour where its centre lies in one, and in no exclusion.

    Args:
        path: of `annotation_files`.
        cover: level-0 (x, y) that the canvas reaches at least: the end of the patches.
        downsample: level-0 pixels along the side of a pixel of the canvas.

    Raises:
        InputError: the file is damaged, in colour, or of another size or level.
        SlideError: an image that cannot be read.
    """
    if path.suffix.lower() not in POLYGONS:
        mask = _stored(path, downsample=downsample)
        rows, columns = mask.shape
        wide, high = (max(int(np.ceil(c / downsample)), 1) for c in cover)
        if columns >= TOO_LARGE * wide and rows >= TOO_LARGE * high:
            raise InputError(
                f"{path} is {columns} × {rows} pixels, but the slide's patches end at {wide} × "
                f"{high} pixels of {downsample} level-0 pixels: give the mask of level 5"
            )
        return (mask != 0).astype(np.uint8)
    area = read_area(path)
    ends = [cover, *(p.box[2:] for p in area.inside)]
    xs, ys = (
        (np.arange(np.ceil(max(e[k] for e in ends) / downsample) + 1) + 0.5) * downsample
        for k in (0, 1)
    )
    drawn = raster(area.inside, xs, ys) & ~raster(area.outside, xs, ys)
    return np.ascontiguousarray(drawn.T).astype(np.uint8)


def kinds_of(files: Mapping[str, Path]) -> dict[str, int]:
    """How many of the files hold polygons, and how many masks."""
    drawn = sum(p.suffix.lower() in POLYGONS for p in files.values())
    found = {"polygons": drawn, "masks": len(files) - drawn}
    return {k: n for k, n in found.items() if n}


def _plain(name: str) -> str:
    """A name as the release corrects it, or as it is."""
    found = official(name)
    return CORRECTED if found == MISLABELLED else found or name


def _stored(path: Path, *, downsample: int) -> Shaped[np.ndarray, "rows columns"]:
    if path.suffix.lower() == ".npy":
        try:
            mask = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path} cannot be read as .npy: {error}. Copy it again") from error
        if mask.ndim != 2 or mask.dtype.kind not in "biuf":
            raise InputError(
                f"{path} holds {mask.dtype} of shape {mask.shape}, expected numbers of shape "
                "(rows, columns)"
            )
        return mask
    with open_slide(path) as image:
        level = 0
        if len(image.levels) > 1:
            level = min(
                range(len(image.levels)),
                key=lambda k: abs(image.levels[k].downsample - downsample),
            )
        own = image.levels[level]
        if len(image.levels) > 1 and abs(own.downsample / downsample - 1) > 0.05:
            raise InputError(
                f"{path} has levels of 1/{', 1/'.join(f'{v.downsample:g}' for v in image.levels)}, "
                f"and none of 1/{downsample}: give the mask of that level alone"
            )
        pixels = image.read(x=0, y=0, level=level, width=own.width, height=own.height)
    if (pixels != pixels[..., :1]).any():
        raise InputError(
            f"{path} is a picture in colour, expected a mask: 0 where there is no tumour. Give "
            "the folder of annotations alone, without slides"
        )
    return pixels[..., 0]

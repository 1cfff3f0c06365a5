"""Tumour annotations of slides: files of polygons, or masks at a downsample of 32.

Files are named after their bags; for CAMELYON16, all spellings of the release are accepted.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8

from ...core import as_record, load_array, read_json
from ...errors import InputError
from ...slides import open_slide
from .annotations import read_area
from .camelyon16 import CORRECTED, DUPLICATE, MISLABELLED, NOT_EXHAUSTIVE, official
from .study import STUDY_RECORD

AGAIN = "run probsa dataset again"
POLYGONS, MASKS = (".xml", ".json"), (".npy", ".png", ".tif", ".tiff")
TOO_LARGE = 6
"""A mask exceeding the area of the patches by this factor in both directions is rejected, since it
must be of another level."""
NO_LESION_TASK = {
    NOT_EXHAUSTIVE: "CAMELYON16's test_114 is not annotated exhaustively",
    DUPLICATE: "CAMELYON16's test_049 is a duplicate, removed by the organisers",
}


def annotation_files(folder: Path | str, bags: Collection[str]) -> dict[str, Path]:
    """Find each bag's annotation file (`<bag>_mask.tif`, too) in a folder and its subfolders.

    Raises:
        InputError: the folder is missing, a bag has two files, or no bag has a file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}: --lesions expects annotations (<bag>.xml of ASAP, or "
            "<bag>.json) or masks (<bag>.npy, .png or .tif)"
        )
    bag_by_name = {_official_name(bag): bag for bag in bags} | {bag: bag for bag in bags}
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (*POLYGONS, *MASKS) or path.name.startswith("."):
            continue
        stem = path.stem.removesuffix("_mask") if path.stem not in bag_by_name else path.stem
        bag = bag_by_name.get(stem) or bag_by_name.get(_official_name(stem))
        if bag is None:
            continue
        if bag in files:
            raise InputError(
                f"{files[bag]} and {path} both annotate the tumour of {bag!r}: leave one out, or "
                "give a folder that holds only annotations"
            )
        files[bag] = path
    if not files:
        raise InputError(
            f"no file in {folder} is named after a bag: expected, for example, "
            f"{min(bags, default='<bag>')}.xml, .json, .npy, .png or .tif"
        )
    return files


def recorded_files(labels: Path, bags: Collection[str]) -> dict[str, Path] | None:
    """Return the annotation files listed in the record beside a study's labels; None if none are.

    Raises:
        InputError: the record is damaged, or a file is missing.
    """
    path = labels.parent / STUDY_RECORD
    if not path.is_file():
        return None
    record = read_json(path, advice=AGAIN)
    given = record.get("annotations") if isinstance(record, dict) else record
    given = as_record(dict[str, str], given or {}, where=str(path), advice=AGAIN)
    files = {bag: Path(given[bag]) for bag in bags if bag in given}
    for file in files.values():
        if not file.is_file():
            raise InputError(f"{file}, which {path} lists, is missing: {AGAIN}")
    return files or None


def excluded_from_lesion_task(bags: Collection[str]) -> dict[str, str]:
    """Return the slides that are excluded from CAMELYON16's lesion task, with the reasons.

    Empty unless all names are CAMELYON16's, as `test_114` may exist in other cohorts.
    """
    if not all(official(b) for b in bags):
        return {}
    return {b: NO_LESION_TASK[slide] for b in bags if (slide := official(b)) in NO_LESION_TASK}


def tumour_mask(
    path: Path, *, cover: tuple[float, float], downsample: int
) -> UInt8[np.ndarray, "rows columns"]:
    """Return a mask that is 1 for tumour, at a given downsample.

    For polygons, a pixel is tumour if its centre lies in one of them and in no exclusion.

    Args:
        path: A file found by `annotation_files`.
        cover: Level-0 (x, y) that the mask must reach: the end of the patches.
        downsample: Side of a mask pixel in level-0 pixels.

    Raises:
        InputError: the file is damaged, in colour, or of another size or level.
        SlideError: the image cannot be read.
    """
    if path.suffix.lower() not in POLYGONS:
        mask = _read_mask(path, downsample=downsample)
        rows, columns = mask.shape
        wide, high = (max(int(np.ceil(extent / downsample)), 1) for extent in cover)
        if columns >= TOO_LARGE * wide and rows >= TOO_LARGE * high:
            raise InputError(
                f"{path} is {columns} × {rows} pixels, but the slide's patches end at {wide} × "
                f"{high} pixels of {downsample} level-0 pixels: give the mask of level 5"
            )
        return (mask != 0).astype(np.uint8)
    area = read_area(path)
    ends = np.array([cover, *(polygon.box[2:] for polygon in area.inside)]).max(0)
    xs, ys = ((np.arange(np.ceil(end / downsample) + 1) + 0.5) * downsample for end in ends)
    return np.ascontiguousarray(area.raster(xs, ys).T).astype(np.uint8)


def count_annotation_kinds(files: Mapping[str, Path]) -> dict[str, int]:
    """Count the files with polygons and those with masks."""
    polygons = sum(path.suffix.lower() in POLYGONS for path in files.values())
    counts = {"polygons": polygons, "masks": len(files) - polygons}
    return {kind: count for kind, count in counts.items() if count}


def _official_name(name: str) -> str:
    """Return the official, corrected name of a CAMELYON16 slide; other names unchanged."""
    slide = official(name)
    return CORRECTED if slide == MISLABELLED else slide or name


def _read_mask(path: Path, *, downsample: int) -> Shaped[np.ndarray, "rows columns"]:
    if path.suffix.lower() == ".npy":
        mask = load_array(path)
        if mask.ndim != 2 or mask.dtype.kind not in "biuf":
            raise InputError(
                f"{path} holds {mask.dtype} of shape {mask.shape}, expected numbers of shape "
                "(rows, columns)"
            )
        return mask
    with open_slide(path) as image:
        factors = [level.downsample for level in image.levels]
        level = int(np.abs(np.array(factors) - downsample).argmin())
        if len(factors) > 1 and abs(factors[level] / downsample - 1) > 0.05:
            raise InputError(
                f"{path} has levels of 1/{', 1/'.join(f'{v:g}' for v in factors)}, "
                f"but none of 1/{downsample}: give a mask of that level only"
            )
        chosen = image.levels[level]
        pixels = image.read(x=0, y=0, level=level, width=chosen.width, height=chosen.height)
    if (pixels != pixels[..., :1]).any():
        raise InputError(
            f"{path} is a colour image, expected a mask with 0 outside tumour. Give a folder that "
            "holds only annotations, without slides"
        )
    return pixels[..., 0]

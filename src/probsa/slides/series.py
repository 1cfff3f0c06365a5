"""Order the slices of a series by position along their normal, never by file name.

This is pure geometry on headers. Anomalies are returned as notes: short sentences for the user.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from jaxtyping import Float

from ..errors import SlideError
from .dicom_headers import Plane

SAME_PLACE = 0.01
"""Millimetres: slices closer than this are at the same position."""
_LISTED = 6
_AIR = -500.0
_AXES = ("sagittal", "coronal", "axial")


@dataclass(frozen=True, kw_only=True, slots=True)
class Display:
    """The transformation of a stored image to the standard display.

    In axial images, rows run from anterior to posterior and columns from the patient's right to the
    left; slices ascend from inferior to superior. This holds for DICOM and NIfTI alike.
    """

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    normal: tuple[float, ...] = (0.0, 0.0, 1.0)
    """Unit vector along which positions ascend (left, posterior, superior)."""
    plane: str = "axial"

    @property
    def turns(self) -> bool:
        """True if the transformation is not the identity."""
        return self.transpose or self.flip_rows or self.flip_columns

    def apply(self, image: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "rows columns"]:
        """Return the stored image as it is displayed."""
        image = image.T if self.transpose else image
        image = image[::-1] if self.flip_rows else image
        return image[:, ::-1] if self.flip_columns else image


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One position and the slices at it; more than one slice means duplicates."""

    position: float
    planes: tuple[Plane, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """The slices of a series in ascending order of position."""

    places: tuple[Place, ...]
    display: Display
    notes: tuple[str, ...]


def stack(planes: Sequence[Plane]) -> Stack:
    """Order the slices of one series.

    Raises:
        SlideError: the slices have several sizes, their positions are unknown, or most slices do
            not share an orientation.
    """
    kept, notes = _one_orientation(planes)
    _one_size(kept)
    display = display_of(kept[0].orientation)
    positions, position_notes = _positions(kept, display)
    order = sorted(zip(positions, kept, strict=True), key=lambda pair: pair[0])
    places: list[list[tuple[float, Plane]]] = []
    for position, plane in order:
        if places and position - places[-1][0][0] < SAME_PLACE:
            places[-1].append((position, plane))
        else:
            places.append([(position, plane)])
    if display.plane != "axial":
        position_notes.append(f"The slices are {display.plane}, not axial.")
    elif display.turns:
        position_notes.append(
            "The images were turned: anterior is up, the patient's right is on the left."
        )
    return Stack(
        places=tuple(
            Place(
                position=group[0][0],
                planes=tuple(sorted((p for _, p in group), key=_first_by_instance)),
            )
            for group in places
        ),
        display=display,
        notes=(*notes, *position_notes),
    )


def display_of(orientation: tuple[float, ...] | None) -> Display:
    """Return the transformation for an orientation; None counts as axial and is not changed."""
    if orientation is None:
        return Display()
    along_row, along_column = np.array(orientation[:3]), np.array(orientation[3:])
    normal = np.cross(along_row, along_column)
    length = np.linalg.norm(normal)
    if length < 0.5:  # orthogonal unit vectors give 1
        raise SlideError(
            f"ImageOrientationPatient {list(orientation)} is not a pair of orthogonal axes"
        )
    normal = normal / length
    across = int(np.argmax(np.abs(normal)))
    # columns run to the patient's left (in sagittal slices, to the back); rows run to the back in
    # axial slices and to the feet in others
    columns_axis = 1 if across == 0 else 0
    rows_axis, rows_sign = (1, 1) if across == 2 else (2, -1)
    transpose = abs(along_row[columns_axis]) < abs(along_column[columns_axis])
    columns, rows = (along_column, along_row) if transpose else (along_row, along_column)
    return Display(
        transpose=bool(transpose),
        flip_rows=bool(rows[rows_axis] * rows_sign < 0),
        flip_columns=bool(columns[columns_axis] < 0),
        normal=tuple((normal * np.sign(normal[across])).tolist()),
        plane=_AXES[across],
    )


def spacing_notes(positions: Float[np.ndarray, " n"], places: Sequence[Plane]) -> list[str]:
    """Return notes on uneven spacing and on slices that seem to be missing.

    Args:
        positions: positions in mm, ascending.
        places: the slice that was kept at each position.
    """
    if len(positions) < 3:
        return []
    gaps = np.diff(positions)
    notes = []
    usual = float(np.median(gaps))
    if np.abs(gaps - usual).max() > max(0.05 * usual, SAME_PLACE):
        runs = [(text, len(list(g))) for text, g in groupby(f"{gap:.2f}" for gap in gaps)]
        listing = (
            ", ".join(f"{count} x {text}" for text, count in runs) + " mm"
            if len(runs) <= _LISTED
            else f"{gaps.min():.2f} to {gaps.max():.2f} mm, median {usual:.2f} mm"
        )
        notes.append(f"Slices are unevenly spaced along their normal: {listing}.")
    return notes + _missing(positions, places)


def tilt_notes(planes: Sequence[Plane], display: Display) -> list[str]:
    """Return a note on the gantry tilt that the file states and that the positions show.

    Args:
        planes: the slices in order.
        display: the transformation to the standard display.
    """
    stated = sorted({p.tilt for p in planes if p.tilt})
    first, last = planes[0].position, planes[-1].position
    shown_tilt = None
    if first and last and planes[0].orientation:
        direction = np.subtract(last, first)
        length = np.linalg.norm(direction)
        if length > SAME_PLACE:
            along = abs(np.dot(direction / length, display.normal))
            shown_tilt = float(np.degrees(np.arccos(min(1.0, along))))
    if not stated and (shown_tilt is None or shown_tilt < 0.5):
        return []
    said = " and ".join(f"{tilt:+.1f}" for tilt in stated) or "nothing"
    shown = "" if shown_tilt is None else f"; the positions show {shown_tilt:.1f} degrees"
    return [f"Gantry tilt: the file states {said}{' degrees' if stated else ''}{shown}."]


def air_notes(smallest: float) -> list[str]:
    """Return a note if no value is that of air: the data are raw, a mask, or wrongly rescaled."""
    if smallest < _AIR:
        return []
    return [f"The smallest value is {smallest:g}, but air is near -1000: these may not be HU."]


def listed(items: Sequence[str]) -> str:
    """List a few items and the number of the others."""
    position_notes = len(items) - _LISTED
    return "; ".join(items[:_LISTED]) + (
        f"; and {position_notes} more" if position_notes > 0 else ""
    )


def _first_by_instance(plane: Plane) -> tuple[float, str, int]:
    number = float("inf") if plane.instance is None else float(plane.instance)
    return (number, str(plane.path), plane.frame or 0)


def _one_orientation(planes: Sequence[Plane]) -> tuple[list[Plane], list[str]]:
    """Return the slices of the most common orientation; others belong to a scout image."""
    groups: list[list[Plane]] = []
    for plane in planes:
        for group in groups:
            if _alike(group[0].orientation, plane.orientation):
                group.append(plane)
                break
        else:
            groups.append([plane])
    groups.sort(key=len, reverse=True)
    if len(groups) == 1:
        return groups[0], []
    others = [plane for group in groups[1:] for plane in group]
    if len(groups[0]) <= len(others):
        listing = ", ".join(f"{len(g)} {display_of(g[0].orientation).plane}" for g in groups)
        raise SlideError(
            f"the series holds slices of {len(groups)} orientations ({listing}) and no stack that "
            "contains most of them: put each stack into its own folder"
        )
    names = listed([plane.label for plane in others])
    what = "1 image lies" if len(others) == 1 else f"{len(others)} images lie"
    return groups[0], [f"{what} in a different plane from the stack (a scout?); left out: {names}."]


def _alike(one: tuple[float, ...] | None, two: tuple[float, ...] | None) -> bool:
    if one is None or two is None:
        return one is two
    return bool(np.allclose(one, two, atol=0.02))


def _one_size(planes: Sequence[Plane]) -> None:
    sizes = Counter((p.rows, p.columns) for p in planes)
    if len(sizes) > 1:
        listing = ", ".join(f"{count} of {h} x {w}" for (h, w), count in sizes.most_common())
        odd_slice = next(p for p in planes if (p.rows, p.columns) == sizes.most_common()[-1][0])
        raise SlideError(
            f"the series holds slices of several sizes ({listing} pixels; {odd_slice.label} is one "
            "of the few): a volume has one size, so put each size into its own folder"
        )


def _positions(planes: Sequence[Plane], display: Display) -> tuple[list[float], list[str]]:
    """Return the position of each slice in mm, from the best source that all slices have.

    A source that gives all slices the same position is skipped.
    """
    oriented = planes[0].orientation is not None
    projected = [
        None if p.position is None else float(np.dot(p.position, display.normal)) for p in planes
    ]
    if gap_notes := _spread(projected):
        listing = "ImageOrientationPatient is missing: the slices are taken as axial."
        return gap_notes, [] if oriented else [listing]
    if gap_notes := _spread([p.location for p in planes]):
        return gap_notes, ["ImagePositionPatient is missing: slices are ordered by SliceLocation."]
    numbers = [p.instance for p in planes]
    known = [n for n in numbers if n is not None]
    if len(known) == len(planes) == len(set(known)):
        step = next((s for s in (planes[0].between, planes[0].thickness) if s and s > 0), 1.0)
        return [step * (n - min(known)) for n in known], [
            "Positions are missing: slices are ordered by InstanceNumber, "
            f"{step:g} mm apart, and may run either way."
        ]
    if len(planes) == 1:
        return [0.0], ["The position is missing: it is taken as 0 mm."]
    raise SlideError(
        "the positions of the slices are unknown: ImagePositionPatient and SliceLocation are "
        "missing or constant, and InstanceNumber is missing or repeats"
    )


def _spread(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    # two slices at one position may be duplicates; more without any other position mean nothing
    apart = max(known) - min(known) >= SAME_PLACE
    return known if apart or len(known) <= 2 else None


def _missing(positions: Float[np.ndarray, " n"], planes: Sequence[Plane]) -> list[str]:
    """Return a note on gaps where InstanceNumber jumps or the spacing is wide.

    If most gaps are equal, a wide gap exceeds 1.5 times the median. In a series whose spacing
    changes on purpose (thin at the base, thick above), it exceeds 1.5 times both its neighbours.
    """
    gaps = np.diff(positions)
    median = np.median(gaps)
    even = np.mean(np.abs(gaps - median) <= 0.1 * median) >= 2 / 3
    beside = np.maximum(np.append(0, gaps[:-1]), np.append(gaps[1:], 0))
    usual = np.full_like(gaps, median) if even else beside
    jumps = _jumps([p.instance for p in planes])
    gap_notes = []
    for i, gap in enumerate(gaps):
        where = f"between {positions[i]:.2f} and {positions[i + 1]:.2f} mm (a gap of {gap:.2f} mm)"
        if jumps[i]:
            several = f"{min(jumps[i])} to {max(jumps[i])}" if len(jumps[i]) > 1 else jumps[i][0]
            gap_notes.append(f"InstanceNumber {several} {where}")
        elif gap > 1.5 * usual[i]:
            count = max(1, round(gap / usual[i]) - 1)
            gap_notes.append(f"about {count} {where}, where {usual[i]:.2f} mm is usual")
    return [f"Slices seem to be missing: {listed(gap_notes)}."] if gap_notes else []


def _jumps(numbers: Sequence[int | None]) -> list[list[int]]:
    """Return, for each pair of neighbours, the missing InstanceNumbers between them.

    Only numbers that run evenly along the axis are informative.
    """
    no_jumps: list[list[int]] = [[] for _ in numbers[1:]]
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers):
        return no_jumps
    steps = [b - a for a, b in pairwise(known)]
    step, count = Counter(steps).most_common(1)[0]
    one_way = step != 0 and all(s * step > 0 for s in steps)
    if not one_way or count < len(steps) * 2 / 3:
        return no_jumps
    return [
        sorted(range(a + step, b, step)) if abs(b - a) > abs(step) else []
        for a, b in pairwise(known)
    ]

"""Order the slices of a series by position along their normal, never by file name.

This is pure geometry on headers. Anomalies are returned as notes: short sentences for the user.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..errors import SlideError
from .dicom_headers import Plane

SAME_PLACE = 0.01
"""Millimetres: slices closer than this are at the same position."""
_LISTED = 6
AnatomicalPlane = Literal["sagittal", "coronal", "axial"]
_AXES: tuple[AnatomicalPlane, ...] = ("sagittal", "coronal", "axial")


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
    plane: AnatomicalPlane = "axial"

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
    sizes = Counter((p.rows, p.columns) for p in kept).most_common()
    if len(sizes) > 1:
        listing = ", ".join(f"{count} of {h} x {w}" for (h, w), count in sizes)
        odd_slice = next(p for p in kept if (p.rows, p.columns) == sizes[-1][0])
        raise SlideError(
            f"the series holds slices of several sizes ({listing} pixels; {odd_slice.label} is one "
            "of the few): a volume has one size, so put each size into its own folder"
        )
    display = display_of(kept[0].orientation)
    positions, position_notes = _positions(kept, display)
    notes += position_notes
    groups: list[tuple[float, list[Plane]]] = []
    for position, plane in sorted(zip(positions, kept, strict=True), key=lambda pair: pair[0]):
        if groups and position - groups[-1][0] < SAME_PLACE:
            groups[-1][1].append(plane)
        else:
            groups.append((position, [plane]))
    if display.plane != "axial":
        notes.append(f"The slices are {display.plane}, not axial.")
    elif display.transpose or display.flip_rows or display.flip_columns:
        notes.append("The images were turned: anterior is up, the patient's right is on the left.")

    def by_instance(plane: Plane) -> tuple[float, str, int]:
        number = float("inf") if plane.instance is None else float(plane.instance)
        return number, str(plane.path), plane.frame or 0

    return Stack(
        places=tuple(
            Place(position=position, planes=tuple(sorted(group, key=by_instance)))
            for position, group in groups
        ),
        display=display,
        notes=tuple(notes),
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


def geometry_notes(
    positions: Float[np.ndarray, " n"], planes: Sequence[Plane], display: Display
) -> list[str]:
    """Return notes on gantry tilt, uneven spacing, and slices that seem to be missing.

    Args:
        positions: positions in mm, ascending.
        planes: the slice that was kept at each position.
        display: the transformation to the standard display.
    """
    notes = []
    stated, shown, turned = sorted({p.tilt for p in planes if p.tilt}), "", 0.0
    first, last = planes[0].position, planes[-1].position
    if first and last and planes[0].orientation:
        direction = np.subtract(last, first)
        length = np.linalg.norm(direction)
        if length > SAME_PLACE:
            along = abs(np.dot(direction / length, display.normal))
            turned = float(np.degrees(np.arccos(min(1.0, along))))
            shown = f"; the positions show {turned:.1f} degrees"
    if stated or turned >= 0.5:
        said = " and ".join(f"{tilt:+.1f}" for tilt in stated)
        notes.append(
            f"Gantry tilt: the file states {f'{said} degrees' if said else 'nothing'}{shown}."
        )
    if len(positions) < 3:
        return notes
    gaps = np.diff(positions)
    usual = float(np.median(gaps))
    if np.abs(gaps - usual).max() > max(0.05 * usual, SAME_PLACE):
        runs = [f"{len(list(g))} x {text}" for text, g in groupby(f"{gap:.2f}" for gap in gaps)]
        listing = f"{gaps.min():.2f} to {gaps.max():.2f} mm, median {usual:.2f} mm"
        if len(runs) <= _LISTED:
            listing = f"{', '.join(runs)} mm"
        notes.append(f"Slices are unevenly spaced along their normal: {listing}.")
    return notes + _missing(positions, gaps, planes)


def air_notes(smallest: float) -> list[str]:
    """Return a note if no value is that of air: the data are raw, a mask, or wrongly rescaled."""
    if smallest < -500:
        return []
    return [f"The smallest value is {smallest:g}, but air is near -1000: these may not be HU."]


def listed(items: Sequence[str]) -> str:
    """List a few items and the number of the others."""
    more = f"; and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return "; ".join(items[:_LISTED]) + more


def _one_orientation(planes: Sequence[Plane]) -> tuple[list[Plane], list[str]]:
    """Return the slices of the most common orientation; others belong to a scout image."""
    groups: list[list[Plane]] = []
    for plane in planes:
        known = (g for g in groups if _alike(g[0].orientation, plane.orientation))
        group = next(known, None)
        if group is None:
            groups.append([plane])
        else:
            group.append(plane)
    groups.sort(key=len, reverse=True)
    others = [plane for group in groups[1:] for plane in group]
    if not others:
        return groups[0], []
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


def _positions(planes: Sequence[Plane], display: Display) -> tuple[list[float], list[str]]:
    """Return the position of each slice in mm, from the best source that all slices have.

    A source that gives all slices the same position is skipped.
    """
    projected = [
        None if p.position is None else float(np.dot(p.position, display.normal)) for p in planes
    ]
    axial = "ImageOrientationPatient is missing: the slices are taken as axial."
    by_location = "ImagePositionPatient is missing: slices are ordered by SliceLocation."
    for values, notes in (
        (projected, [] if planes[0].orientation else [axial]),
        ([p.location for p in planes], [by_location]),
    ):
        known = [v for v in values if v is not None]
        # two slices at one position may be duplicates; more without any other position mean nothing
        if len(known) == len(planes) and (len(known) <= 2 or np.ptp(known) >= SAME_PLACE):
            return known, notes
    numbers = [p.instance for p in planes if p.instance is not None]
    if len(numbers) == len(planes) == len(set(numbers)):
        step = next((s for s in (planes[0].between, planes[0].thickness) if s and s > 0), 1.0)
        return [step * (n - min(numbers)) for n in numbers], [
            "Positions are missing: slices are ordered by InstanceNumber, "
            f"{step:g} mm apart, and may run either way."
        ]
    if len(planes) == 1:
        return [0.0], ["The position is missing: it is taken as 0 mm."]
    raise SlideError(
        "the positions of the slices are unknown: ImagePositionPatient and SliceLocation are "
        "missing or constant, and InstanceNumber is missing or repeats"
    )


def _missing(
    positions: Float[np.ndarray, " n"], gaps: Float[np.ndarray, " m"], planes: Sequence[Plane]
) -> list[str]:
    """Return a note on gaps where InstanceNumber jumps or the spacing is wide.

    If most gaps are equal, a wide gap exceeds 1.5 times the median. In a series whose spacing
    changes on purpose (thin at the base, thick above), it exceeds 1.5 times both its neighbours.
    """
    median = np.median(gaps)
    even = np.mean(np.abs(gaps - median) <= 0.1 * median) >= 2 / 3
    beside = np.maximum(np.append(0, gaps[:-1]), np.append(gaps[1:], 0))
    usual = np.full_like(gaps, median) if even else beside
    # numbers are informative if they run evenly along the axis
    numbers = [p.instance for p in planes if p.instance is not None]
    steps = np.diff(numbers) if len(numbers) == len(planes) else np.zeros(len(gaps), int)
    step, count = Counter(steps.tolist()).most_common(1)[0]
    numbered = (steps * step > 0).all() and count >= len(steps) * 2 / 3
    found = []
    for i, gap in enumerate(gaps):
        where = f"between {positions[i]:.2f} and {positions[i + 1]:.2f} mm (a gap of {gap:.2f} mm)"
        if numbered and abs(steps[i]) > abs(step):
            gone = sorted(range(numbers[i] + step, numbers[i + 1], step))
            several = f"{gone[0]} to {gone[-1]}" if len(gone) > 1 else gone[0]
            found.append(f"InstanceNumber {several} {where}")
        elif gap > 1.5 * usual[i]:
            many = max(1, round(gap / usual[i]) - 1)
            found.append(f"about {many} {where}, where {usual[i]:.2f} mm is usual")
    return [f"Slices seem to be missing: {listed(found)}."] if found else []

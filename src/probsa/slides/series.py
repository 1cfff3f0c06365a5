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
        if self.transpose:
            image = image.T
        if self.flip_rows:
            image = image[::-1]
        if self.flip_columns:
            image = image[:, ::-1]
        return image


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
    slices, notes = _one_orientation(planes)
    sizes = Counter((p.rows, p.columns) for p in slices).most_common()
    if len(sizes) > 1:
        listing = ", ".join(f"{count} of {h} x {w}" for (h, w), count in sizes)
        rarest_size, _ = sizes[-1]
        odd_slice = next(p for p in slices if (p.rows, p.columns) == rarest_size)
        raise SlideError(
            f"the series holds slices of several sizes ({listing} pixels; {odd_slice.label} is one "
            "of the few): a volume has one size, so put each size into its own folder"
        )
    display = display_of(slices[0].orientation)
    positions, position_notes = _positions(slices, display)
    notes += position_notes
    groups: list[tuple[float, list[Plane]]] = []
    for position, plane in sorted(zip(positions, slices, strict=True), key=lambda pair: pair[0]):
        if groups and position - groups[-1][0] < SAME_PLACE:
            _, group = groups[-1]
            group.append(plane)
        else:
            groups.append((position, [plane]))
    if display.plane != "axial":
        notes.append(f"The slices are {display.plane}, not axial.")
    elif display.transpose or display.flip_rows or display.flip_columns:
        notes.append("The images were turned: anterior is up, the patient's right is on the left.")

    def by_instance(plane: Plane) -> tuple[float, str, int]:
        number = float("inf") if plane.instance is None else float(plane.instance)
        return number, str(plane.path), plane.frame or 0

    places = []
    for position, group in groups:
        places.append(Place(position=position, planes=tuple(sorted(group, key=by_instance))))
    return Stack(places=tuple(places), display=display, notes=tuple(notes))


def display_of(orientation: tuple[float, ...] | None) -> Display:
    """Return the transformation for an orientation; None counts as axial and is not changed."""
    if orientation is None:
        return Display()
    along_row = np.array(orientation[:3])
    along_column = np.array(orientation[3:])
    normal = np.cross(along_row, along_column)
    length = np.linalg.norm(normal)
    if length < 0.5:  # orthogonal unit vectors give 1
        raise SlideError(
            f"ImageOrientationPatient {list(orientation)} is not a pair of orthogonal axes"
        )
    normal = normal / length
    across = int(np.argmax(np.abs(normal)))
    plane = _AXES[across]
    # columns run to the patient's left (in sagittal slices, to the back); rows run to the back in
    # axial slices and to the feet in others
    columns_axis = 1 if plane == "sagittal" else 0
    rows_axis, rows_sign = (1, 1) if plane == "axial" else (2, -1)
    transpose = abs(along_row[columns_axis]) < abs(along_column[columns_axis])
    columns, rows = (along_column, along_row) if transpose else (along_row, along_column)
    return Display(
        transpose=bool(transpose),
        flip_rows=bool(rows[rows_axis] * rows_sign < 0),
        flip_columns=bool(columns[columns_axis] < 0),
        normal=tuple((normal * np.sign(normal[across])).tolist()),
        plane=plane,
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
    notes = _tilt_notes(planes, display)
    if len(positions) < 3:
        return notes
    gaps = np.diff(positions)
    usual = float(np.median(gaps))
    if np.abs(gaps - usual).max() > max(0.05 * usual, SAME_PLACE):
        runs = []
        for text, run in groupby(f"{gap:.2f}" for gap in gaps):
            runs.append(f"{len(list(run))} x {text}")
        listing = f"{gaps.min():.2f} to {gaps.max():.2f} mm, median {usual:.2f} mm"
        if len(runs) <= _LISTED:
            listing = f"{', '.join(runs)} mm"
        notes.append(f"Slices are unevenly spaced along their normal: {listing}.")
    return notes + _missing_notes(positions, gaps, planes)


def _tilt_notes(planes: Sequence[Plane], display: Display) -> list[str]:
    """Return a note on the tilt of the gantry that the file states or the positions show."""
    tilts = sorted({p.tilt for p in planes if p.tilt})
    angle = 0.0
    shown = ""
    first = planes[0].position
    last = planes[-1].position
    if first and last and planes[0].orientation:
        direction = np.subtract(last, first)
        length = np.linalg.norm(direction)
        if length > SAME_PLACE:
            # with a tilt, slices are not stacked along their normal
            cosine = abs(np.dot(direction / length, display.normal))
            angle = float(np.degrees(np.arccos(min(1.0, cosine))))
            shown = f"; the positions show {angle:.1f} degrees"
    if not tilts and angle < 0.5:
        return []
    stated = "nothing"
    if tilts:
        stated = " and ".join(f"{tilt:+.1f}" for tilt in tilts) + " degrees"
    return [f"Gantry tilt: the file states {stated}{shown}."]


def air_notes(smallest: float) -> list[str]:
    """Return a note if no value is that of air: the data are raw, a mask, or wrongly rescaled."""
    if smallest < -500:
        return []
    return [f"The smallest value is {smallest:g}, but air is near -1000: these may not be HU."]


def list_some(items: Sequence[str]) -> str:
    """List a few items and the number of the others."""
    listing = "; ".join(items[:_LISTED])
    if len(items) > _LISTED:
        listing += f"; and {len(items) - _LISTED} more"
    return listing


def _one_orientation(planes: Sequence[Plane]) -> tuple[list[Plane], list[str]]:
    """Return the slices of the most common orientation; others belong to a scout image."""
    groups: list[list[Plane]] = []
    for plane in planes:
        for group in groups:
            if _is_same_orientation(group[0].orientation, plane.orientation):
                group.append(plane)
                break
        else:
            groups.append([plane])
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
    names = list_some([plane.label for plane in others])
    images = "1 image lies" if len(others) == 1 else f"{len(others)} images lie"
    note = f"{images} in a different plane from the stack (a scout?); left out: {names}."
    return groups[0], [note]


def _is_same_orientation(one: tuple[float, ...] | None, other: tuple[float, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.allclose(one, other, atol=0.02))


def _positions(planes: Sequence[Plane], display: Display) -> tuple[list[float], list[str]]:
    """Return the position of each slice in mm, from the best source that all slices have.

    A source that gives all slices the same position is skipped.
    """
    projected = []
    for plane in planes:
        if plane.position is not None:
            projected.append(float(np.dot(plane.position, display.normal)))
    if _tell_apart(projected, planes):
        if planes[0].orientation:
            return projected, []
        return projected, ["ImageOrientationPatient is missing: the slices are taken as axial."]
    locations = [plane.location for plane in planes if plane.location is not None]
    if _tell_apart(locations, planes):
        return locations, ["ImagePositionPatient is missing: slices are ordered by SliceLocation."]
    numbers = [plane.instance for plane in planes if plane.instance is not None]
    if len(numbers) == len(planes) == len(set(numbers)):
        step = 1.0
        for distance in (planes[0].thickness, planes[0].between):  # the second one is preferred
            if distance and distance > 0:
                step = distance
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


def _tell_apart(positions: Sequence[float], planes: Sequence[Plane]) -> bool:
    """Return whether all slices have a position, by which they can be ordered.

    Two slices at one position may be duplicates; more without any other position mean nothing.
    """
    if len(positions) != len(planes):
        return False
    return len(positions) <= 2 or bool(np.ptp(positions) >= SAME_PLACE)


def _missing_notes(
    positions: Float[np.ndarray, " n"], gaps: Float[np.ndarray, " m"], planes: Sequence[Plane]
) -> list[str]:
    """Return a note on gaps where InstanceNumber jumps or the spacing is wide.

    If most gaps are equal, a wide gap exceeds 1.5 times the median. In a series whose spacing
    changes on purpose (thin at the base, thick above), it exceeds 1.5 times both its neighbours.
    """
    median = np.median(gaps)
    is_even = np.mean(np.abs(gaps - median) <= 0.1 * median) >= 2 / 3
    if is_even:
        usual = np.full_like(gaps, median)
    else:
        before = np.append(0, gaps[:-1])
        after = np.append(gaps[1:], 0)
        usual = np.maximum(before, after)
    # numbers are informative if they run evenly along the axis
    numbers = [p.instance for p in planes if p.instance is not None]
    steps = np.diff(numbers) if len(numbers) == len(planes) else np.zeros(len(gaps), int)
    step, count = Counter(steps.tolist()).most_common(1)[0]
    are_informative = (steps * step > 0).all() and count >= len(steps) * 2 / 3
    places = []
    for i, gap in enumerate(gaps):
        where = f"between {positions[i]:.2f} and {positions[i + 1]:.2f} mm (a gap of {gap:.2f} mm)"
        if are_informative and abs(steps[i]) > abs(step):
            missing = sorted(range(numbers[i] + step, numbers[i + 1], step))
            listing = f"{missing[0]} to {missing[-1]}" if len(missing) > 1 else missing[0]
            places.append(f"InstanceNumber {listing} {where}")
        elif gap > 1.5 * usual[i]:
            count = max(1, round(gap / usual[i]) - 1)
            places.append(f"about {count} {where}, where {usual[i]:.2f} mm is usual")
    if not places:
        return []
    return [f"Slices seem to be missing: {list_some(places)}."]

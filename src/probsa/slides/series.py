"""The slices of one series in order: by position along their normal, never by file name.

Pure geometry on headers. What is odd comes back as notes: short sentences for the user.
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
"""Millimetres: slices nearer than this lie at the same position."""
_LISTED = 6
_AIR = -500.0
_AXES = ("sagittal", "coronal", "axial")


@dataclass(frozen=True, kw_only=True, slots=True)
class Display:
    """How a stored image is turned to the standard display.

    Axial: rows run from anterior to posterior, columns from the patient's right to the left; slices
    ascend from inferior to superior. The same of any series, so that DICOM and NIfTI agree.
    """

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False
    normal: tuple[float, ...] = (0.0, 0.0, 1.0)
    """Unit vector that positions ascend along; left, posterior, superior."""
    plane: str = "axial"

    @property
    def turns(self) -> bool:
        """Whether it changes anything."""
        return self.transpose or self.flip_rows or self.flip_columns

    def apply(self, image: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "rows columns"]:
        """The stored image as it is displayed."""
        image = image.T if self.transpose else image
        image = image[::-1] if self.flip_rows else image
        return image[:, ::-1] if self.flip_columns else image


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One position, and the slices that lie there; more than one are duplicates."""

    position: float
    planes: tuple[Plane, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """The slices of a series in ascending order of position."""

    places: tuple[Place, ...]
    display: Display
    notes: tuple[str, ...]


def stack(planes: Sequence[Plane]) -> Stack:
    """Puts the slices of one series in order.

    Raises:
        SlideError: they are of several sizes, or nothing says where they lie, or no orientation
            holds most of them.
    """
    kept, notes = _one_orientation(planes)
    _one_size(kept)
    display = display_of(kept[0].orientation)
    positions, more = _positions(kept, display)
    order = sorted(zip(positions, kept, strict=True), key=lambda pair: pair[0])
    places: list[list[tuple[float, Plane]]] = []
    for position, plane in order:
        if places and position - places[-1][0][0] < SAME_PLACE:
            places[-1].append((position, plane))
        else:
            places.append([(position, plane)])
    if display.plane != "axial":
        more.append(f"The slices are {display.plane}, not axial.")
    elif display.turns:
        more.append("The images were turned: anterior is up, the patient's right is on the left.")
    return Stack(
        places=tuple(
            Place(
                position=group[0][0],
                planes=tuple(sorted((p for _, p in group), key=_first_by_instance)),
            )
            for group in places
        ),
        display=display,
        notes=(*notes, *more),
    )


def display_of(orientation: tuple[float, ...] | None) -> Display:
    """How images of this orientation are turned; None: taken as axial, and left as they are."""
    if orientation is None:
        return Display()
    along_row, along_column = np.array(orientation[:3]), np.array(orientation[3:])
    normal = np.cross(along_row, along_column)
    length = np.linalg.norm(normal)
    if length < 0.5:  # unit vectors at right angles give 1
        raise SlideError(
            f"ImageOrientationPatient {list(orientation)} is no pair of axes at right angles"
        )
    normal = normal / length
    across = int(np.argmax(np.abs(normal)))
    # columns lead to the patient's left, of sagittal slices to the back; rows lead to the back,
    # of others than axial ones to the feet
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
    """Uneven spacing with its figures, and slices that seem to be missing.

    Args:
        positions: ascending, mm.
        places: the slice that was kept at each.
    """
    if len(positions) < 3:
        return []
    gaps = np.diff(positions)
    notes = []
    usual = float(np.median(gaps))
    if np.abs(gaps - usual).max() > max(0.05 * usual, SAME_PLACE):
        runs = [(text, len(list(g))) for text, g in groupby(f"{gap:.2f}" for gap in gaps)]
        told = (
            ", ".join(f"{count} x {text}" for text, count in runs) + " mm"
            if len(runs) <= _LISTED
            else f"{gaps.min():.2f} to {gaps.max():.2f} mm, median {usual:.2f} mm"
        )
        notes.append(f"Slices are unevenly spaced along their normal: {told}.")
    return notes + _missing(positions, places)


def tilt_notes(planes: Sequence[Plane], display: Display) -> list[str]:
    """Gantry tilt as the file states it, and as the positions show it.

    Args:
        planes: in order.
    """
    stated = sorted({p.tilt for p in planes if p.tilt})
    first, last = planes[0].position, planes[-1].position
    seen = None
    if first and last and planes[0].orientation:
        way = np.subtract(last, first)
        length = np.linalg.norm(way)
        if length > SAME_PLACE:
            along = abs(np.dot(way / length, display.normal))
            seen = float(np.degrees(np.arccos(min(1.0, along))))
    if not stated and (seen is None or seen < 0.5):
        return []
    said = " and ".join(f"{tilt:+.1f}" for tilt in stated) or "nothing"
    shown = "" if seen is None else f"; the positions show {seen:.1f} degrees"
    return [f"Gantry tilt: the file states {said}{' degrees' if stated else ''}{shown}."]


def air_notes(smallest: float) -> list[str]:
    """Every CT has air somewhere; values without are raw, or a mask, or rescaled wrongly."""
    if smallest < _AIR:
        return []
    return [
        f"The smallest value is {smallest:g}, where air is near -1000: maybe no Hounsfield units."
    ]


def listed(items: Sequence[str]) -> str:
    """A few of them by name, and how many more."""
    more = len(items) - _LISTED
    return "; ".join(items[:_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _first_by_instance(plane: Plane) -> tuple[float, str, int]:
    number = float("inf") if plane.instance is None else float(plane.instance)
    return (number, str(plane.path), plane.frame or 0)


def _one_orientation(planes: Sequence[Plane]) -> tuple[list[Plane], list[str]]:
    """The slices of the orientation that most of them have; others are a scout's."""
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
        told = ", ".join(f"{len(g)} {display_of(g[0].orientation).plane}" for g in groups)
        raise SlideError(
            f"the series holds slices of {len(groups)} orientations ({told}) and no stack that "
            "most belong to: put each stack into a folder of its own"
        )
    names = listed([plane.label for plane in others])
    what = "1 image lies" if len(others) == 1 else f"{len(others)} images lie"
    return groups[0], [f"{what} in another plane than the stack (a scout?); left out: {names}."]


def _alike(one: tuple[float, ...] | None, two: tuple[float, ...] | None) -> bool:
    if one is None or two is None:
        return one is two
    return bool(np.allclose(one, two, atol=0.02))


def _one_size(planes: Sequence[Plane]) -> None:
    sizes = Counter((p.rows, p.columns) for p in planes)
    if len(sizes) > 1:
        told = ", ".join(f"{count} of {h} x {w}" for (h, w), count in sizes.most_common())
        odd = next(p for p in planes if (p.rows, p.columns) == sizes.most_common()[-1][0])
        raise SlideError(
            f"the series holds slices of several sizes ({told} pixels; {odd.label} is one of the "
            "few): a volume has one size, so put each size into a folder of its own"
        )


def _positions(planes: Sequence[Plane], display: Display) -> tuple[list[float], list[str]]:
    """Millimetres of each slice, from the best source that all slices have.

    A source that puts several slices at one position says nothing and is passed over.
    """
    oriented = planes[0].orientation is not None
    projected = [
        None if p.position is None else float(np.dot(p.position, display.normal)) for p in planes
    ]
    if found := _spread(projected):
        told = "ImageOrientationPatient is missing: the slices are taken as axial."
        return found, [] if oriented else [told]
    if found := _spread([p.location for p in planes]):
        return found, ["ImagePositionPatient is missing: slices are ordered by SliceLocation."]
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
        "nothing says where the slices lie: ImagePositionPatient and SliceLocation are missing or "
        "all the same, and InstanceNumber is missing or repeats"
    )


def _spread(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    # two slices at one place are a slice and its duplicate; more, without any other, tell nothing
    apart = max(known) - min(known) >= SAME_PLACE
    return known if apart or len(known) <= 2 else None


def _missing(positions: Float[np.ndarray, " n"], planes: Sequence[Plane]) -> list[str]:
    """Places where slices seem to be missing: InstanceNumber jumps there, or the gap is wide.

    Where most gaps are alike, a wide gap is more than 1.5 times the median; in a series whose
    spacing changes on purpose (thin at the base, thick above), more than 1.5 times both neighbours.
    """
    gaps = np.diff(positions)
    median = np.median(gaps)
    even = np.mean(np.abs(gaps - median) <= 0.1 * median) >= 2 / 3
    beside = np.maximum(np.append(0, gaps[:-1]), np.append(gaps[1:], 0))
    usual = np.full_like(gaps, median) if even else beside
    jumps = _jumps([p.instance for p in planes])
    found = []
    for i, gap in enumerate(gaps):
        where = f"between {positions[i]:.2f} and {positions[i + 1]:.2f} mm (a gap of {gap:.2f} mm)"
        if jumps[i]:
            several = f"{min(jumps[i])} to {max(jumps[i])}" if len(jumps[i]) > 1 else jumps[i][0]
            found.append(f"InstanceNumber {several} {where}")
        elif gap > 1.5 * usual[i]:
            count = max(1, round(gap / usual[i]) - 1)
            found.append(f"about {count} {where}, where {usual[i]:.2f} mm is usual")
    return [f"Slices seem to be missing: {listed(found)}."] if found else []


def _jumps(numbers: Sequence[int | None]) -> list[list[int]]:
    """For each pair of neighbours the InstanceNumbers between them that no slice has.

    Only numbers that run evenly along the axis tell anything.
    """
    nothing: list[list[int]] = [[] for _ in numbers[1:]]
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers):
        return nothing
    steps = [b - a for a, b in pairwise(known)]
    step, count = Counter(steps).most_common(1)[0]
    one_way = step != 0 and all(s * step > 0 for s in steps)
    if not one_way or count < len(steps) * 2 / 3:
        return nothing
    return [
        sorted(range(a + step, b, step)) if abs(b - a) > abs(step) else []
        for a, b in pairwise(known)
    ]

"""Stage 10: how the quantities of an instance are shown, for maps, viewer and comparisons.

A `Quantity` is one value for each instance of a bag, with its colours and its words, or the reason
why there is none. `quantities` lists those of a map, and `value_of` returns any that has colours.
The values are those of `INSTANCE_QUANTITIES`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib import colormaps
from matplotlib.colors import (
    BoundaryNorm,
    Colormap,
    LinearSegmentedColormap,
    ListedColormap,
    Normalize,
)

from ..evaluation import (
    INSTANCE_QUANTITIES,
    SCORE_COLOURS,
    SIGNED_COLOURS,
    MapScore,
    Prediction,
    available_scores,
    column_of,
    drawn_values,
)
from ..tasks import format_probability
from .scale import ColourLimits, bag_limits, flatness, range_text, too_low, value_range

DOUBTS = ("probability", "doubt")
"""Rows of `KINDS` that a map shows beside the score by default."""
VARIANCES = ("variance", "within", "between")
"""Rows of `KINDS` that a map shows beside the score on request."""
VARIANCE_PARTS = ("within", "between")
Values = Float[np.ndarray, " n"]
NO_VARIANCE = "no variance: this model gives one value per patch (Dirac)"
SHOWN_KINDS: dict[str, MapScore] = {
    "share of the logit": "contribution",
    "class score": "evidence",
    "instance probability": "probability",
    "P(at least)": "grade",
}
"""`score_kind` of a prediction made by `showing`."""
TITLES = {"grade": "P(grade)"}
"""Titles of scores whose name is not one."""
UNITS = {"contribution": "logit", "probability": "", "grade": ""}
"""Units of scores that are not of evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """How a quantity is shown, whatever the bag."""

    colours: Colormap
    signed: bool = False
    """Whether the sign has a meaning, so that the colours are centred at 0."""
    limits: tuple[float, float] | None = None
    """Ends of the colours; None: from the values."""
    relative: bool = False
    """Whether the colours span the range of a bag, however small it is."""
    words: tuple[str, str] | None = None
    """Meaning of 0 and 1 if there are no other values."""


# red speaks for the class, blue against it; readers with any colour vision can tell them apart, as
# they can sky blue and vermillion of Okabe and Ito
_RED_BLUE = colormaps[SIGNED_COLOURS]
_LABELS = ListedColormap(["#56B4E9", "#D55E00"])
_CALLS = ListedColormap(["#ffffff", "#000000"])
# a score goes from pale yellow over orange to dark red: no value is grey, as the tissue below and
# the background are, and high values are dark in grey print, too
_SCORE = colormaps[SCORE_COLOURS]
# doubt has half of the lightness range of a score and a paler hue, so that evidence draws the eye
# where both are strong, and not doubt, which is largest at the border of the tissue
_DOUBT = LinearSegmentedColormap.from_list("doubt", ["#f5f2fa", "#c6b5e1", "#8a70ba"])
# brown and teal: a difference must not look like evidence for and against a class, and of the
# diverging maps of matplotlib this one has the most equal lightness on both sides, for readers
# with any colour vision (at most 6 of 100 apart; PuOr 24)
_DIFFERENCE = colormaps["BrBG"]
KINDS: dict[str, Kind] = {
    "mean": Kind(colours=_SCORE, relative=True),
    "contribution": Kind(colours=_RED_BLUE, signed=True),
    "evidence": Kind(colours=_RED_BLUE, signed=True),
    "probability": Kind(colours=_SCORE, limits=(0.0, 1.0)),
    "weight": Kind(colours=_SCORE, relative=True),
    "variance": Kind(colours=_DOUBT, relative=True),
    "within": Kind(colours=_DOUBT, relative=True),
    "between": Kind(colours=_DOUBT, relative=True),
    "deviation": Kind(colours=_DOUBT, relative=True),
    "doubt": Kind(colours=_DOUBT, limits=(0.0, 0.5)),
    "labels": Kind(colours=_LABELS, limits=(0.0, 1.0), words=("negative", "positive")),
    "calls": Kind(colours=_CALLS, limits=(0.0, 1.0), words=("right", "wrong")),
    "difference": Kind(colours=_DIFFERENCE, signed=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One value for each instance of a bag, or the reason why there is none."""

    key: str
    """Row of `KINDS`."""
    name: str
    """What it is, as `evidence mean μ`."""
    values: Values
    unit: str = ""
    limits: tuple[float, float] = (0.0, 1.0)
    """Values at the ends of the colours."""
    note: str = ""
    """What its colours span, and how much of that the values of this bag reach."""
    absent: str = ""
    """Why there are no values."""
    flat: str = ""
    """Why all values have the same colour; empty if they do not."""
    column: int = 0
    """Index of the class in a map of several classes."""
    class_name: str = ""
    """The class whose values they are, where there are several."""

    @property
    def title(self) -> str:
        """The text above a map: the name, and the class."""
        return f"{self.name}, {self.class_name}" if self.class_name else self.name

    @property
    def kind(self) -> Kind:
        """How it is shown, whatever the bag."""
        return KINDS[self.key]

    @property
    def norm(self) -> Normalize:
        """The mapping from values to colours."""
        if self.kind.words is not None:
            return BoundaryNorm([-0.5, 0.5, 1.5], self.kind.colours.N)
        if self.flat:  # a range much wider than the values, which get one colour, near the middle
            middle = sum(self.limits) / 2
            half = abs(middle) or 1.0
            return Normalize(middle - 1000 * half, middle + 1010 * half, clip=True)
        return Normalize(*self.limits, clip=True)

    @property
    def colours(self) -> UInt8[np.ndarray, "n 3"]:
        """The colour of each instance's value."""
        rgba = self.kind.colours(self.norm(np.nan_to_num(self.values)))
        return np.rint(np.asarray(rgba)[:, :3] * 255).astype(np.uint8)


def drawable_values(p: Prediction, key: str) -> np.ndarray | None:
    """Return the values of a row of `KINDS` as maps show them, (n,) or (n, classes).

    None if the prediction has none. Scores of several classes are relative to the mean over the
    classes, see `drawn_values`.
    """
    if key in ("contribution", "evidence", "probability"):
        return drawn_values(p, key) if key in available_scores(p) else None
    values = INSTANCE_QUANTITIES[key](p)
    # a bag without positive scores has the weights 0, of which there is nothing to see
    if key == "weight" and values is not None and not values.any():
        return None
    return values


def value_of(
    p: Prediction, key: str, *, name: str, column: int = 0, unit: str = "", absent: str = ""
) -> Quantity:
    """Return one class of a quantity, with the colours of its own range.

    Args:
        p: The bag's prediction.
        key: Row of `KINDS`.
        name: What it is, for the text above a map.
        column: Column of the values, if there is one for each class.
        unit: Unit of the values.
        absent: Reason to state if the prediction has no such values.
    """
    values = drawable_values(p, key)
    if values is None:
        none = np.full(len(p.attention_mean), np.nan)
        return Quantity(key=key, name=name, unit=unit, values=none, absent=absent)
    return quantity(key, np.asarray(column_of(values, column)), name=name, unit=unit)


def quantity(key: str, values: Values, *, name: str, unit: str = "") -> Quantity:
    """Return given values as a quantity, with the colours of their own range."""
    limits = KINDS[key].limits or (0.0, 1.0)
    if KINDS[key].limits is None and np.isfinite(values).any():
        limits = _centred(key, value_range(values))
    return Quantity(key=key, name=name, unit=unit, values=values, limits=limits)


def _centred(key: str, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the limits, as far from 0 on both sides if the sign has a meaning."""
    largest = max(abs(v) for v in limits) or 1.0
    return (-largest, largest) if KINDS[key].signed else limits


def class_names(p: Prediction, columns: int, classes: Sequence[str] = ()) -> list[str]:
    """Return what the columns of a per-instance array are of; without a name, their numbers."""
    names = p.of_task.column_names(p, columns) or classes
    return [names[c] if c < len(names) else str(c) for c in range(columns)]


def column_titles(p: Prediction) -> list[str]:
    """Return what the columns of the score are of, for titles: as `tumour` or `class 2`."""
    names = class_names(p, columns_of(p), p.stated.classes)
    return [f"class {name}" if name.isdecimal() else name for name in names]


def flattened(q: Quantity, *, logits: bool = False) -> Quantity:
    """Return a quantity on a scale of its own, flat if its values are almost equal."""
    if not q.kind.relative:
        return q
    return replace(q, flat=flatness(q.values, logits=logits and q.key == "mean"))


def quantities(
    p: Prediction,
    limits: ColourLimits | None = None,
    *,
    also: Sequence[str] = DOUBTS,
    column: int | None = None,
) -> Iterator[Quantity]:
    """Yield the quantities that a map shows of one class, then those of the next.

    They are the score, what there is of the rows `also` of `KINDS`, and the labels; their notes
    state the range. Doubt and variances are those of the model's own score.

    Args:
        p: The bag's prediction.
        limits: Scale of all bags, by which values that hardly reach into it are flat; None: the
            bag's own, on which values that are almost equal are flat.
        also: The rows that are shown beside the score.
        column: The class; None: all of them.
    """
    span = limits or bag_limits(p)
    # σ² stands beside the model's own mean only
    name = score_name(p) if p.score_kind in SHOWN_KINDS else f"{score_name(p)} μ"
    score = _Row(key_of(p), name, p.attention_mean, unit_of(p))
    rows = [score, *_beside_score(p, also)]
    titles = column_titles(p) if columns_of(p) > 1 else [""]
    for c, class_name in enumerate(titles):
        if column not in (None, c):
            continue
        for row in rows:
            q = _of_class(p, row, c, span=span, is_fixed=limits is not None)
            yield replace(q, class_name=class_name)
        labels = _labels(p, c)
        if labels is not None:
            yield labels


class _Row(NamedTuple):
    """A row of `KINDS` that a map shows, for all classes."""

    key: str
    name: str
    values: np.ndarray
    unit: str = ""
    none: str = ""
    """The reason to state if all values are 0; only variances have one."""


def _of_class(
    p: Prediction, row: _Row, column: int, *, span: ColourLimits, is_fixed: bool
) -> Quantity:
    """Return one class of a row; `is_fixed` tells whether `span` is the scale of all bags."""
    values = np.asarray(column_of(row.values, column), np.float64)
    # parts of a variance have the colours of their own range: in that of the sum, both would be
    # dark
    is_part = row.key in VARIANCE_PARTS
    if is_part:
        row_range = value_range(row.values)
    else:
        row_range = span.variance if row.none else span.mean
    fixed_limits = KINDS[row.key].limits
    q = Quantity(
        key=row.key,
        name=row.name,
        unit=row.unit,
        values=values,
        limits=fixed_limits or _centred(row.key, row_range),
        absent="" if row.values.any() else row.none,
        column=column,
    )
    has_own_scale = is_part or not is_fixed
    if has_own_scale:
        q = flattened(q, logits=p.score_kind == "logit")
    elif fixed_limits is None and KINDS[row.key].signed:
        q = replace(q, flat=too_low(values, q.limits))
    return replace(q, note=_reach(q, has_own_scale=has_own_scale))


def _labels(p: Prediction, column: int) -> Quantity | None:
    """Return the labels, which stand beside each class; None if there are none."""
    values = drawable_values(p, "labels")
    if values is None:
        return None
    positive = int(np.nansum(values))
    return Quantity(
        key="labels",
        name=f"instance labels: {positive:,} of {len(values):,} positive",
        values=values,
        note="true labels, never used in training",
        column=column,
    )


def _beside_score(p: Prediction, also: Sequence[str]) -> Iterator[_Row]:
    """Yield what there is of these rows; of a score that is not the model's, the probability."""
    unit = f"{unit_of(p)}²"
    score = score_word(p)
    words = {
        "probability": ("probability", "", ""),
        "doubt": ("doubt: P(wrong)", "", ""),
        "variance": (f"{score} variance σ²", unit, NO_VARIANCE),
        "within": (f"{score} variance within members", unit, "no variance within members"),
        "between": (f"{score} variance between members", unit, "no variance between members"),
    }
    is_own = p.score_kind not in SHOWN_KINDS
    for key in also:
        if key == key_of(p) or not (is_own or key == "probability"):
            continue
        # a variance that is 0 everywhere has a panel, which states the reason
        values = p.attention_variance if key == "variance" else drawable_values(p, key)
        if values is not None:
            name, unit_of_row, none = words[key]
            yield _Row(key, name, values, unit_of_row, none)


def _reach(q: Quantity, *, has_own_scale: bool) -> str:
    """Say what the colours span, and how much of that the values of this bag reach."""
    ends = q.kind.limits
    reach = range_text(q.values, format_probability if ends else None)
    if q.flat:
        return f"{q.flat} ({reach})"
    if ends:
        return f"this bag: {reach}"
    if has_own_scale:
        return f"scale of this bag: {reach}"
    return f"this bag: {reach}; scale of all bags"


def columns_of(p: Prediction) -> int:
    """Return the number of scores of an instance: one, or one for each class."""
    return 1 if p.attention_mean.ndim == 1 else p.attention_mean.shape[1]


def showing(p: Prediction, score: MapScore | None) -> Prediction:
    """Return the prediction with a score in the place of the attention.

    Raises:
        InputError: the prediction does not have this score.
    """
    if score in (None, available_scores(p)[0]):
        return p
    values = drawn_values(p, score)
    kind = next(kind for kind, name in SHOWN_KINDS.items() if name == score)
    return replace(
        p, attention_mean=values, attention_variance=np.zeros_like(values), score_kind=kind
    )


def key_of(p: Prediction) -> str:
    """Return the row of `KINDS` of what is in the place of the attention."""
    score = SHOWN_KINDS.get(p.score_kind, "evidence" if p.score_has_level else "mean")
    return "probability" if score == "grade" else score


def score_name(p: Prediction) -> str:
    """Return the name of the score that the map shows, with what its values are: means."""
    return score_word(p) if p.score_kind in SHOWN_KINDS else f"{score_word(p)} mean"


def score_word(p: Prediction) -> str:
    """Return the name of the score that the map shows."""
    if p.score_kind in SHOWN_KINDS:
        return TITLES.get(SHOWN_KINDS[p.score_kind], SHOWN_KINDS[p.score_kind])
    if p.score_has_level:
        return "evidence"
    return "attention" if p.score_kind in ("logit", "weight") else "instance score"


def unit_of(p: Prediction) -> str:
    """Return the unit of the scores, for colour bars."""
    score = SHOWN_KINDS.get(p.score_kind)
    if p.score_has_level or score == "evidence":
        return p.of_task.words.evidence_unit
    return p.score_kind if score is None else UNITS[score]


def same_instances(one: Prediction, other: Prediction) -> bool:
    """Return whether two predictions are of the same instances, at the same coordinates."""
    if len(one.attention_mean) != len(other.attention_mean):
        return False
    if one.coords is None or other.coords is None:
        return one.coords is other.coords
    return one.coords is other.coords or np.array_equal(one.coords, other.coords)

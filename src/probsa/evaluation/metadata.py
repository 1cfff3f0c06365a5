"""What predictions.json states of the origin of predictions: the model, and what is known of it.

The same record describes a predictor, its predictions and their report. It is read from files by
`PredictionsMetadata.of`, and written by `to_dict`; nothing else knows the keys.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from ..core import PositiveFloat, PositiveInt, UnitInterval, as_record
from ..statistics import Threshold
from .map_scores import MapScore

AT_CHANCE = "not shown better than chance"
ReservationKind = Literal[
    "chance", "mean features", "null maps", "doubt", "validation bags", "few training bags", "other"
]
"""What a reservation is about; `other` for those that version 0.2 stored, except `chance`."""
NOT_STORED: tuple[tuple[Any, ...] | None, ...] = (None, ())
"""Values of fields that are not written: nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """What a reader must know before believing a map or a call of a model."""

    kind: ReservationKind
    text: str
    """The same in a sentence."""

    @classmethod
    def of_text(cls, text: str) -> "Reservation":
        """Return a reservation that version 0.2 stored as a sentence alone."""
        return cls(kind="chance" if AT_CHANCE in text else "other", text=text)


def at_chance(reservations: tuple[Reservation, ...]) -> str:
    """Return the sentence of a run's reservation that it is not better than chance, or ""."""
    texts = [reservation.text for reservation in reservations if reservation.kind == "chance"]
    return texts[0] if texts else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapScoreChoice:
    """Which score the maps of a run show, and why."""

    chosen: MapScore
    drops: dict[str, float]
    """Mean drop of the probability by score, minus the drop of a random order."""
    bags: int
    """Number of bags that the drops were measured on."""
    reason: str
    """The reason in words, for captions."""
    rule: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRule:
    """How the stored threshold was chosen, if a sensitivity or specificity was asked for."""

    rule: str
    reached: UnitInterval
    bags: PositiveInt
    of_class: PositiveInt | None = None
    """None in files of versions that did not store it."""

    @classmethod
    def of(cls, threshold: Threshold | None) -> "StoredRule | None":
        """Return what is stored of a chosen threshold; None if no share was asked for."""
        if threshold is None or threshold.rule is None or threshold.reached is None:
            return None
        return cls(
            rule=threshold.rule,
            reached=threshold.reached,
            bags=threshold.bags,
            of_class=threshold.of_class,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTrust:
    """The verdict of a run on its maps; see `MapTrust`."""

    map: str
    """The score that the tests are about."""
    failed: tuple[str, ...]
    untested: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionsMetadata:
    """The origin of predictions; a field that is None or empty is not known, or does not apply."""

    model: str | None = None
    """Name of the model."""
    runs: tuple[str, ...] = ()
    """Paths of the runs that predict together."""
    members: int | None = None
    """Number of the models that predict together."""
    epoch: int | tuple[int, ...] | None = None
    """Epoch of the weights; of several members, that of each. So is `kappa`."""
    kappa: float | tuple[float, ...] | None = None
    """Precision of the learned smoothness prior."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further entries: what else a model monitors, see `Model.monitored`, and what other versions
    of the package store."""
    prior: str | None = None
    """How probabilities were moved between shares of the classes, in a sentence."""
    target: tuple[str, ...] = ()
    """Columns of the target in a table of labels, where they are not the usual ones."""
    unit: str | None = None
    """`patient` where a bag has the slides of a patient."""
    covariates: tuple[str, ...] = ()
    """Columns of the clinical covariates."""
    training_targets: list[float] | list[list[float | None]] | None = None
    """Targets of the training bags, for tasks whose rivals and weights need them."""
    thresholds: tuple[UnitInterval, ...] | None = None
    """Threshold of each finding."""
    temperature: PositiveFloat | None = None
    """Temperature of the probabilities, where one was fitted."""
    neighbour_weight: float | None = None
    """Mean weight of the neighbours in the value of an instance, under a smoothness prior."""
    threshold_rule: StoredRule | None = None
    map_score: MapScoreChoice | None = None
    distance_validation_bags: int | None = None
    """Number of validation bags that `Prediction.bag_ood` compares with."""
    distance_validation_patients: int | None = None
    """Number of their patients, which version 0.2 did not store."""
    reservations: tuple[Reservation, ...] = ()
    """What the run's evaluation says against it."""
    map_trust: StoredTrust | None = None
    training_bags: int | None = None
    """Number of bags that the run was trained on."""

    @classmethod
    def of(cls, values: Mapping[str, Any], *, where: str) -> "PredictionsMetadata":
        """Return the record of the entries of a file, which `where` names in errors.

        Raises:
            InputError: an entry has another type; names it.
        """
        names = {f.name for f in fields(cls)} - {"more"}
        entries: dict[str, Any] = {"more": {}}
        for key, value in values.items():
            if key in names:
                entries[key] = value
            else:
                entries["more"][key] = value
        reservations = entries.get("reservations")
        if isinstance(reservations, list):
            entries["reservations"] = [
                Reservation.of_text(stored) if isinstance(stored, str) else stored
                for stored in reservations
            ]
        return as_record(cls, entries, where=where, advice="predict again")

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of a file, of what is known."""
        entries: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if name == "more":
                entries |= value
            elif value not in NOT_STORED:
                # as JSON holds it
                entries[name] = list(value) if isinstance(value, tuple) else value
        return entries

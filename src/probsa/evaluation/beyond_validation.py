"""How many evaluated bags are further from training than all validation bags, and by chance."""

from dataclasses import asdict, dataclass

from ..core import counted
from .evaluated import Evaluated

DISTANCE_VALIDATION_BAGS = "distance_validation_bags"
"""The entry of predictions.json with the number of bags that `ood` compares with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeyondValidation:
    """Bags with `ood` = 1 among those that the run has not seen."""

    bags: int
    """Number of bags that are compared."""
    beyond: int
    validation_bags: int | None
    """Number of validation bags that they are compared with; None if it is not known."""

    @property
    def expected(self) -> float | None:
        """The number of bags beyond all validation bags if all are alike: n / (v + 1)."""
        return None if self.validation_bags is None else self.bags / (self.validation_bags + 1)

    def to_dict(self) -> dict[str, int | float | None]:
        """Return plain values for JSON."""
        return {**asdict(self), "expected": self.expected}

    @property
    def sentence(self) -> str:
        """The numbers in words."""
        text = (
            f"distance from training: {self.beyond} of {counted(self.bags, 'bag')} "
            f"{'is' if self.beyond == 1 else 'are'} further from training than "
        )
        if self.expected is None:
            return f"{text}all validation bags (predict again to learn how many are by chance)."
        return (
            f"{text}all {counted(self.validation_bags or 0, 'validation bag')}; "
            f"{self.expected:.1f} are expected by chance if these bags are like those of training."
        )


def beyond_validation(evaluated: Evaluated) -> BeyondValidation | None:
    """Count the evaluated bags beyond all validation bags; None without distances or new bags."""
    table = evaluated.predictions
    rows = [i for i in evaluated.rows if table.parts[i] not in ("train", "val")]
    if table.ood is None or not rows:
        return None
    stored = table.metadata.get(DISTANCE_VALIDATION_BAGS)
    several = "runs" in table.metadata
    validation = stored if isinstance(stored, int) else table.parts.count("val")
    return BeyondValidation(
        bags=len(rows),
        beyond=int((table.ood[rows] >= 1).sum()),
        validation_bags=None if several else validation or None,
    )

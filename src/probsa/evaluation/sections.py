"""The sections of an evaluation report beyond the metrics of bags, instances and lesions.

A section is one module with one function in `SECTIONS`. It gets what is evaluated and returns its
part of the report, or None where there is nothing to say.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from .calibration_section import calibration_section
from .doubt_section import doubt_section
from .evaluated import Evaluated as Evaluated
from .faithfulness_section import faithfulness_section
from .guarantees import guarantees_section
from .null_report import within_bags_section


@runtime_checkable
class Section(Protocol):
    """A part of a report, for JSON and as text."""

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ...

    def render(self, console: Console) -> None:
        """Print it as text."""
        ...


SECTIONS: tuple[Callable[[Evaluated], Section | None], ...] = (
    within_bags_section,
    doubt_section,
    calibration_section,
    faithfulness_section,
    guarantees_section,
)
"""The functions that make the sections, in the order of the report."""

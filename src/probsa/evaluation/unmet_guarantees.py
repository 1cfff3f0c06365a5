"""Guarantees that the calibration bags are too few for; others are given nevertheless."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from ..errors import UnmetGuarantee
from ..statistics import least_groups, smallest_alpha


def check_groups(
    count: int,
    *,
    flag: Literal["--coverage", "--max-missed"],
    level: float,
    what: str = "calibration bags",
) -> None:
    """Check that there are enough calibration groups for a requested level.

    Args:
        count: number of groups.
        flag: what is requested.
        level: its value.
        what: the bags of these groups, in the plural.

    Raises:
        UnmetGuarantee: there are fewer; says how many are needed, and which level is possible.
    """
    is_coverage = flag == "--coverage"
    least = least_groups(1 - level if is_coverage else level)
    if count >= least:
        return
    advice = "add calibration bags"
    if count:
        alpha = smallest_alpha(count)
        advice += f", or give {flag} {1 - alpha if is_coverage else alpha:.3g}"
    raise UnmetGuarantee(
        f"{flag} {level:g} needs {what} of at least {least} groups (patients), but there are "
        f"{count}: {advice}"
    )


@contextmanager
def noted(unmet: dict[str, str], flag: str) -> Iterator[None]:
    """Note under its flag why a guarantee cannot be given, instead of raising."""
    try:
        yield
    except UnmetGuarantee as error:
        unmet[flag] = str(error)


def refusal(unmet: Mapping[str, str]) -> UnmetGuarantee:
    """Return the error that states all reasons."""
    reasons = list(unmet.values())
    if len(reasons) == 1:
        return UnmetGuarantee(reasons[0])
    return UnmetGuarantee(f"{len(reasons)} guarantees cannot be given: {'; '.join(reasons)}")

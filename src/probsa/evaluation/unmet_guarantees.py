"""Guarantees that the calibration bags are too few for; others are given nevertheless."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import UnmetGuarantee
from ..statistics import least_groups, smallest_alpha


def check_groups(count: int, *, coverage: float, what: str = "calibration bags") -> None:
    """Check that there are enough calibration groups for a requested coverage.

    Args:
        count: number of groups.
        coverage: the requested coverage.
        what: the bags of these groups, in the plural.

    Raises:
        UnmetGuarantee: there are fewer; says how many are needed, and which level is possible.
    """
    least = least_groups(1 - coverage)
    if count >= least:
        return
    advice = "add calibration bags"
    if count:
        advice += f", or give --coverage {1 - smallest_alpha(count):.3g}"
    raise UnmetGuarantee(
        f"--coverage {coverage:g} needs {what} of at least {least} groups (patients), but there "
        f"are {count}: {advice}"
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

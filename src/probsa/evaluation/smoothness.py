"""How far a learned smoothness prior reaches, in words."""

from collections.abc import Mapping
from typing import Any


def smoothness_sentence(metadata: Mapping[str, Any]) -> str:
    """Return what the learned κ of a field posterior became, in words."""
    kappas = metadata["kappa"]
    values = ", ".join(f"{k:.3g}" for k in (kappas if isinstance(kappas, list) else [kappas]))
    share = metadata.get("neighbour_share")
    if share is None:
        return f"smoothness: κ = {values}"
    return (
        f"smoothness: κ = {values}; in the value of an instance, its neighbours have a share of "
        f"{share:.0%} and the instance itself {1 - share:.0%}"
    )

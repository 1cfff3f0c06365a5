"""The methods of the paper under our names: their order in tables, and how λ is written."""

from ..grid.methods_and_cells import Family, Method

ORDER = (
    *("abmil-probsa-dirac", "abmil-probsa-diag", "abmil", "clam-sb", "dsmil", "patchgcn"),
    *("dtfdmil", "tabmil-probsa-dirac", "tabmil-probsa-diag", "tabmil", "transmil", "setmil"),
    *("gtp", "iibmil", "camil", "vmil"),
)
"""The paper's methods in the order of its tables 2 and 3."""
BASELINES: dict[Family, str] = {"local": "abmil", "global": "tabmil"}
"""The plain model of each family, which corresponds to λ = 0."""


def kl_text(method: Method) -> str:
    """Return λ of a method in the paper's notation; `0.0` for a plain baseline."""
    kl = method.kl_weight
    if kl is None:
        return "0.0"
    return kl if isinstance(kl, str) else f"{kl:g}" if kl % 1 else f"{kl:.1f}"


def position(method: Method) -> tuple[float, str, int, float]:
    """Return the sort key of a method in the paper's order of tables.

    A posterior comes before its plain model, unknown methods last. λ sorts as numbers, linear,
    cyclical.
    """
    family = 1 if method.family == "global" else 0
    known = float(len(ORDER))
    if method.model in ORDER:
        known = float(ORDER.index(method.model))
    elif method.baseline in ORDER:
        known = ORDER.index(method.baseline) - 0.5
    kl = method.kl_weight
    number = kl if isinstance(kl, int | float) else 0.0
    kind = 0 if kl is None else 1 if not isinstance(kl, str) else 2 if kl == "linear" else 3
    return 100 * family + known, method.label, kind, float(number)

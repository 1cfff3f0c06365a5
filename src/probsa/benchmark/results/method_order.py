"""The methods of the paper under our names: their order in tables, and how λ is written."""

from ...variational import KLWeight
from ..grid.methods_and_cells import Family, Method

ORDER = (
    "abmil-probsa-dirac",
    "abmil-probsa-diag",
    "abmil",
    "clam-sb",
    "dsmil",
    "patchgcn",
    "dtfdmil",
    "tabmil-probsa-dirac",
    "tabmil-probsa-diag",
    "tabmil",
    "transmil",
    "setmil",
    "gtp",
    "iibmil",
    "camil",
    "vmil",
)
"""The paper's methods in the order of its tables 2 and 3."""
BASELINES: dict[Family, str] = {"local": "abmil", "global": "tabmil"}
"""The plain model of each family, which corresponds to λ = 0."""


def kl_text(method: Method) -> str:
    """Return λ of a method in the paper's notation; `0.0` for a plain baseline."""
    kl_weight = method.kl_weight
    if kl_weight is None:
        return "0.0"
    if not isinstance(kl_weight, str) and float(kl_weight).is_integer():
        return f"{kl_weight:.1f}"  # the paper writes 1.0, and our labels 1
    return method.kl_label


def position(method: Method) -> tuple[float, str, int, float]:
    """Return the sort key of a method in the paper's order of tables.

    Local methods come before global ones. In each family, methods that the paper lacks come last,
    unless they are posteriors of one of its methods: a posterior comes before its plain model. The
    values of λ are sorted by `kl_position`.
    """
    place = float(len(ORDER))
    if method.model in ORDER:
        place = float(ORDER.index(method.model))
    elif method.baseline in ORDER:
        place = ORDER.index(method.baseline) - 0.5
    if method.family == "global":
        place += 100  # behind all local methods
    return place, method.label, *kl_position(method.kl_weight)


def kl_position(kl_weight: KLWeight | None) -> tuple[int, float]:
    """Return the sort key of a λ: none, numbers, linear, cyclical."""
    if kl_weight is None:
        return 0, 0.0
    if kl_weight == "linear":
        return 2, 0.0
    if kl_weight == "cyclical":
        return 3, 0.0
    return 1, float(kl_weight)

"""AUGRC: the area under the generalised risk-coverage curve, of decisions that may be withheld.

Traub et al., Overcoming common flaws in the evaluation of selective classification systems,
NeurIPS 2024. The generalised risk at a coverage is the loss of what is accepted, over all items:
for errors, the share that are both wrong and accepted. Lower is better; chance gives risk / 2.
"""

from typing import TypeVar

import numpy as np
from jaxtyping import Float, Shaped

Numbers = TypeVar("Numbers", float, np.ndarray)


def augrc(
    loss: Shaped[np.ndarray, " items"], confidence: Float[np.ndarray, " items"]
) -> float | None:
    """∫ over coverage c of Σ of the losses of the c·n most confident items / n.

    Items of one confidence are accepted together: between the points before and after them the
    curve is a line. None where there are no items.

    Args:
        loss: of each decision; for wrong or right: True and False.
        confidence: what is accepted first has the highest.
    """
    n = len(loss)
    if n == 0:
        return None
    order = np.argsort(-confidence, kind="stable")
    ranked, paid = confidence[order], np.cumsum(loss[order].astype(np.float64))
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]) + 1, n)
    coverage = np.append(0, ends) / n
    risk = np.append(0.0, paid[ends - 1]) / n
    return float(np.trapezoid(risk, coverage))


def augrc_of_ranks(error_rate: Numbers, auroc: Numbers) -> Numbers:
    """The AUGRC of wrong and right decisions from how often they are wrong and how that is found.

    AUGRC = (1 - AUROC) · (1 - e) · e + e² / 2, e the share of errors, AUROC that of uncertainty
    for finding them (ties count half): equal to `augrc`, and as fast to resample as both.
    """
    return (1 - auroc) * (1 - error_rate) * error_rate + error_rate**2 / 2

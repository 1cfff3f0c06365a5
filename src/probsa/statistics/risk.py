"""AUGRC: the area under the generalised risk-coverage curve of decisions that may be withheld.

Traub et al., Overcoming common flaws in the evaluation of selective classification systems,
NeurIPS 2024. The generalised risk at a coverage is the fraction of all items that are both accepted
and wrong. Lower is better; accepting items in random order gives half of the error rate.
"""

from typing import TypeVar

import numpy as np

Numbers = TypeVar("Numbers", float, np.ndarray)


def augrc(error_rate: Numbers, auroc: Numbers) -> Numbers:
    """Return the AUGRC from the error rate and from how well uncertainty ranks the errors.

    AUGRC = (1 - AUROC) · (1 - e) · e + e² / 2, where e is the error rate and AUROC is that of the
    uncertainty for finding errors (ties count half). This equals the integral of the curve, and
    can be resampled as fast as its two arguments.
    """
    return (1 - auroc) * (1 - error_rate) * error_rate + error_rate**2 / 2

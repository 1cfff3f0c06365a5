"""Divide units, such as patients or sites, among parts that each get their share of every class.

The integer programme follows Howard et al., "The impact of site-specific digital histology
signatures on deep learning model accuracy and bias" (2021), who keep sites apart, with absolute in
place of squared deviations, so that SciPy's solver suffices.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

NODES = 8000
"""Nodes that the solver visits at most. A limit of time would make folds depend on the machine."""
LARGEST_PROGRAMME = 500
"""Units times parts up to which the integer programme is solved; more units are dealt out, since
many small ones balance well without it."""
GAP = 5e-4
"""How much worse than the best possible imbalance a division may be: a bag of two thousand."""
TOLERANCE = 1e-9
"""How far rounding may move an imbalance."""
SECOND = 0.1
"""Weight of second strata. Without it, strata of a single bag would draw that to the largest part,
and the classes would pay for it."""
TIE = 1e-3
"""Weight of the number of bags of a part when units are dealt out, which decides between ties."""


class Division(NamedTuple):
    """The part of each unit, and how good that is."""

    parts: Int[np.ndarray, " units"]
    imbalance: float
    bound: float
    """No division has a smaller imbalance."""


def imbalance(
    counts: Float[np.ndarray, "units classes"],
    parts: Int[np.ndarray, " units"],
    shares: Float[np.ndarray, " parts"],
) -> float:
    """Return how far the parts are from their shares of each class.

    For a class c with N_c bags, of which part p has n_cp, it is ½ Σ_p |n_cp / N_c − s_p|, the
    fraction of its bags that is in the wrong part, plus max_p (s_p − n_cp / N_c), what the part
    with the largest want lacks; the mean over classes is returned. The second term keeps the other
    parts equal where one unit is larger than a part.
    """
    members = np.zeros((len(shares), len(counts)))
    members[parts, np.arange(len(counts))] = 1
    deviation = members @ counts / counts.sum(0) - shares[:, None]
    wrong_part = np.abs(deviation).sum(0) / 2
    largest_want = (-deviation).max(0)
    return float((wrong_part + largest_want).mean())


def deal_out(
    counts: Float[np.ndarray, "units classes"],
    shares: Float[np.ndarray, " parts"],
    *,
    second: Float[np.ndarray, "units strata"] | None = None,
    rng: np.random.Generator,
) -> Int[np.ndarray, " units"]:
    """Deal out units, the largest first, each to the part that it balances most.

    The sum over classes and parts of (n_cp − N_c s_p)² / N_c is what each step makes as small as
    possible; to it, the same sum over the `second` strata is added, and over all bags, with smaller
    weights.
    """
    totals = counts.sum(1)
    if second is None:
        second = np.zeros((len(counts), 0))
    rows = np.column_stack([counts, second, totals])
    stratum_sizes = rows.sum(0)
    weights = 1 / stratum_sizes
    weights[counts.shape[1] : -1] *= SECOND
    weights[-1] *= TIE
    deviation = -shares[:, None] * stratum_sizes
    parts = np.zeros(len(counts), np.int64)
    for unit in _largest_first(totals, rng):
        # the change of the sum of squares, without the term that all parts have in common
        cost = deviation @ (rows[unit] * weights)
        # rounded, so that equal costs are equal however they were computed
        part = int(np.argmin(np.round(cost, 9)))
        parts[unit] = part
        deviation[part] += rows[unit]
    return parts


def divide(
    counts: Float[np.ndarray, "units classes"],
    shares: Float[np.ndarray, " parts"],
    *,
    rng: np.random.Generator,
) -> Division:
    """Return the division of the smallest imbalance that the integer programme finds.

    Every part gets a unit if the programme is solved.

    Args:
        counts: The number of bags of each class in each unit; every class has one.
        shares: The share of all bags that each part should get; equal shares come first.
        rng: Decides which of equally good divisions it is.
    """
    dealt = deal_out(counts, shares, rng=rng)
    dealt_imbalance = imbalance(counts, dealt, shares)
    bound = least_imbalance(counts.sum(0), shares)
    is_best = dealt_imbalance <= bound + TOLERANCE
    if is_best or counts.shape[0] * len(shares) > LARGEST_PROGRAMME:
        return Division(dealt, dealt_imbalance, min(bound, dealt_imbalance))
    # the solver takes a gap relative to its own imbalance, which is smaller than the dealt one
    solution = _solve(counts, shares, gap=GAP / dealt_imbalance, rng=rng)
    if solution is None:
        return Division(dealt, dealt_imbalance, bound)
    bound = max(bound, solution.bound)
    fills_all_parts = len(set(dealt.tolist())) == len(shares)
    if fills_all_parts and dealt_imbalance < solution.imbalance:
        return Division(dealt, dealt_imbalance, min(bound, dealt_imbalance))
    return solution._replace(bound=min(bound, solution.imbalance))


def least_imbalance(
    class_sizes: Float[np.ndarray, " classes"], shares: Float[np.ndarray, " parts"]
) -> float:
    """Return the imbalance that stays because bags cannot be divided, if every unit is one bag."""
    terms = np.array([_rounding(size, shares) for size in class_sizes])
    return float(terms.sum(1).mean())


def _rounding(size: float, shares: Float[np.ndarray, " parts"]) -> tuple[float, float]:
    """Return both terms of the imbalance of a class after rounding n_p = N s_p to whole numbers."""
    exact = size * shares
    whole = np.floor(exact + 1e-9)
    remainder = round(size - whole.sum())
    # the parts with the largest fractions are rounded up
    whole[np.argsort(whole - exact, kind="stable")[:remainder]] += 1
    deviation = (whole - exact) / size
    return float(np.abs(deviation).sum() / 2), float((-deviation).max())


def _largest_first(
    totals: Float[np.ndarray, " units"], rng: np.random.Generator
) -> Int[np.ndarray, " units"]:
    """Return the units by their number of bags, in random order among equals."""
    shuffled = rng.permutation(len(totals))
    return shuffled[np.argsort(-totals[shuffled], kind="stable")]


def _solve(
    counts: Float[np.ndarray, "units classes"],
    shares: Float[np.ndarray, " parts"],
    *,
    gap: float,
    rng: np.random.Generator,
) -> Division | None:
    """Solve the integer programme up to a relative gap; None if no division was found.

    The variables are x_up (unit u is in part p), d_cp ≥ |n_cp / N_c − s_p| and
    e_c ≥ s_p − n_cp / N_c for each p.
    """
    from scipy import optimize, sparse

    # the stubs of SciPy know these with numbers as limits only
    Bounds: Any = optimize.Bounds
    LinearConstraint: Any = optimize.LinearConstraint

    order = _largest_first(counts.sum(1), rng)
    class_sizes = counts.sum(0)
    units, classes = counts.shape
    parts = len(shares)
    x_count = units * parts
    d_count = classes * parts
    # n_cp / N_c in terms of x
    fractions = sparse.kron((counts[order] / class_sizes).T, sparse.eye(parts))
    d = sparse.eye(d_count)
    no_d = sparse.csr_matrix((d_count, d_count))
    e = sparse.kron(sparse.eye(classes), np.ones((parts, 1)))
    no_e = sparse.csr_matrix((d_count, classes))
    targets = np.tile(shares, classes)
    in_one_part = sparse.kron(sparse.eye(units), np.ones((1, parts)))
    of_part = sparse.kron(np.ones((1, units)), sparse.eye(parts))
    rest = d_count + classes
    constraints = [
        LinearConstraint(sparse.hstack([in_one_part, sparse.csr_matrix((units, rest))]), 1, 1),
        LinearConstraint(sparse.hstack([of_part, sparse.csr_matrix((parts, rest))]), 1, np.inf),
        LinearConstraint(sparse.hstack([fractions, -d, no_e]), -np.inf, targets),
        LinearConstraint(sparse.hstack([fractions, d, no_e]), targets, np.inf),
        LinearConstraint(sparse.hstack([fractions, no_d, e]), targets, np.inf),
    ]
    # bags are whole: without these bounds, the solver would search on below what can be reached
    terms = np.array([_rounding(size, shares) for size in class_sizes])
    d_sum = sparse.kron(sparse.eye(classes), np.ones((1, parts)))
    d_sum = sparse.hstack(
        [sparse.csr_matrix((classes, x_count)), d_sum, sparse.csr_matrix((classes, classes))]
    )
    constraints.append(LinearConstraint(d_sum, 2 * terms[:, 0], np.inf))
    lowest = np.concatenate([np.zeros(x_count + d_count), terms[:, 1]])
    # Equal parts can be renumbered: the i-th unit is in one of the first i of them.
    equal_parts = int((shares == shares[0]).sum())
    allowed = np.ones((units, parts))
    for unit in range(min(units, equal_parts)):
        allowed[unit, unit + 1 : equal_parts] = 0
    highest = np.concatenate([allowed.ravel(), np.ones(d_count + classes)])
    cost = np.concatenate(
        [np.zeros(x_count), np.full(d_count, 0.5 / classes), np.full(classes, 1 / classes)]
    )
    is_whole = np.concatenate([np.ones(x_count), np.zeros(d_count + classes)])
    result = optimize.milp(
        cost,
        constraints=constraints,
        bounds=Bounds(lowest, highest),
        integrality=is_whole,
        options={"node_limit": NODES, "mip_rel_gap": gap},
    )
    if result.x is None:
        return None
    chosen = result.x[:x_count].reshape(units, parts).argmax(1)
    unit_parts = np.zeros(units, np.int64)
    unit_parts[order] = chosen
    bound = 0.0 if result.mip_dual_bound is None else float(result.mip_dual_bound)
    return Division(unit_parts, imbalance(counts, unit_parts, shares), bound)

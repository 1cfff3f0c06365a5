"""Guarantees from calibration bags: sets of classes, intervals, accepted calls.

They hold if nothing but chance decides which groups (patients) calibrated. In every mean over bags,
each group counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Shaped
from scipy.special import expit, logit

from ..core import TextTable, as_paths, counted, group_keys, optional_path, seed_of, write_csv
from ..errors import InputError, OutputExists, TableError, UnmetGuarantee
from ..statistics import (
    LOSS,
    MEAN_SHARE,
    SHARE,
    ConformalSets,
    Metric,
    aps_scores,
    certified_threshold,
    conformal_half_width,
    coverage_band,
    group_shares,
    least_accepted,
    least_groups,
    smallest_alpha,
)
from .claims import Caution
from .context import SEEN, Context, labelled_rows, read_truth, stored_targets, threshold_of
from .section import Section
from .storage import Predictions, listed, read_predictions

SetScore = Literal["lac", "aps"]
"""The score of a class: 1 - p, or the probability of the more probable classes and a random part
of its own. Of a number: the distance from the predicted mean, or that in predicted standard
deviations."""
COVERAGE_TITLE = "realised coverage (groups count once)"
COVERAGE_OF_BAGS_TITLE = "… if bags count equally (not promised)"
DELTA = 0.1
"""Probability that the error rate is larger than promised."""
START = 1.75
"""The strictest threshold accepts about this multiple of the number of groups that suffice with one
bag each, so that one wrong call among them is allowed."""
STEP = 0.05
"""Difference of the shares of accepted bags between thresholds."""
SMALLEST = 1e-12
OF_MODEL = ("model", "epoch", "members", "kappa", "runs")
"""Entries of predictions.json that differ between models."""
NOT_REQUESTED = {
    **dict.fromkeys(("coverage", "accepted", "max_error", "certified", "undecided")),
    "bands": {},
    "sizes": {},
}
"""What `probsa sets --json` states of guarantees that are not requested."""
Bands = dict[str, tuple[float, float]]
P_VALUE = "p_value_"
"""The beginning of the columns of p-values in a table of sets; the name of the class follows."""


CAUTIONS: Mapping[Caution, str] = {
    Caution.CHOSEN_ON_CALIBRATION: (
        "the model's weights and threshold were chosen on the calibration bags, so it may do worse "
        "on new bags; give --calibration with bags that the run has not seen"
    ),
    Caution.NO_GROUPS: (
        "no groups are known, so every bag counts as one patient; if patients have several bags, "
        "give --labels with a column group"
    ),
    Caution.NOT_FOR_TRAINING_BAGS: "training bags are evaluated, for which nothing is promised",
}
"""The cautions in words."""


class BagMean(NamedTuple):
    """A weighted mean over the bags, which tells whether a promise held."""

    title: str
    value: Shaped[np.ndarray, " bags"]
    weight: Shaped[np.ndarray, " bags"]
    is_size: bool = False
    """Whether values are sizes of sets or widths of intervals instead of shares."""

    def metric(self, bags: Context) -> Metric:
        """Return Σ weight · value / Σ weight, in the data and in each resample."""
        scale = LOSS
        if not self.is_size:
            # a share of bags is a proportion only if values are yes or no
            scale = SHARE if self.value.dtype == np.bool_ else MEAN_SHARE
        return Metric.of(
            bags.draws.ratio(self.weight * self.value, self.weight),
            support=bags.draws.support({None: self.weight > 0}),
            scale=scale,
            reason="no such bags",
        )


Means = Mapping[str, BagMean]
"""The means of a guarantee by their key in the JSON report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuaranteeOptions:
    """The requested levels; None for what is not requested.

    Raises:
        InputError: a level is not between 0 and 1, or none is given.
    """

    coverage: float | None = None
    """Probability that the set of a bag contains its class, or the interval its number."""
    max_error: float | None = None
    """Largest error rate of the calls that are accepted."""
    calibration: Path | None = None
    """Predictions folder of the calibration bags; None for the validation bags of the folder."""
    per_class: bool = False
    """Whether coverage holds within each class."""
    score: SetScore = "lac"

    def __post_init__(self) -> None:
        as_paths(self)
        levels = {"--coverage": self.coverage, "--max-error": self.max_error}
        for flag, value in levels.items():
            if value is not None and not 0 < value < 1:
                raise InputError(f"{flag} is {value:g}; expected a number between 0 and 1")
        if not any(levels.values()):
            raise InputError("no guarantee is requested: give --coverage or --max-error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """A promise about some bags that follows from other, labelled ones, the calibration bags."""

    key: str
    """Its key in the JSON report."""
    values: dict[str, Any]
    """What is promised, for JSON."""
    lines: Sequence[str]
    """What is promised, as sentences."""
    columns: dict[str, Sequence[str]]
    """The columns of a table of the bags."""
    summary: dict[str, Any]
    """What the JSON of `probsa sets` has of it, see `NOT_REQUESTED`."""
    means: Callable[[], Means]
    """Compares the promise with the labels of the bags, which nothing else uses."""


def shares(
    bags: Context, *, among: Bool[np.ndarray, " bags"] | None = None
) -> Float[np.ndarray, " bags"]:
    """Return the share of each bag in its group; bags that are not `among` them have none."""
    rows = np.arange(len(bags.rows)) if among is None else np.flatnonzero(among)
    shares_of_bags = np.zeros(len(bags.rows))
    shares_of_bags[rows] = group_shares([bags.groups[i] for i in rows])[0]
    return shares_of_bags


# Coverage


def prediction_sets(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Return sets of classes that contain the class of a bag.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    assert options.coverage is not None
    names = bags.predictions.class_names
    rule = ConformalSets.calibrated(
        _set_scores(calibration, options.score),
        calibration.y,
        groups=calibration.groups,
        alpha=1 - options.coverage,
        per_class=options.per_class,
    )
    counts = dict(zip(names if options.per_class else ("all",), rule.groups, strict=False))
    bands = _bands(counts, bags, coverage=options.coverage)
    kind = "per class" if options.per_class else "over all classes"
    first = f"prediction sets ({options.score}) at a coverage of {options.coverage:.3g} {kind}"
    scores = _set_scores(bags, options.score)
    inside = rule.sets(scores)
    columns: dict[str, Sequence[str]] = {"set": ["|".join(np.array(names)[row]) for row in inside]}
    for name, p_values in zip(names, rule.p_values(scores).T, strict=True):
        columns[f"{P_VALUE}{name}"] = [f"{p:.6g}" for p in p_values]
    size = inside.sum(1)
    sizes = dict(enumerate(np.bincount(size, minlength=len(names) + 1).tolist()))
    sizes_text = ", ".join(f"{count} of size {classes}" for classes, count in sizes.items())

    def means() -> Means:
        covered = inside[np.arange(len(inside)), bags.y]
        share = shares(bags)
        means = {
            "coverage": BagMean(COVERAGE_TITLE, covered, share),
            "coverage_of_bags": BagMean(COVERAGE_OF_BAGS_TITLE, covered, np.ones(len(covered))),
        }
        for c, name in enumerate(names):
            share_in_class = shares(bags, among=bags.y == c)
            title = f"coverage of class {name}"
            means[f"coverage_{name}"] = BagMean(title, covered, share_in_class)
        return means | {
            "set_size": BagMean("mean number of classes in a set", size, share, is_size=True),
            "empty_sets": BagMean("share of empty sets", size == 0, share),
            "single_sets": BagMean("share of sets of one class", size == 1, share),
            "larger_sets": BagMean("share of sets of several classes", size > 1, share),
            "error_of_single_sets": BagMean(
                "error rate of sets of one class (not promised)", ~covered, share * (size == 1)
            ),
        }

    return Guarantee(
        key="sets",
        values={
            "coverage": options.coverage,
            "method": options.score,
            "per_class": options.per_class,
            "thresholds": dict(zip(names, rule.thresholds.tolist(), strict=True)),
            "calibration_groups": counts,
            "bands": bands.bands,
            "bands_of_this_test": bands.in_test,
        },
        lines=[first, *bands.lines, f"  sets: {sizes_text}"],
        columns=columns,
        summary={"coverage": options.coverage, "bands": bands.bands, "sizes": sizes},
        means=means,
    )


def intervals(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Return intervals around the predicted mean that contain the number of a bag.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    assert options.coverage is not None
    adapts = options.score == "aps"
    count = len(set(calibration.groups))
    bands = _bands({"all": count}, bags, coverage=options.coverage)
    if adapts:
        calibration_spread = _spread(calibration)
        spread = _spread(bags)
    else:
        calibration_spread = np.ones(len(calibration.rows))
        spread = np.ones(len(bags.rows))
    half_width = conformal_half_width(
        calibration.targets[:, 0],
        calibration.output("mean"),
        groups=calibration.groups,
        alpha=1 - options.coverage,
        spread=calibration_spread,
    )
    low, high = bags.output("mean") + half_width * np.stack([-spread, spread])
    unit = " predicted standard deviations" if adapts else ""
    text = f"the predicted mean ± {half_width:.4g}{unit}"

    def means() -> Means:
        y = bags.targets[:, 0]
        share = shares(bags)
        covered = (low <= y) & (y <= high)
        width = high - low
        return {
            "coverage": BagMean(COVERAGE_TITLE, covered, share),
            "coverage_of_bags": BagMean(COVERAGE_OF_BAGS_TITLE, covered, np.ones(len(covered))),
            "width": BagMean("mean width, in the unit of the target", width, share, is_size=True),
            "below": BagMean("share of values below their interval", y < low, share),
            "above": BagMean("share of values above their interval", y > high, share),
        }

    return Guarantee(
        key="intervals",
        values={
            "coverage": options.coverage,
            "rule": text,
            "half_width": half_width,
            "adapts": adapts,
            "calibration_groups": count,
            "band": bands.bands["all"],
            "band_of_this_test": bands.in_test.get("all"),
        },
        lines=[f"intervals at a coverage of {options.coverage:.3g}: {text}", *bands.lines],
        columns={"low": [f"{v:.6g}" for v in low], "high": [f"{v:.6g}" for v in high]},
        summary={"coverage": options.coverage, "bands": bands.bands, "limits": text},
        means=means,
    )


def _spread(bags: Context) -> Float[np.ndarray, " bags"]:
    """Return the predicted standard deviation of each bag, by which its interval is scaled.

    Raises:
        InputError: one is not above 0; names the bag.
    """
    spread = bags.output("sd")
    if not (spread > 0).all():
        first = int(np.argmin(spread > 0))
        raise InputError(
            f"bag {bags.names[first]!r} has the predicted standard deviation {spread[first]:g}, "
            "expected a number above 0: predict it again, or take intervals of one width (score "
            "lac)"
        )
    return spread


def _set_scores(bags: Context, score: SetScore) -> Float[np.ndarray, "bags classes"]:
    """Return the nonconformity score of each class of each bag.

    The random part of `aps` depends on the name of the bag alone, so that a bag always has the same
    set.
    """
    if score == "lac":
        return 1 - bags.p
    u = [np.random.default_rng(seed_of("aps", name)).random() for name in bags.names]
    return aps_scores(bags.p, u=np.array(u, dtype=np.float64))


def check_groups(count: int, *, coverage: float, what: str = "calibration bags") -> None:
    """Check that there are enough calibration groups for a coverage.

    Raises:
        UnmetGuarantee: there are fewer; says how many are needed, and which level is possible.
    """
    least = least_groups(1 - coverage)
    if count < least:
        possible = f", or give --coverage {1 - smallest_alpha(count):.3g}" if count else ""
        raise UnmetGuarantee(
            f"--coverage {coverage:g} needs {what} of at least {least} groups (patients), but "
            f"there are {count}: add calibration bags{possible}"
        )


class CoverageBands(NamedTuple):
    """Where the realised coverage lies for 9 of 10 calibration sets, of all bags or by class."""

    bands: Bands
    in_test: Bands
    """The same for as many groups as are evaluated, which is wider; empty for new bags."""
    lines: list[str]
    """Both in sentences."""


def _bands(groups: Mapping[str, int], bags: Context, *, coverage: float) -> CoverageBands:
    """Return the bands for each part of `groups`; see `check_groups` for the error.

    groups: the number of calibration groups, of `all` bags or by class.
    """
    names = bags.predictions.class_names
    bands: Bands = {}
    in_test: Bands = {}
    lines: list[str] = []
    for part, count in groups.items():
        class_text = "" if part == "all" else f" of class {part}"
        check_groups(count, coverage=coverage, what=f"calibration bags{class_text}")
        low, high = coverage_band(count, alpha=1 - coverage)
        bands[part] = (low, high)
        test_text = ""
        if bags.part != "new":
            among = None if part == "all" else bags.y == names.index(part)
            tested = max(1, round(shares(bags, among=among).sum()))
            near, far = coverage_band(count, test_groups=tested, alpha=1 - coverage)
            in_test[part] = (near, far)
            test_text = f", and between {near:.3f} and {far:.3f} in a test of this size"
        lines.append(
            f"  {count} calibration groups{class_text}: the realised coverage is between {low:.3f} "
            f"and {high:.3f} for 9 of 10 calibration sets of this size{test_text}"
        )
    return CoverageBands(bands, in_test, lines)


# Accepted calls


def accepted_calls(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Accept calls from the lowest confidence on that the calibration bags certify.

    The thresholds accept stated shares of `bags`: calibration only decides between them.

    Raises:
        UnmetGuarantee: there are too few groups even if all are accepted without an error.
    """
    assert options.max_error is not None
    groups = len(set(calibration.groups))
    one_each = groups == len(calibration.groups)
    least = least_accepted(max_error=options.max_error, delta=DELTA, one_each=one_each)
    if groups < least:
        raise UnmetGuarantee(
            f"--max-error {options.max_error:g} needs at least {least} calibration groups "
            f"(patients), all accepted without an error, but there are {groups}: add calibration "
            "bags or allow a larger error rate"
        )
    rule = certified_threshold(
        _candidates(bags, groups=groups, max_error=options.max_error),
        confidence=confidence(calibration),
        wrong=calibration.called != calibration.y,
        groups=calibration.groups,
        max_error=options.max_error,
        delta=DELTA,
    )
    accepted = rule.accepts(confidence(bags))
    threshold = rule.threshold
    tried = "the strictest threshold that was tried" if threshold is None else "this threshold"
    undecided = _undecided(bags, threshold)
    promise = {
        "max_error": options.max_error,
        "certified": threshold is not None,
        "undecided": undecided,
    }
    errors = "" if rule.error is None else f", of which {rule.error:.1%} are wrong"

    def means() -> Means:
        wrong = bags.called != bags.y
        share = shares(bags)
        return {
            "accepted": BagMean("share of accepted calls", accepted, share),
            "error_of_accepted": BagMean("their error rate", wrong, share * accepted),
            "error_of_all": BagMean("error rate of all calls", wrong, share),
        }

    return Guarantee(
        key="accepted",
        values={
            **promise,
            "delta": DELTA,
            "threshold_log_odds": None if threshold == -np.inf else threshold,
            "calibration_groups": groups,
            "calibration_accepted": rule.accepted,
            "calibration_error": rule.error,
            "p_value": rule.p_value,
        },
        lines=[
            f"accepted calls: {_acceptance_text(threshold, undecided)}; with a probability of "
            f"{1 - DELTA:.3g}, at most {options.max_error:.1%} of them are wrong",
            f"  {groups} calibration groups: {tried} accepts {rule.accepted:.1%} of their calls"
            f"{errors} (p-value {rule.p_value:.2g})",
            f"  {accepted.sum()} of these {len(accepted)} calls are accepted",
        ],
        columns={"accepted": np.where(accepted, "yes", "no").tolist()},
        summary={**promise, "accepted": int(accepted.sum())},
        means=means,
    )


def _candidates(bags: Context, *, groups: int, max_error: float) -> Float[np.ndarray, " tried"]:
    """Return thresholds of the confidence that accept rising shares of the bags, at last all."""
    least = least_accepted(max_error=max_error, delta=DELTA, one_each=True)
    smallest_share = min(1.0, START * least / groups)
    accepted_shares = np.append(np.arange(smallest_share, 1 - STEP / 2, STEP), 1.0)
    thresholds = np.quantile(confidence(bags), 1 - accepted_shares, method="lower")
    thresholds[-1] = -np.inf
    return thresholds


def _undecided(bags: Context, threshold: float | None) -> list[float] | None:
    """Return between which p(Y = 1) calls of two classes are not accepted; None if all or none are.

    threshold: the confidence from which calls are accepted; None for none.
    """
    if threshold is None or threshold == -np.inf or not bags.task.two_classes:
        return None
    limits = _log_odds(np.array(bags.threshold)) + threshold * np.array([-1, 1])
    return expit(limits).tolist()


def _acceptance_text(threshold: float | None, undecided: Sequence[float] | None) -> str:
    """Say which calls are accepted."""
    if threshold is None:
        return "none can be certified"
    if threshold == -np.inf:
        return "every call is accepted"
    if undecided is None:
        return f"calls with log odds of at least {threshold:.3f} are accepted"
    low, high = undecided
    return f"calls with p ≤ {low:.4g} or p ≥ {high:.4g} are accepted"


def confidence(bags: Context) -> Float[np.ndarray, " bags"]:
    """Return how far each probability is from where the call would change, in log odds.

    With two classes, this is the distance |logit p - logit t| from the threshold t.
    """
    log_odds = _log_odds(bags.p)
    if bags.task.two_classes:
        return np.abs(log_odds[:, 1] - _log_odds(np.array(bags.threshold)))
    return log_odds[np.arange(len(log_odds)), bags.called]


def _log_odds(p: np.ndarray) -> Any:
    """Return the log odds of probabilities; those of 0 and 1 are finite."""
    return logit(np.clip(p, SMALLEST, 1 - SMALLEST))


# Calibration bags


def calibration_bags(bags: Context, folder: Path | None) -> Context:
    """Return the labelled calibration bags, which share no bag and no group with `bags`.

    They are the validation bags of the same predictions, or the test and new bags of another
    folder (its validation bags, if it has no others).

    Raises:
        InputError: there are none, they are of another model, their groups are unknown, or a bag
            or group is on both sides.
    """
    if folder is None:
        calibration = bags.validation
    else:
        calibration = _of_folder(bags, read_predictions(folder))
    if not calibration.rows:
        raise InputError(
            f"{calibration.predictions.title} has no labelled validation bags besides those "
            "evaluated: name a predictions folder of other bags, with labels, with --calibration"
        )
    # keys of both at once, so that a bag without a group has a key unlike all others
    keys = group_keys([*bags.names, *calibration.names], calibration.truth.group)
    groups = keys[: len(bags.names)]
    calibration_groups = keys[len(bags.names) :]
    _check_disjoint("bag", bags.names, calibration.names)
    _check_disjoint("group", groups, calibration_groups)
    return calibration


def _check_disjoint(what: str, names: Sequence[str], calibration_names: Sequence[str]) -> None:
    """Refuse bags, or groups, that are on both sides."""
    shared = set(names) & set(calibration_names)
    if shared:
        in_order = [name for name in dict.fromkeys(names) if name in shared]
        raise InputError(
            f"{listed(in_order, what=what)} are among both the calibration bags and the bags that "
            "the guarantees are for, which makes guarantees void: keep patients on one side"
        )


def _of_folder(bags: Context, predictions: Predictions) -> Context:
    """Return the calibration bags among other predictions of the same model."""
    traits = _traits_of_model(bags.predictions)
    other_traits = _traits_of_model(predictions)
    for key, value in traits.items():
        if value != other_traits.get(key, value):
            raise InputError(
                f"{bags.predictions.title} and {predictions.title} are of different models: "
                f"{key} is {value} and {other_traits[key]}. Calibrate with predictions of the same "
                "model"
            )
    truth = replace(
        bags.truth,
        targets={**stored_targets(predictions), **bags.truth.targets},
        group={**predictions.group_of, **bags.truth.group},
    )
    rows = labelled_rows(predictions, truth)
    part = "test" if rows["test"] else "val"
    calibration = replace(bags, predictions=predictions, truth=truth, part=part, rows=rows[part])
    without_group = [name for name in calibration.names if name not in truth.group]
    if truth.group and without_group:
        raise InputError(
            f"the groups of bags are known, but not those of {listed(without_group)} of "
            f"{predictions.title}: list the calibration bags in the same table of labels"
        )
    return calibration


def _traits_of_model(predictions: Predictions) -> dict[str, Any]:
    """Return what differs between models, as far as predictions state it."""
    entries = predictions.metadata.to_dict()
    traits = {"task": predictions.task, "classes": ", ".join(predictions.class_names)}
    return traits | {key: entries[key] for key in OF_MODEL if key in entries}


def _cautions(bags: Context, calibration: Context) -> tuple[Caution, ...]:
    """Return what speaks against guarantees."""
    cautions = []
    if calibration.part == "val":
        cautions.append(Caution.CHOSEN_ON_CALIBRATION)
    if not bags.truth.group:
        cautions.append(Caution.NO_GROUPS)
    if bags.part in ("train", "all"):
        cautions.append(Caution.NOT_FOR_TRAINING_BAGS)
    return tuple(cautions)


def _caution_text(cautions: Sequence[Caution]) -> str | None:
    """Return the cautions in words; None without any."""
    return "; ".join(CAUTIONS[caution] for caution in cautions) or None


# The report and the table of new bags


class Guaranteed(NamedTuple):
    """The requested guarantees for some bags."""

    calibration: Context
    """The calibration bags."""
    guarantees: list[Guarantee]
    unmet: dict[str, str]
    """Why others are missing, by flag."""
    cautions: tuple[Caution, ...]


def guaranteed(bags: Context, options: GuaranteeOptions) -> Guaranteed:
    """Return the requested guarantees.

    Raises:
        InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
        UnmetGuarantee: none can be given; gives every reason.
    """
    task = bags.task
    refused = {
        "--coverage makes sets of classes or intervals of numbers": (
            options.coverage and not task.coverage_by
        ),
        "--per-class is for classes": options.per_class and task.coverage_by == "intervals",
        "--max-error accepts calls of classes": options.max_error and not task.has_classes,
    }
    for reason, does_not_apply in refused.items():
        if does_not_apply:
            raise InputError(f"{reason}, and the task is {task.name}: leave it out")
    calibration = calibration_bags(bags, options.calibration)
    requested = {}
    if options.coverage:
        requested["--coverage"] = prediction_sets if task.coverage_by == "sets" else intervals
    if options.max_error:
        requested["--max-error"] = accepted_calls
    guarantees: list[Guarantee] = []
    unmet: dict[str, str] = {}
    for flag, calibrate in requested.items():
        try:
            guarantees.append(calibrate(calibration, bags, options))
        except UnmetGuarantee as error:
            unmet[flag] = str(error)
    if not guarantees:
        many = f"{len(unmet)} guarantees cannot be given: " if len(unmet) > 1 else ""
        raise UnmetGuarantee(many + "; ".join(unmet.values()))
    return Guaranteed(calibration, guarantees, unmet, _cautions(bags, calibration))


def _origin(calibration: Context, options: GuaranteeOptions) -> str:
    """Return which bags calibrate, in words."""
    if options.calibration is None:
        return "(the validation bags of these predictions)"
    return f"(the {calibration.part} bags of {options.calibration})"


def guarantees_section(context: Context, options: GuaranteeOptions) -> Section:
    """Return the requested guarantees and whether they held; see `guaranteed` for the errors."""
    calibration, guarantees, unmet, cautions = guaranteed(context, options)
    bags = len(calibration.rows)
    groups = len(set(calibration.groups))
    origin = _origin(calibration, options)
    values: dict[str, Any] = {
        "calibration": origin,
        "calibration_bags": bags,
        "calibration_groups": groups,
    }
    text = [f"guarantees, from {bags} calibration bags of {groups} groups {origin}"]
    for guarantee in guarantees:
        text += guarantee.lines
        metrics: dict[str, Metric] = {}
        for key, mean in guarantee.means().items():
            m = metrics[key] = mean.metric(context)
            text.append(f"    {mean.title}: {m if m.value is not None else f'- ({m.reason})'}")
        values[guarantee.key] = {**guarantee.values, "metrics": metrics}
    caution = _caution_text(cautions)
    if caution is not None:
        text.append(f"caution: {caution}")
    text += [f"not guaranteed: {reason}" for reason in unmet.values()]
    values |= {"caution": caution, "unmet": unmet}
    return Section("guarantees", values, text=text, cautions=cautions, on_request=True)


def _is_table_of_sets(path: Path) -> bool:
    """Return whether a file has the columns that `write_sets` writes, and no others."""
    try:
        header = TextTable.read(path).columns
    except TableError:
        return False
    first, *others = header or [""]
    names = {"set", "low", "high", "accepted", "marked"}  # `marked` was written by 0.2
    are_of_sets = [column in names or column.startswith(P_VALUE) for column in others]
    return first == "bag" and bool(others) and all(are_of_sets)


def write_sets(
    folder: Path | str,
    options: GuaranteeOptions,
    *,
    out: Path | str,
    labels: Path | str | None = None,
    classes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Section:
    """Write guarantees of the test and new bags of a predictions folder, without their labels.

    The table has the columns bag, set (class names joined by `|`), p_value_<class>; and accepted,
    with `options.max_error`. For numbers it has the columns bag, low and high.

    Args:
        folder: predictions folder of the new bags.
        options: the requested guarantees, and the calibration bags.
        out: the CSV table to write.
        labels: table with the labels and groups of the calibration bags; None for the labels that
            are stored with their predictions.
        classes: class names in the order of their index, if the labels of the table are names.
        overwrite: replace an existing table.

    Raises:
        OutputExists: the table exists and `overwrite` is not set, or it is another table.
        InputError: there are no new bags, or see `guaranteed`.
        UnmetGuarantee: a request cannot be met, so that the table would lack columns.
    """
    folder = Path(folder)
    out = Path(out)
    labels = optional_path(labels)
    if out.exists() and not overwrite:
        raise OutputExists(f"{out} exists: give another --out, or --overwrite")
    if out.exists() and not _is_table_of_sets(out):
        raise OutputExists(f"{out} is not a table that probsa sets wrote: give another --out")
    predictions = read_predictions(folder)
    rows = tuple(i for i, part in enumerate(predictions.parts) if part not in SEEN)
    if not rows:
        raise InputError(
            f"{folder} has only training and validation bags, for which nothing can be "
            "guaranteed: predict new bags with `probsa predict`"
        )
    truth = read_truth(predictions, labels, classes=classes)
    threshold = threshold_of(predictions, truth)
    new = Context(
        predictions=predictions,
        truth=truth,
        part="new",
        rows=rows,
        threshold=None if threshold is None else threshold.value,
        bootstrap=0,
        seed=0,
    )
    calibration, guarantees, unmet, cautions = guaranteed(new, options)
    if unmet:
        raise UnmetGuarantee("; ".join(unmet.values()))
    columns: dict[str, Sequence[str]] = {"bag": new.names}
    values = dict(NOT_REQUESTED)
    lines: list[str] = []
    for guarantee in guarantees:
        columns |= guarantee.columns
        values |= guarantee.summary
        lines += guarantee.lines
    write_csv(out, list(columns), pd.DataFrame(columns).to_dict("records"))
    bags = counted(len(calibration.rows), "bag")
    groups = counted(len(set(calibration.groups)), "group")
    origin = f"{bags} of {groups} {_origin(calibration, options)}"
    about = {"table": str(out), "bags": len(rows), "calibration": origin}
    text = [f"{out}: {counted(len(rows), 'bag')}, calibrated with {origin}", *lines]
    caution = _caution_text(cautions)
    if caution is not None:
        text.append(f"caution: {caution}")
    return Section("sets", {**about, **values, "caution": caution}, text=text, cautions=cautions)

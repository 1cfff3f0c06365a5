"""Guarantees from calibration bags: sets of classes, intervals, accepted calls.

They hold if nothing but chance decides which groups (patients) calibrated. In every mean over bags,
each group counts once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
from .context import SEEN, Context, labelled_rows, read_truth, stored_targets, threshold_of
from .section import Section
from .storage import Predictions, listed, read_predictions

SetScore = Literal["lac", "aps"]
"""The score of a class: 1 - p, or the probability of the more probable classes and a random part
of its own. Of a number: the distance from the predicted mean, or that in predicted standard
deviations."""
TITLES = {
    "coverage": "realised coverage (groups count once)",
    "coverage_of_bags": "… if bags count equally (not promised)",
    "set_size": "mean number of classes in a set",
    "empty_sets": "share of empty sets",
    "single_sets": "share of sets of one class",
    "larger_sets": "share of sets of several classes",
    "error_of_single_sets": "error rate of sets of one class (not promised)",
    "width": "mean width, in the unit of the target",
    "below": "share of values below their interval",
    "above": "share of values above their interval",
    "accepted": "share of accepted calls",
    "error_of_accepted": "their error rate",
    "error_of_all": "error rate of all calls",
}
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
Means = Mapping[str, tuple[Shaped[np.ndarray, " bags"], Shaped[np.ndarray, " bags"]]]
"""Values of bags and their weights, by the name of their mean."""
Bands = dict[str, tuple[float, float]]


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

    def metrics(self, bags: Context) -> dict[str, Metric]:
        """Return Σ weight · value / Σ weight of each of `means`, in the data and each resample."""
        metrics = {}
        for name, (value, weight) in self.means().items():
            scale = SHARE if value.dtype == np.bool_ else MEAN_SHARE
            metrics[name] = Metric.of(
                bags.draws.ratio(weight * value, weight),
                support=bags.draws.support({None: weight > 0}),
                scale=LOSS if name in ("set_size", "width") else scale,
                reason="no such bags",
            )
        return metrics


def shares(
    bags: Context, *, among: Bool[np.ndarray, " bags"] | None = None
) -> Float[np.ndarray, " bags"]:
    """Return the share of each bag in its group; bags that are not `among` them have none."""
    rows = np.arange(len(bags.rows)) if among is None else np.flatnonzero(among)
    found = np.zeros(len(bags.rows))
    found[rows] = group_shares([bags.groups[i] for i in rows])[0]
    return found


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
    bands, in_test, lines = _bands(counts, bags, coverage=options.coverage)
    kind = "per class" if options.per_class else "over all classes"
    first = f"prediction sets ({options.score}) at a coverage of {options.coverage:.3g} {kind}"
    scores = _set_scores(bags, options.score)
    inside, p_values = rule.sets(scores), zip(names, rule.p_values(scores).T, strict=True)
    size = inside.sum(1)
    sizes = dict(enumerate(np.bincount(size, minlength=len(names) + 1).tolist()))

    def means() -> Means:
        covered, share = inside[np.arange(len(inside)), bags.y], shares(bags)
        of_class = {name: shares(bags, among=bags.y == c) for c, name in enumerate(names)}
        return {
            "coverage": (covered, share),
            "coverage_of_bags": (covered, np.ones(len(covered))),
            **{f"coverage_{name}": (covered, weight) for name, weight in of_class.items()},
            "set_size": (size, share),
            "empty_sets": (size == 0, share),
            "single_sets": (size == 1, share),
            "larger_sets": (size > 1, share),
            "error_of_single_sets": (~covered, share * (size == 1)),
        }

    return Guarantee(
        key="sets",
        values={
            "coverage": options.coverage,
            "method": options.score,
            "per_class": options.per_class,
            "thresholds": dict(zip(names, rule.thresholds.tolist(), strict=True)),
            "calibration_groups": counts,
            "bands": bands,
            "bands_of_this_test": in_test,
        },
        lines=[first, *lines, f"  sets: {', '.join(f'{n} of size {k}' for k, n in sizes.items())}"],
        columns={
            "set": ["|".join(np.array(names)[row]) for row in inside],
            **{f"p_value_{name}": [f"{v:.6g}" for v in column] for name, column in p_values},
        },
        summary={"coverage": options.coverage, "bands": bands, "sizes": sizes},
        means=means,
    )


def intervals(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Return intervals around the predicted mean that contain the number of a bag.

    Raises:
        UnmetGuarantee: there are too few calibration groups; says how many are needed.
    """
    assert options.coverage is not None
    adapts, count = options.score == "aps", len(set(calibration.groups))
    bands, in_test, lines = _bands({"all": count}, bags, coverage=options.coverage)
    known, spread = (_spread(of) if adapts else np.ones(len(of.rows)) for of in (calibration, bags))
    half_width = conformal_half_width(
        calibration.targets[:, 0],
        calibration.output("mean"),
        groups=calibration.groups,
        alpha=1 - options.coverage,
        spread=known,
    )
    low, high = bags.output("mean") + half_width * np.stack([-spread, spread])
    unit = " predicted standard deviations" if adapts else ""
    text = f"the predicted mean ± {half_width:.4g}{unit}"

    def means() -> Means:
        y, share = bags.targets[:, 0], shares(bags)
        covered = (low <= y) & (y <= high)
        return {
            "coverage": (covered, share),
            "coverage_of_bags": (covered, np.ones(len(covered))),
            "width": (high - low, share),
            "below": (y < low, share),
            "above": (y > high, share),
        }

    return Guarantee(
        key="intervals",
        values={
            "coverage": options.coverage,
            "rule": text,
            "half_width": half_width,
            "adapts": adapts,
            "calibration_groups": count,
            "band": bands["all"],
            "band_of_this_test": in_test.get("all"),
        },
        lines=[f"intervals at a coverage of {options.coverage:.3g}: {text}", *lines],
        columns={"low": [f"{v:.6g}" for v in low], "high": [f"{v:.6g}" for v in high]},
        summary={"coverage": options.coverage, "bands": bands, "limits": text},
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


def _bands(
    groups: Mapping[str, int], bags: Context, *, coverage: float
) -> tuple[Bands, Bands, list[str]]:
    """Return where the realised coverage lies for 9 of 10 calibration sets of this size.

    It is given for each part of `groups`, the number of calibration groups of all bags or by class.
    The second value is the same for the coverage of as many groups as are evaluated, which is
    wider, and not known for new bags; the third has both as sentences. See `check_groups` for the
    error.
    """
    names, bands, in_test, lines = bags.predictions.class_names, {}, {}, []
    for part, count in groups.items():
        of_class, test = "" if part == "all" else f" of class {part}", ""
        check_groups(count, coverage=coverage, what=f"calibration bags{of_class}")
        low, high = bands[part] = coverage_band(count, alpha=1 - coverage)
        if bags.part != "new":
            among = None if part == "all" else bags.y == names.index(part)
            tested = max(1, round(shares(bags, among=among).sum()))
            near, far = coverage_band(count, test_groups=tested, alpha=1 - coverage)
            in_test[part] = near, far
            test = f", and between {near:.3f} and {far:.3f} in a test of this size"
        lines.append(
            f"  {count} calibration groups{of_class}: the realised coverage is between {low:.3f} "
            f"and {high:.3f} for 9 of 10 calibration sets of this size{test}"
        )
    return bands, in_test, lines


# Accepted calls


def accepted_calls(calibration: Context, bags: Context, options: GuaranteeOptions) -> Guarantee:
    """Accept calls from the lowest confidence on that the calibration bags certify.

    The thresholds accept stated shares of `bags`: calibration only decides between them.

    Raises:
        UnmetGuarantee: there are too few groups even if all are accepted without an error.
    """
    assert options.max_error is not None
    groups = len(set(calibration.groups))
    least, least_of_one_each = (
        least_accepted(max_error=options.max_error, delta=DELTA, one_each=one_each)
        for one_each in (groups == len(calibration.groups), True)
    )
    if groups < least:
        raise UnmetGuarantee(
            f"--max-error {options.max_error:g} needs at least {least} calibration groups "
            f"(patients), all accepted without an error, but there are {groups}: add calibration "
            "bags or allow a larger error rate"
        )
    strictest = min(1.0, START * least_of_one_each / groups)
    strictness = np.append(np.arange(strictest, 1 - STEP / 2, STEP), 1.0)
    thresholds = np.quantile(confidence(bags), 1 - strictness, method="lower")
    thresholds[-1] = -np.inf
    rule = certified_threshold(
        thresholds,
        confidence=confidence(calibration),
        wrong=calibration.called != calibration.y,
        groups=calibration.groups,
        max_error=options.max_error,
        delta=DELTA,
    )
    accepted = rule.accepts(confidence(bags))
    threshold, tried, undecided = rule.threshold, "this threshold", None
    if threshold is None:
        which, tried = "none can be certified", "the strictest threshold that was tried"
    elif threshold == -np.inf:
        which = "every call is accepted"
    elif bags.task.two_classes:
        limits = _log_odds(np.array(bags.threshold)) + threshold * np.array([-1, 1])
        low, high = undecided = expit(limits).tolist()
        which = f"calls with p ≤ {low:.4g} or p ≥ {high:.4g} are accepted"
    else:
        which = f"calls with log odds of at least {threshold:.3f} are accepted"
    promised = {
        "max_error": options.max_error,
        "certified": threshold is not None,
        "undecided": undecided,
    }
    seen = "" if rule.error is None else f", of which {rule.error:.1%} are wrong"

    def means() -> Means:
        wrong, share = bags.called != bags.y, shares(bags)
        return {
            "accepted": (accepted, share),
            "error_of_accepted": (wrong, share * accepted),
            "error_of_all": (wrong, share),
        }

    return Guarantee(
        key="accepted",
        values={
            **promised,
            "delta": DELTA,
            "threshold_log_odds": None if threshold == -np.inf else threshold,
            "calibration_groups": groups,
            "calibration_accepted": rule.accepted,
            "calibration_error": rule.error,
            "p_value": rule.p_value,
        },
        lines=[
            f"accepted calls: {which}; with a probability of {1 - DELTA:.3g}, at most "
            f"{options.max_error:.1%} of them are wrong",
            f"  {groups} calibration groups: {tried} accepts {rule.accepted:.1%} of their calls"
            f"{seen} (p-value {rule.p_value:.2g})",
            f"  {accepted.sum()} of these {len(accepted)} calls are accepted",
        ],
        columns={"accepted": np.where(accepted, "yes", "no").tolist()},
        summary={**promised, "accepted": int(accepted.sum())},
        means=means,
    )


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
    found = bags.validation if folder is None else _of_folder(bags, read_predictions(folder))
    if not found.rows:
        raise InputError(
            f"{found.predictions.folder} has no labelled validation bags besides those evaluated: "
            "name a predictions folder of other bags, with labels, with --calibration"
        )
    keys = group_keys([*bags.names, *found.names], found.truth.group)
    groups = keys[: len(bags.names)], keys[len(bags.names) :]
    both = {"bag": (bags.names, found.names), "group": groups}
    for what, (one, other) in both.items():
        shared = set(other)
        if names := [name for name in dict.fromkeys(one) if name in shared]:
            raise InputError(
                f"{listed(names, what=what)} are among both the calibration bags and the bags that "
                "the guarantees are for, which makes guarantees void: keep patients on one side"
            )
    return found


def _of_folder(bags: Context, predictions: Predictions) -> Context:
    """Return the calibration bags among other predictions of the same model."""
    traits = _traits_of_model(bags.predictions)
    other_traits = _traits_of_model(predictions)
    for key, value in traits.items():
        if value != other_traits.get(key, value):
            raise InputError(
                f"{bags.predictions.folder} and {predictions.folder} are of different models: "
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
    found = replace(bags, predictions=predictions, truth=truth, part=part, rows=rows[part])
    unknown = [name for name in found.names if name not in truth.group]
    if truth.group and unknown:
        raise InputError(
            f"the groups of bags are known, but not those of {listed(unknown)} of "
            f"{predictions.folder}: list the calibration bags in the same table of labels"
        )
    return found


def _traits_of_model(predictions: Predictions) -> dict[str, Any]:
    """Return what differs between models, as far as predictions state it."""
    entries = predictions.metadata.to_dict()
    traits = {"task": predictions.task, "classes": ", ".join(predictions.class_names)}
    return traits | {key: entries[key] for key in OF_MODEL if key in entries}


def _caution(bags: Context, calibration: Context) -> str | None:
    """Return why guarantees hold only approximately; None where nothing speaks against them."""
    reasons = {
        "the model's weights and threshold were chosen on the calibration bags, so it may do worse "
        "on new bags; give --calibration with bags that the run has not seen": calibration.part
        == "val",
        "no groups are known, so every bag counts as one patient; if patients have several bags, "
        "give --labels with a column group": not bags.truth.group,
        "training bags are evaluated, for which nothing is promised": bags.part in ("train", "all"),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds) or None


# The report and the table of new bags


def guaranteed(
    bags: Context, options: GuaranteeOptions
) -> tuple[Context, list[Guarantee], dict[str, str]]:
    """Return the calibration bags, the requested guarantees, and by flag why others are missing.

    Raises:
        InputError: the calibration bags cannot be used, or the task cannot have a guarantee.
        UnmetGuarantee: none can be given; gives every reason.
    """
    task, by = bags.task, bags.task.coverage_by
    refused = {
        "--coverage makes sets of classes or intervals of numbers": options.coverage and not by,
        "--per-class is for classes": options.per_class and by == "intervals",
        "--max-error accepts calls of classes": options.max_error and not task.has_classes,
    }
    for reason in (reason for reason, holds in refused.items() if holds):
        raise InputError(f"{reason}, and the task is {task.name}: leave it out")
    calibration = calibration_bags(bags, options.calibration)
    kinds = (
        ("--coverage", options.coverage, prediction_sets if by == "sets" else intervals),
        ("--max-error", options.max_error, accepted_calls),
    )
    found, unmet = [], {}
    for flag, level, calibrated in kinds:
        try:
            found += [calibrated(calibration, bags, options)] if level else []
        except UnmetGuarantee as error:
            unmet[flag] = str(error)
    if not found:
        many = f"{len(unmet)} guarantees cannot be given: " if len(unmet) > 1 else ""
        raise UnmetGuarantee(many + "; ".join(unmet.values()))
    return calibration, found, unmet


def _origin(calibration: Context, options: GuaranteeOptions) -> str:
    """Return which bags calibrate, in words."""
    if options.calibration is None:
        return "(the validation bags of these predictions)"
    return f"(the {calibration.part} bags of {options.calibration})"


def guarantees_section(context: Context, options: GuaranteeOptions) -> Section:
    """Return the requested guarantees and whether they held; see `guaranteed` for the errors."""
    calibration, guarantees, unmet = guaranteed(context, options)
    caution = _caution(context, calibration)
    bags, groups = len(calibration.rows), len(set(calibration.groups))
    origin = _origin(calibration, options)
    about = {"calibration": origin, "calibration_bags": bags, "calibration_groups": groups}
    text, values = [f"guarantees, from {bags} calibration bags of {groups} groups {origin}"], {}
    for guarantee in guarantees:
        metrics = guarantee.metrics(context)
        values[guarantee.key] = {**guarantee.values, "metrics": metrics}
        text += guarantee.lines
        for name, m in metrics.items():
            title = TITLES.get(name, f"coverage of class {name.removeprefix('coverage_')}")
            text.append(f"    {title}: {m if m.value is not None else f'- ({m.reason})'}")
    if caution is not None:
        text.append(f"caution: {caution}")
    text += [f"not guaranteed: {why}" for why in unmet.values()]
    values = {**about, **values, "caution": caution, "unmet": unmet}
    return Section("guarantees", values, text=text)


def _is_table_of_sets(path: Path) -> bool:
    """Return whether a file has the columns that `write_sets` writes, and no others."""
    try:
        header = TextTable.read(path).columns
    except TableError:
        return False
    first, *others = header or [""]
    known = {"set", "low", "high", "accepted", "marked"}  # `marked` was written by 0.2
    return (
        first == "bag"
        and bool(others)
        and all(c in known or c.startswith("p_value_") for c in others)
    )


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
    folder, out, labels = Path(folder), Path(out), optional_path(labels)
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
    calibration, guarantees, unmet = guaranteed(new, options)
    if unmet:
        raise UnmetGuarantee("; ".join(unmet.values()))
    caution = _caution(new, calibration)
    columns: dict[str, Sequence[str]] = {"bag": new.names}
    values, lines = dict(NOT_REQUESTED), []
    for guarantee in guarantees:
        columns |= guarantee.columns
        values |= guarantee.summary
        lines += guarantee.lines
    write_csv(out, list(columns), pd.DataFrame(columns).to_dict("records"))
    bags, groups = counted(len(calibration.rows), "bag"), len(set(calibration.groups))
    origin = f"{bags} of {counted(groups, 'group')} {_origin(calibration, options)}"
    about = {"table": str(out), "bags": len(rows), "calibration": origin}
    text = [f"{out}: {counted(len(rows), 'bag')}, calibrated with {origin}", *lines]
    if caution is not None:
        text.append(f"caution: {caution}")
    return Section("sets", {**about, **values, "caution": caution}, text=text)

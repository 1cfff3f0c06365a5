"""The paper's figures 5 to 16: attention maps of a bag, chosen by a rule, by several methods.

Hand-picked examples would be misleading: unless bags are named, each is the median of its kind, and
the caption says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from ...errors import ProbSAError, UnknownName
from ...evaluation import Prediction, read_predictions
from ...maps import Sources, side_by_side
from ...slides import Slide
from ..results.results import read_results
from ..results.sampling import means_of
from ..results.scores import Scores, by_data
from .style import FigureFiles

RIVALS = 4
"""Number of rival methods, as in the paper."""
ALONE = 6
"""Number of methods shown if none of them is ProbSA."""


class ChosenBag(NamedTuple):
    """A bag, and why it was chosen."""

    bag: str
    why: str


def attention_figures(
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    sources: Mapping[str, Sources] = MappingProxyType({}),
) -> FigureFiles:
    """Write `out`/figures/attention-<data>-<bag>.png, with the values as CSV beside it.

    Args:
        out: The experiment's folder.
        bags: Names of bags of any data set; None: for each data set a correctly called positive
            bag, a missed one and a negative one, each the median of its kind.
        methods: Names or labels in drawing order; None: ProbSA, its baseline and the four rivals
            with the best AUROC.
        seed: Seed of the runs; a method without runs of this seed uses its first.
        sources: The slides or scans of data sets, drawn above the maps.

    Raises:
        UnknownName: A bag or a method is not in the experiment.
        InputError: There is no finished run below `out`.
    """
    results = read_results(out)
    test_bags = {b for s in results.scores for b in s.bags}
    for bag in bags or ():
        if bag not in test_bags:
            raise UnknownName("test bag in the experiment", bag, test_bags)
    method_names = {name for s in results.scores for name in _names(s)}
    for method in methods or ():
        if method not in method_names:
            raise UnknownName("method in the experiment", method, method_names)
    files = FigureFiles()
    for data, data_scores in by_data(results.two_classes).items():
        if methods is None:
            shown = default_methods(data_scores)
        else:
            shown = _requested(data_scores, methods)
        if not shown:
            reason = "none of the methods was run on it"
            files += FigureFiles(missing=((f"attention-{data}", reason),))
            continue
        reference = next((s for s in reversed(shown) if s.method.baseline), shown[0])
        if bags is None:
            choices, missing = default_bags(reference, seed=seed)
            files += FigureFiles(missing=tuple((f"attention-{data}", why) for why in missing))
        else:
            choices = [ChosenBag(b, "") for b in bags if b in reference.bags]
        for choice in choices:
            files += _draw(out, choice, shown, seed=seed, sources=sources.get(data))
    return files


def _requested(scores: Sequence[Scores], methods: Sequence[str]) -> list[Scores]:
    """Return the scores of these methods in the order of their names, each method once."""
    shown: dict[str, Scores] = {}
    for name in methods:
        for s in scores:
            if name in _names(s):
                shown[s.method.name] = s
    return list(shown.values())


def default_methods(scores: Sequence[Scores]) -> list[Scores]:
    """Return one data set's ProbSA baseline, its Dirac and diagonal posteriors, and the best
    rivals.

    The baseline is the first one in the paper's order that has ProbSA variants. Of several λ, the
    cyclical one is used, or else the first. Rivals are plain methods, ordered by AUROC.
    """
    best = sorted(
        (s for s in scores if s.method.baseline is None),
        key=lambda s: -(means_of(s)["auroc"].mean or 0.0),
    )
    posteriors = [s for s in scores if s.method.baseline is not None]
    if not posteriors:
        return best[:ALONE]
    baseline_model = posteriors[0].method.baseline
    by_model: dict[str, Scores] = {}
    for s in posteriors:
        if s.method.baseline != baseline_model:
            continue
        if s.method.model not in by_model or s.method.kl_weight == "cyclical":
            by_model[s.method.model] = s
    baseline = [s for s in best if s.method.model == baseline_model][:1]
    rivals = [s for s in best if s.method.model != baseline_model][:RIVALS]
    return [*baseline, *(by_model[m] for m in sorted(by_model, reverse=True)), *rivals]


def default_bags(reference: Scores, *, seed: int) -> tuple[list[ChosenBag], list[str]]:
    """Return one bag of each kind, and messages about the kinds without bags.

    The chosen bag has the (lower) median p(Y = 1) of its kind by the reference method.
    """
    r = replicate(reference, seed=seed)
    positive = reference.positive
    called = reference.calls[r]
    kinds: dict[str, Bool[np.ndarray, " bags"]] = {
        "positive bags that are called positive": positive & called,
        "positive bags that are called negative": positive & ~called,
        "negative bags": ~positive,
    }
    choices: list[ChosenBag] = []
    missing: list[str] = []
    for description, is_of_kind in kinds.items():
        rows = np.flatnonzero(is_of_kind)
        if len(rows) == 0:
            missing.append(f"there are no {description} by {reference.method.name}")
            continue
        by_p = rows[np.argsort(reference.p[r, rows], kind="stable")]
        median = by_p[(len(rows) - 1) // 2]
        reason = (
            f"Of {len(rows)} {description}, this one has the median p of {reference.method.name} "
            f"(seed {reference.seed[r]})."
        )
        choices.append(ChosenBag(reference.bags[median], reason))
    return choices, missing


def replicate(scores: Scores, *, seed: int) -> int:
    """Return the first replicate of a seed; the first of all if there is none."""
    matches = np.flatnonzero(scores.seed == seed)
    return int(matches[0]) if len(matches) else 0


def prediction(scores: Scores, bag: str, *, seed: int) -> Prediction:
    """Return the prediction of a bag by the run that tested it.

    Raises:
        BagError: The bag's file is missing or damaged.
    """
    parts = scores.replicates[replicate(scores, seed=seed)]
    row = scores.bags.index(bag)
    run = next(part.path for part in parts if row in part.rows)
    return read_predictions(run / "predictions").instances(bag)


def _draw(
    out: Path,
    choice: ChosenBag,
    shown: Sequence[Scores],
    *,
    seed: int,
    sources: Sources | None,
) -> FigureFiles:
    """Draw the maps of one bag; a method without its prediction is left out."""
    data = shown[0].data
    name = f"attention-{data}-{choice.bag}"
    predictions: dict[str, Prediction] = {}
    missing: list[tuple[str, str]] = []
    for s in shown:
        try:
            predictions[s.method.name] = prediction(s, choice.bag, seed=seed)
        except (ProbSAError, OSError) as error:
            missing.append((name, f"without {s.method.name}: {error}"))
    label = int(shown[0].positive[shown[0].bags.index(choice.bag)])
    path = out / "figures" / f"{name}.png"
    if sources is not None and predictions:
        try:
            source = sources.open(next(iter(predictions.values())))
            if isinstance(source, Slide):
                source.close()
        except (ProbSAError, OSError) as error:
            missing.append((name, f"without its slide: {error}"))
            sources = None
    try:
        side_by_side(
            predictions,
            bag=f"{data} · {choice.bag}",
            out=path,
            label=label,
            caption=choice.why,
            sources=sources,
        )
    except ProbSAError as error:
        return FigureFiles(missing=(*missing, (name, str(error))))
    return FigureFiles(written=(path, path.with_suffix(".csv")), missing=tuple(missing))


def _names(s: Scores) -> tuple[str, ...]:
    """Return the names that a method may be requested by."""
    return s.method.name, s.method.label, s.method.slug

"""The paper's figures 5 to 16: attention maps of one bag by several methods, chosen by rule.

A picture proves nothing, and a chosen one less: unless bags are named, they are the median ones of
their kind, and the caption says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from ...errors import ProbSAError, UnknownName
from ...evaluation import Prediction, read_predictions
from ...maps import CommonScale, side_by_side
from ..results.means import mean_over_splits
from ..results.results import Scores, read_scores, replicates_of
from .made import Made

RIVALS = 4
"""As the paper shows."""
ALONE = 6
"""Methods that are shown where none of them is ProbSA."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A bag, and why it."""

    bag: str
    why: str


def attention_figures(
    out: Path,
    *,
    bags: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    scale: CommonScale = "own",
) -> Made:
    """Writes `out`/figures/attention-<data>-<bag>.png, and the numbers as CSV beside.

    Args:
        out: the experiment's folder.
        bags: their names, of any data set; None: of each data set a positive bag that is rightly
            called, one that is not, and a negative one, each the median of its kind.
        methods: names or labels, in the order to draw; None: ProbSA, its baseline and the four
            rivals with the best AUROC.
        seed: of the runs; where a method has none with it, its first.
        scale: of the colours.

    Raises:
        UnknownName: a bag or a method that the experiment has not.
        InputError: no finished run below `out`.
    """
    every = read_scores(out)
    _refuse_unknown(every, bags=bags, methods=methods)
    made = Made()
    for data in dict.fromkeys(s.data for s in every):
        own = [s for s in every if s.data == data]
        shown = default_methods(own) if methods is None else _named(own, methods)
        if not shown:
            made += Made(missing=((f"attention-{data}", "none of the methods was run on it"),))
            continue
        reference = next((s for s in reversed(shown) if s.method.baseline), shown[0])
        if bags is None:
            chosen, missing = default_bags(reference, seed=seed)
            made += Made(missing=tuple((f"attention-{data}", why) for why in missing))
        else:
            chosen = [Choice(bag=b, why="") for b in bags if b in reference.bags]
        for choice in chosen:
            made += _draw(out, choice, shown, seed=seed, scale=scale)
    return made


def default_methods(scores: Sequence[Scores]) -> list[Scores]:
    """Of one data set: ProbSA's baseline, its Dirac and its diagonal, and the best rivals.

    ProbSA is that on the first baseline in the paper's order; of several λ, cyclical or the first.
    Rivals are plain methods, by their AUROC.
    """
    best = sorted(
        (s for s in scores if s.method.baseline is None),
        key=lambda s: -(mean_over_splits(s, "auroc").mean or 0.0),
    )
    laid = [s for s in scores if s.method.baseline is not None]
    if not laid:
        return best[:ALONE]
    base = laid[0].method.baseline
    own: dict[str, Scores] = {}
    for s in laid:
        if s.method.baseline == base and (
            s.method.model not in own or s.method.kl_weight == "cyclical"
        ):
            own[s.method.model] = s
    baseline = [s for s in best if s.method.model == base][:1]
    rivals = [s for s in best if s.method.model != base][:RIVALS]
    return [*baseline, *(own[m] for m in sorted(own, reverse=True)), *rivals]


def default_bags(reference: Scores, *, seed: int) -> tuple[list[Choice], list[str]]:
    """One bag of each kind, and in words the kinds that have none.

    Of the bags of a kind the one whose p(Y = 1) by the reference method is the (lower) median.
    """
    r = replicate(reference, seed=seed)
    y, called = reference.y == 1, reference.calls[r]
    kinds: list[tuple[str, Bool[np.ndarray, " bags"]]] = [
        ("positive bags that are rightly called", y & called),
        ("positive bags that are called negative", y & ~called),
        ("negative bags", ~y),
    ]
    chosen, missing = [], []
    for words, kind in kinds:
        at = np.flatnonzero(kind)
        if len(at) == 0:
            missing.append(f"there are no {words} by {reference.method.name}")
            continue
        median = at[np.argsort(reference.p[r, at], kind="stable")[(len(at) - 1) // 2]]
        why = (
            f"Of the {len(at)} {words}, the one whose p by {reference.method.name} (seed "
            f"{reference.seed[r]}) is the median."
        )
        chosen.append(Choice(bag=reference.bags[median], why=why))
    return chosen, missing


def replicate(scores: Scores, *, seed: int) -> int:
    """The first replicate of a seed; the first of all where there is none."""
    found = np.flatnonzero(scores.seed == seed)
    return int(found[0]) if len(found) else 0


def prediction(scores: Scores, bag: str, *, seed: int) -> Prediction:
    """What the run that tested a bag says of its instances.

    Raises:
        BagError: the bag's file is missing or damaged.
    """
    r = replicate(scores, seed=seed)
    split = scores.split[r, scores.bags.index(bag)]
    runs = replicates_of(scores)[r]
    name = f"split{split}-seed{scores.seed[r]}"
    run = next(path for path in runs if path.name == name)
    return read_predictions(run / "predictions").instances(bag)


def _draw(
    out: Path, choice: Choice, shown: Sequence[Scores], *, seed: int, scale: CommonScale
) -> Made:
    data = shown[0].data
    name = f"attention-{data}-{choice.bag}"
    found: dict[str, Prediction] = {}
    lost: list[tuple[str, str]] = []
    for s in shown:
        try:
            found[s.method.name] = prediction(s, choice.bag, seed=seed)
        except (ProbSAError, OSError) as error:
            lost.append((name, f"without {s.method.name}: {error}"))
    label = int(shown[0].y[shown[0].bags.index(choice.bag)])
    path = out / "figures" / f"{name}.png"
    try:
        side_by_side(
            found, bag=f"{data} · {choice.bag}", out=path, scale=scale, label=label,
            caption=choice.why,
        )  # fmt: skip
    except ProbSAError as error:
        return Made(missing=(*lost, (name, str(error))))
    return Made(written=(path, path.with_suffix(".csv")), missing=tuple(lost))


def _names(s: Scores) -> tuple[str, ...]:
    """What a method may be called."""
    return s.method.name, s.method.label, s.method.slug


def _named(scores: Sequence[Scores], methods: Sequence[str]) -> list[Scores]:
    def matching() -> Iterator[Scores]:
        for wanted in methods:
            yield from (s for s in scores if wanted in _names(s))

    return list({s.method.name: s for s in matching()}.values())


def _refuse_unknown(
    scores: Sequence[Scores], *, bags: Sequence[str] | None, methods: Sequence[str] | None
) -> None:
    known = {b for s in scores for b in s.bags}
    for bag in bags or ():
        if bag not in known:
            raise UnknownName("test bag in the experiment", bag, known)
    named = {n for s in scores for n in _names(s)}
    for method in methods or ():
        if method not in named:
            raise UnknownName("method in the experiment", method, named)

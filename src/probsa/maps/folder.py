"""Stage 10: draw the maps of a predictions folder and report what could not be drawn."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import logit as logit_of

from ..core import counted, named_file, open_output, remove_leftovers
from ..errors import BagError, InputError, ProbSAError, UnknownName
from ..evaluation import (
    FEW_TRAINING_BAGS,
    MAP_SCORES,
    MapScore,
    Prediction,
    Predictions,
    drawable_scores,
    read_predictions,
    stated_of,
    stored_trust,
    truth_of,
    verdict_of,
)
from ..tasks import HALF, Task
from .draw import draw_map, heading
from .picture import Title, save_figure
from .quantities import DOUBTS, KINDS, column_of, key_of, showing
from .scale import ColourLimits, bag_limits, common_limits
from .sources import OverlaySettings, Sources, draw_over

READ_ERRORS = (ProbSAError, OSError, RuntimeError, MemoryError)
"""Errors that a damaged file can raise, including those of the decoding libraries."""
ScoreChoice = MapScore | Literal["auto"]
Scale = Literal["fixed", "per-bag"]


LITTLE = 0.1
"""Share of the largest value of a bag that says nothing for its call."""
UNLIKE_TRAINING = (
    "This bag is unlike the training bags: its features are further from theirs than those of any "
    "validation bag."
)


class Shown(NamedTuple):
    """The score that the maps of a folder show."""

    score: MapScore | None
    """None: each prediction's own."""
    caption: str
    """Text below the maps; empty for folders without a choice."""
    own: MapScore | None
    """The model's own score, which alone has variances; None if no prediction can be read."""


def render_folder(
    predictions: Path | str,
    out: Path | str,
    *,
    bags: Sequence[str] | None = None,
    score: ScoreChoice = "auto",
    scale: Scale = "fixed",
    also: Sequence[str] = DOUBTS,
    over: tuple[Sources, OverlaySettings] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Write `out/<bag>.png` for the given bags of a predictions folder (None: all bags).

    A patient has one map for each slide, `out/<slide>.png`; their colours have one scale.

    Args:
        predictions: A folder that `probsa predict` wrote.
        out: The folder of the maps; it is created if needed, and existing maps of these bags are
            replaced.
        bags: Names of the bags to draw.
        score: The score to show; `auto`: the one that the run chose on its validation bags, which
            is stored with the predictions, or the model's own score if none is stored.
        scale: `fixed`: one for all maps, see `map_limits`; `per-bag`: each bag's range.
        also: The rows of `KINDS` that are shown beside the score.
        over: Where the slides or scans are, and how to draw over them. If one of them cannot be
            read, its map is drawn without it.
        progress: A function called with (done, total) after each bag.

    Returns: The (bag, reason) pairs of everything that could not be drawn.

    Raises:
        UnknownName: A bag is not in the predictions; nothing is drawn in this case.
        InputError, TableError: The folder is not a predictions folder, or it has no such score.
    """
    table = read_predictions(predictions)
    out = Path(out)
    failures: list[tuple[str, str]] = []
    bag_predictions = predicted_bags(table, bags, failures=failures, progress=progress)
    shown = resolve(table, score)
    limits = None
    if scale == "fixed":
        with suppress(BagError):  # drawing the bags reports why they cannot be read
            limits = map_limits(table.folder, score=shown.score)
    open_output(out, own=False)
    remove_leftovers(out, own=lambda path: _is_map(path, table.bags))
    trust_line = stored_trust(table, score=shown.score).line
    for p in bag_predictions:
        row = table.bags.index(p.name)
        try:
            drawn = showing(p, shown.score)
            words = _words(table, row, p, drawn=drawn)
            caption = " ".join(filter(None, (*words.sentences, shown.caption, *words.notes)))
            for page in _pages(drawn, words.title, limits):
                failures += _draw(
                    page.p,
                    out,
                    over=over,
                    title=page.title._replace(more=(trust_line,)),
                    limits=page.limits,
                    caption=caption,
                    also=also,
                )
        except (ProbSAError, OSError) as error:
            failures.append((p.name, str(error)))
    return failures


class _Words(NamedTuple):
    """What a picture says of its bag."""

    title: Title
    """One line, with a mark for each of `sentences`."""
    sentences: tuple[str, ...]
    """What a reader must know of this bag, below the map."""
    notes: tuple[str, ...]
    """What the numbers mean."""


def _words(table: Predictions, row: int, p: Prediction, *, drawn: Prediction) -> _Words:
    """Return what is said of a bag; `drawn` is the prediction with the score that is shown."""
    verdict = verdict_of(table, p)
    words = table.of_task.words.page
    title = heading(p, label=truth_of(table, row), verdict=verdict)
    marks = list(title.facts)
    sentences = []
    if contradiction := against(table, drawn):
        marks.append("the map contradicts the call")
        sentences.append(contradiction)
    if is_unlike_training(table, row):
        marks.append("unlike the training bags")
        sentences.append(UNLIKE_TRAINING)
    if table.parts[row] == "train":
        marks.append("a training bag")  # which looks better than new ones
    if verdict.unsure and words.unsure_hint:
        sentences.append(f"Unsure: {words.unsure_hint}")
    notes = [table.of_task.words.note]
    if "±" in verdict.text:
        notes.append(f"±: {words.spread_hint}.{_few_bags(table)}")
    return _Words(title._replace(facts=tuple(marks)), tuple(sentences), tuple(notes))


def _few_bags(table: Predictions) -> str:
    """Say that ± does not span what other training bags would change, where they are few."""
    count = table.metadata.training_bags
    if count is None or count >= FEW_TRAINING_BAGS:
        return ""
    return f" It does not span what others than the {counted(count, 'training bag')} would change."


def reservations(table: Predictions) -> tuple[str, ...]:
    """Return what the run's own evaluation says against its maps and calls, in sentences."""
    return tuple(reservation.text for reservation in table.metadata.reservations)


def is_unlike_training(table: Predictions, row: int) -> bool:
    """Return whether a bag is further from training than all validation bags."""
    return table.ood is not None and bool(table.ood[row] >= 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """The instances of a bag speak against its call, and what makes the call nevertheless."""

    called_positive: bool
    cause: Literal["threshold", "pooling", "bias"]
    """The threshold of the call; the pooling of a model whose instances have no contributions; or
    what is added to the contributions of the instances."""
    contribution: float = 0.0
    """Sum of the contributions of the instances to the logit of p."""
    logit: float = 0.0
    """The logit of p."""


def find_contradiction(table: Predictions, p: Prediction) -> Contradiction | None:
    """Return how a map contradicts the call; None if an instance speaks clearly for the call."""
    if not table.of_task.two_classes or not KINDS[key_of(p)].signed:
        return None
    probability = float(p.probability[-1])
    called_positive = bool(table.of_task.called_positive(p.probability[None], stated_of(table))[0])
    values = column_of(p.attention_mean, -1)
    # positive where an instance speaks for the call
    support = values[np.isfinite(values)] * (1 if called_positive else -1)
    if not support.sum() < 0 or support.max() > LITTLE * np.abs(support).max():
        return None
    if called_positive == (probability < HALF):
        return Contradiction(called_positive=called_positive, cause="threshold")
    if p.contribution is None:
        return Contradiction(called_positive=called_positive, cause="pooling")
    return Contradiction(
        called_positive=called_positive,
        cause="bias",
        contribution=float(column_of(p.contribution, -1).sum()),
        logit=float(logit_of(np.clip(np.float64(probability), 1e-6, 1 - 1e-6))),
    )


def against(table: Predictions, p: Prediction) -> str:
    """Say what makes p where no instance speaks clearly for the call of a bag; see `showing`."""
    contradiction = find_contradiction(table, p)
    if contradiction is None:
        return ""
    side = "against" if contradiction.called_positive else "for"
    first = f"The instances speak {side} the class, but the bag is called the opposite: "
    if contradiction.cause == "threshold":
        half = "below" if contradiction.called_positive else "above"
        return f"{first}the threshold does this, as p is {half} 0.5."
    if contradiction.cause == "pooling":
        return f"{first}p is made from the whole bag by the model's pooling, not by these values."
    contribution = _signed(contradiction.contribution)
    logit = _signed(contradiction.logit)
    return (
        f"{first}attention-weighted pooling adds {contribution} to the logit of p, {logit}; the "
        "bias and the averages over samples and members add the rest."
    )


def _signed(value: float) -> str:
    return f"{value:+.2g}".replace("-", "−")


def predicted_bags(
    table: Predictions,
    bags: Sequence[str] | None,
    *,
    failures: list[tuple[str, str]],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Prediction]:
    """Return the given bags of a table (None: all); reasons of unreadable ones join `failures`.

    Raises:
        UnknownName: A bag is not in the table.
    """
    names = list(table.bags if bags is None else bags)
    for bag in names:
        if bag not in table.bags:
            raise UnknownName("predicted bag", bag, table.bags)

    def read() -> Iterator[Prediction]:
        for k, bag in enumerate(names, start=1):
            try:
                p = table.instances(bag)
            except READ_ERRORS as error:
                failures.append((bag, str(error)))
            else:
                yield p
            if progress is not None:
                progress(k, len(names))

    return read()


class _Page(NamedTuple):
    """What one picture shows."""

    p: Prediction
    title: Title
    limits: ColourLimits | None


def _pages(p: Prediction, title: Title, limits: ColourLimits | None) -> Iterator[_Page]:
    """Yield what is drawn of a bag: its one picture, or each slide of a patient with its share.

    The slides of a patient have one scale of colours, and those with a higher share come first.
    """
    if not p.slides:
        yield _Page(p, title, limits)
        return
    limits = limits or bag_limits(p)
    for name, share in p.slide_shares().items():
        facts = (*title.facts, f"slide {name}, {share:.0%} of the attention")
        yield _Page(p.of_slide(name), title._replace(facts=facts), limits)


def _is_map(path: Path, bags: Sequence[str]) -> bool:
    """Return whether a file is the map of a bag, by its name."""
    # overlays are <bag>_mean.png, <bag>_doubt.png and so on
    return path.suffix == ".png" and (path.stem in bags or path.stem.rpartition("_")[0] in bags)


def _draw(
    p: Prediction, out: Path, *, over: tuple[Sources, OverlaySettings] | None, **how: Any
) -> list[tuple[str, str]]:
    """Draw a map over its slide or scan, or without it, and return what could not be drawn."""
    failures = []
    if over is not None:
        sources, settings = over
        if not settings.where_at_hand or sources.is_at_hand(p):
            try:
                problem = draw_over(p, out, sources=sources, how=settings, **how)
            except READ_ERRORS as error:
                failures.append((p.name, f"its slide or scan; the map is drawn without: {error}"))
            else:
                return [(p.name, problem)] if problem else []
    save_figure(draw_map(p, **how), named_file(out, p.name, ".png"))
    return failures


def meaning(score: MapScore, task: Task, *, own: bool = False) -> str:
    """Return what a score says about an instance, in a sentence; empty for attention.

    The model's `own` score is not compared with other classes.
    """
    words = task.words
    relative = ""
    if task.unordered_classes and not task.two_classes:
        relative = " It is relative to the mean over the classes."
    if score == "contribution":
        return (
            "A contribution is the attention times the class score: red raises "
            f"{words.raised}, blue lowers it.{relative}"
        )
    if score == "evidence":
        up, down = words.towards
        text = f"Evidence is what the instance says on its own: red {up}, blue {down}."
        return text if own else text + relative
    if score == "probability":
        return f"The probability that the instance speaks for {words.aim}."
    if score == "grade":
        return (
            "Each map shows the probability of a grade or a higher one, for a bag that "
            "consists of this instance alone."
        )
    return ""


def resolve(table: Predictions, score: ScoreChoice) -> Shown:
    """Return what the maps of a predictions folder show."""
    choice = table.metadata.map_score
    first = next(_readable(table), None)
    scores = () if first is None else drawable_scores(first)
    own = scores[0] if scores else None
    if score != "auto" and scores and score not in scores:
        raise InputError(
            f"the predictions in {table.folder} have no score {score!r}: they have "
            f"{', '.join(scores)}"
        )
    has_choice = choice is not None and choice.chosen in MAP_SCORES
    if (score == "auto" and not has_choice) or (choice is None and score == own):
        caption = ""
        # the model's own score needs words if it is evidence and the task has no class
        if own is not None and not table.of_task.unordered_classes:
            caption = meaning(own, table.of_task, own=True)
        return Shown(None if score == "auto" else score, caption, own)
    reason = ""
    if score == "auto":
        assert choice is not None
        score = choice.chosen
    else:
        other = "" if choice is None else f" (the validation bags chose {choice.chosen})"
        reason = f"{score.capitalize()}: as asked for{other}. "
    text = f"{reason}{meaning(score, table.of_task, own=score == own)}".strip()
    return Shown(score, text, own)


def map_limits(folder: Path | str, *, score: MapScore | None = None) -> ColourLimits:
    """Return the fixed scale of a predictions folder: that of its validation bags, or of all.

    The limits of the mean are those of `score`; None: of the model's own score. Bags whose
    per-instance file is missing or damaged are skipped; drawing them reports the error.

    Raises:
        InputError, TableError: The folder is not a predictions folder.
        BagError: No bag has attention that could be read.
    """
    folder = Path(folder)
    table = read_predictions(folder)
    part = "val" if "val" in table.parts else ""
    return common_limits(_readable(table, score, part=part))


def _readable(
    table: Predictions, score: MapScore | None = None, *, part: str = ""
) -> Iterator[Prediction]:
    """Yield the predictions that can be read, showing a score; all, or those of one part."""
    for bag, bag_part in zip(table.bags, table.parts, strict=True):
        if part not in ("", bag_part):
            continue
        try:
            p = showing(table.instances(bag), score)
        except (BagError, InputError):
            continue
        yield p

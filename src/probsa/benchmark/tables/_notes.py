"""Notes below a table: winners, ranks, and which differences could have been detected."""

from collections.abc import Sequence

from ...core import counted
from ...statistics import detectable_sentence
from ..results.comparing import Compared, Pooled
from ..results.ranked import Ranked
from ..results.scores import Scores

MEANS = "Values are mean ± s.d. over splits, after averaging seeds within a split"


def metadata(scores: Sequence[Scores]) -> str:
    """Return a sentence on the data behind one table: bags, patients, splits, seeds."""
    first = scores[0]
    patients = len(set(first.groups.tolist()))
    patient_text = "" if patients == len(first.bags) else f" of {patients} patients"
    splits = {int(split) for s in scores for split in s.split.ravel()}
    split_kind = "folds, each bag tested once per seed" if first.folds else "splits, one test part"
    return (
        f"{first.data}: {len(first.bags)} test bags ({_label_text(first)}){patient_text}; "
        f"{len(splits)} {split_kind}; {_seed_text(scores)}."
    )


def _label_text(scores: Scores) -> str:
    """Return how many bags have which label."""
    if scores.task.two_classes:
        return f"{int(scores.positive.sum())} positive"
    counts = scores.task.labels.counts(scores.targets, scores.names)
    bags = len(scores.bags)
    return ", ".join(label if n == bags else f"{n} {label}" for label, n in counts.items())


def _seed_text(scores: Sequence[Scores]) -> str:
    """Return the seeds of the methods, by method unless all have the same."""
    texts: dict[str, str] = {}
    for s in scores:
        seeds = sorted(set(s.seed.tolist()))
        texts[s.method.name] = f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{method}: {text}" for method, text in texts.items())


def titles_of(scores: Scores) -> str:
    """Return the metrics of a data set in words, the primary one first."""
    *most, last = [m.title for m in scores.task.measures]
    return f"{', '.join(most)} and {last}" if most else last


def shown_titles(scores: Sequence[Scores]) -> str:
    """Return the metrics in the columns of a table of several data sets."""
    shown = (m.title for s in scores for m in s.overview)
    return ", ".join(dict.fromkeys(shown))


def measures_notes(scores: Sequence[Scores]) -> list[str]:
    """Return a sentence for the data sets of each task that names what is shown of them."""
    task_scores: dict[str, list[Scores]] = {}
    for s in scores:
        task_scores.setdefault(s.task.name, []).append(s)
    notes = []
    for task, group in task_scores.items():
        measures = group[0].overview
        primary = measures[0]
        if primary.of_target:
            unit = ", in the unit of the target"
        else:
            unit = ", in percent" if primary.unit == "percent" else ""
        better = "higher" if primary.higher_is_better else "lower"
        data = dict.fromkeys(s.data for s in group)
        notes.append(
            f"{', '.join(data)} ({task}): {' and '.join(m.title for m in measures)}{unit}; "
            f"{better} is better.{_f1_note(group[0])}"
        )
    return notes


def _f1_note(scores: Scores) -> str:
    """Return the sentence that states which calls F1 is of; empty beyond two classes."""
    if not scores.task.two_classes:
        return ""
    if not scores.f1_at_half:
        return " F1 is at the threshold that each run chose on its validation part."
    return (
        " F1 is of calls at p ≥ 0.5; F1 at the threshold that each run chose on its validation "
        "part is in the tables below."
    )


def bold_note(below: str) -> str:
    """Return the rule for bold means."""
    return (
        "Bold marks the best mean of a column if that method is also a winner. For metrics that "
        "rank bags, such as AUROC, winners are determined within folds if every fold has two "
        "patients of every class; for other metrics, over the bags of all folds together. See the "
        f"rule below {below}."
    )


def ranks_notes(ranked: Ranked) -> list[str]:
    """Return how ranks are computed, and which methods have none.

    They have no test: the metrics of a data set depend on each other.
    """
    notes = [ranked.note()] if ranked.unranked else []
    if ranked.ranks is None:
        notes.append("Average rank: needs two methods that have a value in every column.")
        return notes
    count = ranked.ranks.ranks.shape[1]
    columns = f"{count} (data set, metric) columns"
    if ranked.by_primary:
        columns = f"{counted(count, 'data set')}, each by its primary metric"
    notes.append(
        f"Average rank: over {columns}; 1 is best, ties share a rank; ± s.d. over them "
        "(ddof = 1), as in the paper."
    )
    return notes


def rule_notes(scores: Scores, compared: Compared, *, to: str, over: str) -> list[str]:
    """Return what values, differences and winners of one data set are.

    Args:
        scores: The scores of any of the methods.
        compared: Their comparison.
        to: What differences refer to, in words.
        over: Over what Holm's correction is made, in words.
    """
    measures = scores.task.measures
    lower = [m.title for m in measures if not m.higher_is_better]
    percent = [m.title for m in measures if m.unit == "percent"]
    target_unit = [m.title for m in measures if m.of_target]
    units = []
    if lower:
        units.append(f"Lower is better for {', '.join(lower)}.")
    if percent:
        units.append(f"{', '.join(percent)}: in percent, their Δ in points.")
    if target_unit:
        units.append(f"{', '.join(target_unit)}: in the unit of the target.")
    if not compared.comparisons:
        return [" ".join(units)]
    rule = (
        f"{' '.join(units)} Values are means over replicates; with splits of one test part, over "
        "splits, after averaging the seeds of each. "
        f"Δ is the paired difference {to}. "
        "[lo, hi] are 95 % intervals over patients and replicates; p is two-sided, from the "
        f"bootstrap over patients, and Holm-corrected {over}. A winner is the best value "
        "whose paired difference to every other one has a Holm-adjusted p of at most 0.05. The "
        "notes below give percentages as fractions: 0.01 is a point."
    )
    caveats = compared.comparisons[0].comparison.notes
    return [rule, *(note[:1].upper() + note[1:] + "." for note in caveats)]


def folds_notes(scores: Scores, compared: Compared) -> list[str]:
    """Return why differences of pooled folds may deviate from those of means over folds."""
    ranking = [m for m in scores.task.measures if m.by_fold]
    if not (scores.folds and ranking and scores.task.compares_across_folds):
        return []
    title = ranking[0].title
    explanation = (
        f"Pooled {title} ranks the bags of all folds together, so a method loses if the "
        f"probabilities of its runs are on different levels. {title} within folds avoids this: it "
        "compares means over folds"
    )
    if compared.of(ranking[0].name, "within") is None:
        return [
            f"{explanation}, but it needs two patients of every class in every fold. Here pooled "
            f"{title} decides the winner."
        ]
    return [f"{explanation}, and decides the winner by {title}."]


def verdicts(scores: Scores, compared: Compared) -> list[str]:
    """Return the winner by each metric or why there is none, what could be detected, and which
    replicates are used if methods do not share all of them."""
    notes = []
    for m in scores.task.measures:
        pooled = compared.deciding(m.name)
        if pooled is None:
            notes.append(f"{m.title}: no comparison: {compared.why_not(m.name)}.")
            continue
        metric = f"{m.title} within folds" if pooled.pooling == "within" else m.title
        winner = pooled.comparison.winner
        if winner:
            notes.append(f"{metric}: {winner} wins.")
        else:
            notes.append(f"{metric}: no winner: {pooled.comparison.reason}.")
    for m in scores.overview:
        pooled = compared.deciding(m.name)
        if pooled is not None:
            sentence = detectable_sentence(
                pooled.comparison,
                within=pooled.pooling == "within",
                replicates=[n for n in pooled.replicates.values() if n],
                title=m.title,
            )
            notes.append(sentence)
    incomplete = next((p for p in compared.comparisons if p.lacking), None)
    if incomplete is not None:
        notes.append(_missing_note(incomplete))
    return notes


def _missing_note(pooled: Pooled) -> str:
    """Return which replicates are used if methods do not share all of them."""
    shared = ", ".join(f"{name} {n}" for name, n in pooled.replicates.items())
    common = pooled.comparison.replicates
    winner = "no replicate is common to all, so there is no winner"
    if common:
        winner = f"the winner is determined over the {common} that all methods have"
    return (
        "Some replicates of some methods are missing. A value is the mean over all replicates of "
        "the method; Δ uses the replicates that it shares with "
        f"{pooled.comparison.reference} ({shared}); {winner}."
    )

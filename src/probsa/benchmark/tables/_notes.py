"""Notes below a table: winners, ranks, and which differences could have been detected."""

from collections.abc import Sequence

from ...core import counted
from ...statistics import detectable_sentence
from ..results.comparing import Compared
from ..results.ranked import Ranked
from ..results.scores import Scores, by_data

MEANS = "Values are mean ± s.d. over splits, after averaging seeds within a split"


def metadata(scores: Sequence[Scores]) -> str:
    """Return a sentence on the data behind one table: bags, patients, splits, seeds."""
    s = scores[0]
    patients = len(set(s.groups.tolist()))
    patient_text = "" if patients == len(s.bags) else f" of {patients} patients"
    splits = sorted({int(k) for of_method in scores for k in of_method.split.ravel()})
    split_kind = "folds, each bag tested once per seed" if s.folds else "splits, one test part"
    seeds = {of_method.method.name: sorted(set(of_method.seed.tolist())) for of_method in scores}
    texts = {m: f"{counted(len(v), 'seed')} ({', '.join(map(str, v))})" for m, v in seeds.items()}
    same = len(set(texts.values())) == 1
    seed_text = "; ".join(set(texts.values()) if same else (f"{m}: {t}" for m, t in texts.items()))
    labels = {"positive": int(s.positive.sum())} if s.task.two_classes else {}
    if not labels:
        labels = s.task.labels.counts(s.targets, s.names)
    counts = [
        what if n == len(s.bags) and not s.task.two_classes else f"{n} {what}"
        for what, n in labels.items()
    ]
    return (
        f"{s.data}: {len(s.bags)} test bags ({', '.join(counts)}){patient_text}; "
        f"{len(splits)} {split_kind}; {seed_text}."
    )


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
    of_task: dict[str, list[str]] = {}
    first = {s.task.name: s for s in reversed(scores)}
    for data, (s, *_) in by_data(scores).items():
        of_task.setdefault(s.task.name, []).append(data)
    notes = []
    for task, data in of_task.items():
        measures = first[task].overview
        unit = ", in percent" if measures[0].unit == "percent" else ""
        unit = ", in the unit of the target" if measures[0].of_target else unit
        better = "higher" if measures[0].higher_is_better else "lower"
        called = ""
        if first[task].task.two_classes:
            called = (
                " F1 is of calls at p ≥ 0.5; F1 at the threshold that each run chose on its "
                "validation part is in the tables below."
                if first[task].f1_at_half
                else " F1 is at the threshold that each run chose on its validation part."
            )
        notes.append(
            f"{', '.join(data)} ({task}): {' and '.join(m.title for m in measures)}{unit}; "
            f"{better} is better.{called}"
        )
    return notes


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
        return [*notes, "Average rank: needs two methods that have a value in every column."]
    n = ranked.ranks.ranks.shape[1]
    columns = f"{n} (data set, metric) columns"
    if ranked.by_primary:
        columns = f"{counted(n, 'data set')}, each by its primary metric"
    return [
        *notes,
        f"Average rank: over {columns}; 1 is best, ties share a rank; ± s.d. over them "
        "(ddof = 1), as in the paper.",
    ]


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
    of_target = [m.title for m in measures if m.of_target]
    parts = [f"Lower is better for {', '.join(lower)}."] if lower else []
    parts += [f"{', '.join(percent)}: in percent, their Δ in points."] if percent else []
    parts += [f"{', '.join(of_target)}: in the unit of the target."] if of_target else []
    if not compared.known:
        return [" ".join(parts)]
    caveats = compared.known[0].comparison.notes
    return [
        f"{' '.join(parts)} Values are means over replicates; with splits of one test part, over "
        "splits, after averaging the seeds of each. "
        f"Δ is the paired difference {to}. "
        "[lo, hi] are 95 % intervals over patients and replicates; p is two-sided, from the "
        f"bootstrap over patients, and Holm-corrected {over}. A winner is the best value "
        "whose paired difference to every other one has a Holm-adjusted p of at most 0.05. The "
        "notes below give percentages as fractions: 0.01 is a point.",
        *(note[:1].upper() + note[1:] + "." for note in caveats),
    ]


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
        winner, why = pooled.comparison.winner, pooled.comparison.reason
        notes.append(f"{metric}: {winner} wins." if winner else f"{metric}: no winner: {why}.")
    notes += [
        detectable_sentence(
            p.comparison,
            within=p.pooling == "within",
            replicates=[n for n in p.replicates.values() if n],
            title=m.title,
        )
        for m in scores.overview
        if (p := compared.deciding(m.name)) is not None
    ]
    pooled = next((p for p in compared.known if p.lacking), None)
    if pooled is None:
        return notes
    shared = ", ".join(f"{name} {n}" for name, n in pooled.replicates.items())
    n = pooled.comparison.replicates
    winner = (
        f"the winner is determined over the {n} that all methods have"
        if n
        else "no replicate is common to all, so there is no winner"
    )
    return [
        *notes,
        "Some replicates of some methods are missing. A value is the mean over all replicates of "
        "the method; Δ uses the replicates that it shares with "
        f"{pooled.comparison.reference} ({shared}); {winner}.",
    ]

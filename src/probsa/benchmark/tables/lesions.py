"""FROC of one data set: lesions found by each method at given false positives per slide."""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import FROC_METRICS
from ..results.lesions import (
    BOOTSTRAP,
    LesionFroc,
    LesionSource,
    LesionTruth,
    lesions_found,
    truths_of,
)
from ..results.scores import Scores
from ._columns import METHOD
from .table import Column, ResultTable, TableCell, key, text_cell

RATES = ("1/4", "1/2", "1", "2", "4", "8")
FILES: dict[LesionSource, str] = {"patches": "froc_patches", "annotations": "froc"}
TITLES: dict[LesionSource, str] = {
    "patches": "FROC (patch-level) of {}",
    "annotations": "FROC of {}, official CAMELYON16 rules",
}
EXPLANATIONS: dict[LesionSource, str] = {
    "patches": "An approximation on patches: a lesion is a union of positive patches, not what an "
    "annotator drew. Not comparable with official or published results.",
    "annotations": "Lesions are the annotated contours, drawn at 1/32 of level 0.",
}


def lesion_tables(
    scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP
) -> tuple[tuple[ResultTable, ...], tuple[str, ...]]:
    """Return a table by patch labels, one by annotations if they are known, and further notes.

    There are no tables if the bags are not slides or contain no lesion.
    """
    truths, notes = truths_of(scores[0])
    by_source: dict[LesionSource, dict[str, LesionFroc]] = {t.source: {} for t in truths}
    for s in scores:
        try:
            froc_by_source = lesions_found(s, truths, bootstrap=bootstrap)
        except ProbSAError as error:
            notes.append(f"{s.method.name} has no FROC: {error}.")
            continue
        if froc_by_source is None:
            return (), ()
        for source, froc in froc_by_source.items():
            by_source[source][s.method.name] = froc
    tables = []
    for truth in truths:
        methods = by_source[truth.source]
        reasons = [f.metrics["froc"].reason for f in methods.values()]
        if methods and not all(reasons):
            tables.append(_table(scores[0].data, methods, truth))
        elif methods:
            notes.append(f"No {TITLES[truth.source].format(scores[0].data)}: {reasons[0]}.")
    return tuple(tables), tuple(notes)


def _table(data: str, methods: Mapping[str, LesionFroc], truth: LesionTruth) -> ResultTable:
    columns = [
        METHOD,
        Column(key="froc", title="FROC score", unit="percent"),
    ]
    columns += [
        Column(key=k, title=rate, group="sensitivity at false positives per slide", unit="percent")
        for k, rate in zip(FROC_METRICS[1:], RATES, strict=True)
    ]
    rows = []
    for name, froc in methods.items():
        m = froc.metrics["froc"]
        score = TableCell(value=m.value, low=m.low, high=m.high)
        rows.append(
            (
                text_cell(name),
                score,
                *(TableCell(value=froc.metrics[k].value) for k in FROC_METRICS[1:]),
            )
        )
    return ResultTable(
        name=f"{FILES[truth.source]}_{key(data)}",
        title=TITLES[truth.source].format(data),
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            EXPLANATIONS[truth.source],
            _counts(methods),
            "Values are in percent, means over replicates; [lo, hi] are 95 % intervals over slides "
            "(patients) and replicates. The score is the mean of the six sensitivities. A level-0 "
            "pixel is 0.243 µm; regions below 275 µm count neither as found nor as false "
            "positives. Detections are the local maxima within 2 patches of p(Y = 1) times the "
            "patch's share of the attention, smoothed over neighbours (s.d. 1 patch).",
            *_left_out(truth),
            *_bounded(methods),
        ),
    )


def _counts(methods: Mapping[str, LesionFroc]) -> str:
    froc = next(iter(methods.values()))
    return (
        f"{froc.lesions} lesions on {froc.tumour_slides} tumour slides of {froc.slides}; "
        f"{froc.isolated} isolated tumour cells."
    )


def _left_out(truth: LesionTruth) -> list[str]:
    bags_by_reason: dict[str, list[str]] = {}
    for bag, reason in sorted(truth.left_out.items()):
        bags_by_reason.setdefault(reason, []).append(bag)
    return [
        f"Left out: {len(bags)} ({', '.join(bags[:5])}{', …' if len(bags) > 5 else ''}): {reason}."
        for reason, bags in bags_by_reason.items()
    ]


def _bounded(methods: Mapping[str, LesionFroc]) -> list[str]:
    incomplete = [
        f"{n} ({f.replicates} of {f.replicates_available})"
        for n, f in methods.items()
        if f.replicates < f.replicates_available
    ]
    return (
        [f"Computed on some of the replicates only, to save time: {', '.join(incomplete)}."]
        if incomplete
        else []
    )

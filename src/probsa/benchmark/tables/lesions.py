"""How many lesions each method finds at so many false positives a slide: FROC, of one data set."""

from collections.abc import Mapping, Sequence

from ...errors import ProbSAError
from ...evaluation import NAMES
from ..results.lesions import BOOTSTRAP, Found, Source, Truth, lesions_found, truths_of
from ..results.results import Scores
from ._shared import key
from .table import Column, Entry, ResultTable, words

RATES = ("1/4", "1/2", "1", "2", "4", "8")
FILES: dict[Source, str] = {"patches": "froc_patches", "annotations": "froc"}
TITLES: dict[Source, str] = {
    "patches": "FROC (patch-level) of {}",
    "annotations": "FROC of {}, official CAMELYON16 rules",
}
ABOUT: dict[Source, str] = {
    "patches": "An approximation on patches: a lesion is a union of positive patches, not what an "
    "annotator drew. Not comparable with official or published figures.",
    "annotations": "Lesions are those of the annotations, drawn at 1/32 of level 0.",
}


def lesion_tables(
    scores: Sequence[Scores], *, bootstrap: int = BOOTSTRAP
) -> tuple[tuple[ResultTable, ...], tuple[str, ...]]:
    """A table by labels of patches, one by annotations where they are known, and what else to say.

    None of them where the bags are no slides, or hold no lesion to find.
    """
    truths, said = truths_of(scores[0])
    of: dict[Source, dict[str, Found]] = {t.source: {} for t in truths}
    for s in scores:
        try:
            found = lesions_found(s, truths, bootstrap=bootstrap)
        except ProbSAError as error:
            said.append(f"{s.method.name} has no FROC: {error}.")
            continue
        if found is None:
            return (), ()
        for source, one in found.items():
            of[source][s.method.name] = one
    tables = []
    for truth in truths:
        held = of[truth.source]
        reasons = [f.metrics["froc"].reason for f in held.values()]
        if held and not all(reasons):
            tables.append(_table(scores[0].data, held, truth))
        elif held:
            said.append(f"No {TITLES[truth.source].format(scores[0].data)}: {reasons[0]}.")
    return tuple(tables), tuple(said)


def _table(data: str, found: Mapping[str, Found], truth: Truth) -> ResultTable:
    columns = [
        Column(key="method", title="method"),
        Column(key="froc", title="FROC score", unit="percent"),
    ]
    columns += [
        Column(key=k, title=rate, group="sensitivity at false positives a slide", unit="percent")
        for k, rate in zip(NAMES[1:], RATES, strict=True)
    ]
    rows = []
    for name, one in found.items():
        m = one.metrics["froc"]
        score = Entry(value=m.value, low=m.low, high=m.high)
        rows.append((words(name), score, *(Entry(value=one.metrics[k].value) for k in NAMES[1:])))
    return ResultTable(
        name=f"{FILES[truth.source]}_{key(data)}",
        title=TITLES[truth.source].format(data),
        columns=tuple(columns),
        rows=tuple(rows),
        footnotes=(
            ABOUT[truth.source],
            _counts(found),
            "Percent, means over replicates; [lo, hi] are 95 % intervals over slides (patients) "
            "and replicates. The score is the mean of the six sensitivities. 0.243 µm a level-0 "
            "pixel; regions below 275 µm neither count as found nor as false positives. "
            "Detections: p(Y = 1) times the patch's share, smoothed over neighbours (s.d. 1 "
            "patch), the highest within 2 patches.",
            *_left_out(truth),
            *_bounded(found),
        ),
    )


def _counts(found: Mapping[str, Found]) -> str:
    one = next(iter(found.values()))
    return (
        f"{one.lesions} lesions on {one.tumour_slides} tumour slides of {one.slides}; "
        f"{one.isolated} isolated tumour cells."
    )


def _left_out(truth: Truth) -> list[str]:
    by: dict[str, list[str]] = {}
    for bag, why in sorted(truth.left_out.items()):
        by.setdefault(why, []).append(bag)
    return [
        f"Left out: {len(bags)} ({', '.join(bags[:5])}{', …' if len(bags) > 5 else ''}): {why}."
        for why, bags in by.items()
    ]


def _bounded(found: Mapping[str, Found]) -> list[str]:
    less = [f"{n} ({f.replicates} of {f.of})" for n, f in found.items() if f.replicates < f.of]
    return [f"Not of all replicates, which would take long: {', '.join(less)}."] if less else []

"""The time of a training step (the paper's table 4), from timing.csv."""

from collections.abc import Sequence
from itertools import pairwise

from ..execution.timing import StepTime
from ..execution.torchmil import UNLIKE
from ..grid.methods_and_cells import Method
from ..results.paper import BASELINES, paper_rows, paper_value, study_of, title_of
from ._shared import key, paper_cell
from .table import Column, ResultTable, TableCell, text_cell


def timing_table(times: Sequence[StepTime]) -> ResultTable:
    """Return milliseconds per step, relative to the plain model, and torchmil's if installed."""
    datas = list(dict.fromkeys(t.data for t in times))
    columns = [Column(key="method", title="method")]
    for data in datas:
        columns += _columns(data, [t for t in times if t.data == data])
    families = {t.method: Method(label=t.method, model=t.model).family for t in times}
    by_data_and_method = {(t.data, t.method): t for t in times}
    methods = sorted(families, key=lambda m: families[m] == "global")
    rows = []
    for name in methods:
        row = [text_cell(name)]
        for data in datas:
            n = len(_columns(data, [t for t in times if t.data == data]))
            row += _cells(by_data_and_method.get((data, name)), data, n=n)
        rows.append(tuple(row))
    rules = {i for i, (a, b) in enumerate(pairwise(methods), 1) if families[a] != families[b]}
    return ResultTable(
        name="timing",
        title="Milliseconds of a training step: forward, backward and optimiser",
        columns=tuple(columns),
        rows=tuple(rows),
        rules=frozenset(rules),
        footnotes=_notes(times),
        follow=(paper_times(),) if any(study_of(d) is None for d in datas) else (),
    )


def paper_times() -> ResultTable:
    """Return the paper's table 4, with the overheads computed from its times."""
    rows = paper_rows("4")
    studies = list(dict.fromkeys(r.study for r in rows))
    columns = [Column(key="method", title="method")]
    for s in studies:
        title = title_of(s)
        columns.append(Column(key=key(s, "ms"), title="ms", group=title, unit="printed"))
        columns.append(Column(key=key(s, "overhead"), title="× plain", group=title, unit="ratio"))
    body = []
    for method, label in dict.fromkeys((r.method, r.label) for r in rows):
        entries = [text_cell(method)]
        for s in studies:
            entries.append(paper_cell(paper_value("4", label, study=s, metric="ms")))
            entries.append(TableCell(value=_paper_overhead(label, s)))
        body.append(tuple(entries))
    return ResultTable(
        name="paper_table4",
        title="The paper's table 4: milliseconds of forward and backward",
        columns=tuple(columns),
        rows=tuple(body),
        footnotes=(
            "As printed in the paper (one RTX 3090), mean ± s.d. over steps; the ratios are ours.",
        ),
    )


def _columns(data: str, times: Sequence[StepTime]) -> list[Column]:
    columns = [
        Column(key=key(data, "ms"), title="ms", group=data, unit="milliseconds"),
        Column(key=key(data, "overhead"), title="× plain", group=data, unit="ratio"),
    ]
    if any(t.torchmil is not None for t in times):
        columns += [
            Column(key=key(data, "torchmil"), title="torchmil ms", group=data, unit="milliseconds"),
            Column(
                key=key(data, "torchmil_ratio"), title="torchmil / ours", group=data, unit="ratio"
            ),
        ]
    if study_of(data) is not None:
        group = f"{data}, paper's table 4"
        columns += [
            Column(key=key(data, "paper_ms"), title="ms", group=group, unit="printed"),
            Column(key=key(data, "paper_overhead"), title="× plain", group=group, unit="ratio"),
        ]
    return columns


def _cells(t: StepTime | None, data: str, *, n: int) -> list[TableCell]:
    if t is None:
        return [TableCell()] * n
    study = study_of(data)
    cells = [
        TableCell(value=t.milliseconds, low=t.lower, high=t.upper),
        TableCell(value=t.overhead),
    ]
    if n - (2 if study else 0) == 4:
        cells += [
            TableCell(value=t.torchmil, mark=t.torchmil is not None and t.model in UNLIKE),
            TableCell(value=t.torchmil_ratio),
        ]
    if study is not None:
        cells += [
            paper_cell(paper_value("4", t.model, study=study, metric="ms")),
            TableCell(value=_paper_overhead(t.model, study)),
        ]
    return cells


def _paper_overhead(model: str, study: str) -> float | None:
    family = Method(label=model, model=model).family
    time = paper_value("4", model, study=study, metric="ms")
    plain = paper_value("4", BASELINES[family], study=study, metric="ms")
    return None if time is None or plain is None else time.mean / plain.mean


def _notes(times: Sequence[StepTime]) -> tuple[str, ...]:
    first = times[0]
    notes = [
        "Medians over steps on real training batches, alternating models; [lo, hi] are quartiles. "
        f"{first.threads} CPU thread{'' if first.threads == 1 else 's'}, device {first.device}, "
        f"torch {first.torch}.",
        "× plain: the median of paired ratios to abmil, or to tabmil for the rows below the line.",
    ]
    for data in dict.fromkeys(t.data for t in times):
        sizes = {(t.bags, t.instances): [] for t in times if t.data == data}
        for t in times:
            if t.data == data:
                sizes[t.bags, t.instances].append(t.method)
        sizes_text = "; ".join(
            f"{bags} bags, {n:g} instances on average"
            + (f" ({', '.join(names)})" if len(sizes) > 1 else "")
            for (bags, n), names in sizes.items()
        )
        notes.append(f"{data}: a step has {sizes_text}.")
    if any(t.torchmil is not None for t in times):
        unlike = [t.model for t in times if t.torchmil is not None and t.model in UNLIKE]
        notes.append("torchmil's models use our widths and number of samples.")
        if unlike:
            named = ", ".join(dict.fromkeys(unlike))
            notes.append(
                f"* torchmil's network lacks a part or differs in the size of one: {named}."
            )
    return tuple(notes)

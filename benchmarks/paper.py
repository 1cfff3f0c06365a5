"""Print the paper's tables 2 to 5 with the results of an experiment beside them.

    python benchmarks/paper.py [OUT] [--times times.csv] [--table 2]

OUT is the folder of `probsa benchmark`, and times.csv what `benchmarks/timing.py --out` wrote, for
table 4. Data sets that are named as in the paper (rsna, panda, camelyon16) and methods that were
run have a second number, ours. `paper.csv` has every number that the paper prints: AUROC and F1 in
percent, times of table 4 in milliseconds, and average ranks.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from probsa.core import TextTable

TABLES = {
    "2": ("table2_no_global", "comparison_local"),
    "3": ("table3_global", "comparison_global"),
    "4": ("table4_time_ms_per_step", ""),
    "5": ("table5_ablation", "ablation"),
}
"""The name of a table in paper.csv, and the file of ours; table 4 has a file of its own."""
MODELS = {
    "ABMIL+ProbSA Dirac": "abmil-probsa-dirac",
    "ABMIL+ProbSA Diag": "abmil-probsa-diag",
    "ABMIL": "abmil",
    "CLAM": "clam-sb",
    "DSMIL": "dsmil",
    "PatchGCN": "patchgcn",
    "DTFD-MIL": "dtfdmil",
    "T-ABMIL+ProbSA Dirac": "tabmil-probsa-dirac",
    "T-ABMIL+ProbSA Diag": "tabmil-probsa-diag",
    "T-ABMIL": "tabmil",
    "TransMIL": "transmil",
    "SETMIL": "setmil",
    "GTP": "gtp",
    "IIBMIL": "iibmil",
    "CAMIL": "camil",
    "VMIL": "vmil",
}
"""The paper's methods and our models."""
COLUMNS = {"AUROC": "auroc", "F1": "f1_at_0_5"}
"""The metrics of tables 2, 3 and 5, and their columns in our tables; the paper's F1 is at 0.5."""

Row = Mapping[str, str]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="The paper's tables beside an experiment's.")
    parser.add_argument("out", type=Path, nargs="?", help="folder of `probsa benchmark`")
    parser.add_argument("--times", type=Path, help="file of `benchmarks/timing.py --out`")
    parser.add_argument("--table", choices=TABLES, help="one table; all if not given")
    given = parser.parse_args()
    printed = TextTable.read(Path(__file__).with_name("paper.csv")).rows
    for table in [given.table] if given.table else TABLES:
        name, file = TABLES[table]
        rows = [row for row in printed if row["table"] == name]
        if table == "4":
            text = times_table(rows, _rows(given.times))
        else:
            own = None if given.out is None else given.out / "tables" / f"{file}.csv"
            text = results_table(rows, _rows(own))
        print(f"## Table {table}\n\n{text}\n")


def _rows(path: Path | None) -> Sequence[Row]:
    return TextTable.read(path).rows if path is not None and path.is_file() else ()


def results_table(rows: Sequence[Row], ours: Sequence[Row]) -> str:
    """Return a table with a row for each method and λ of the paper."""
    columns = list(dict.fromkeys((r["dataset"], r["metric"]) for r in rows))
    lines = _header("method", "λ", *(" ".join(column) for column in columns))
    for model, kl in dict.fromkeys((r["model"], r["lambda"]) for r in rows):
        of_method = [r for r in rows if (r["model"], r["lambda"]) == (model, kl)]
        values = {(r["dataset"], r["metric"]): r for r in of_method}
        own = next((r for r in ours if _names(r, MODELS[model], kl)), {})
        cells = [_result(values.get(column), own, *column) for column in columns]
        lines.append(_line(model, kl, *cells))
    return "\n".join(lines)


def times_table(rows: Sequence[Row], ours: Sequence[Row]) -> str:
    """Return a table with a row for each method: mean ± s.d. of the paper, our median [quartiles].

    Times are in milliseconds.
    """
    sets = list(dict.fromkeys(r["dataset"] for r in rows))
    own = {(r["model"], r["data"]): r for r in ours}
    lines = _header("method", *(f"{data} ms" for data in sets))
    for model in dict.fromkeys(r["model"] for r in rows):
        cells = []
        for row in (r for r in rows if r["model"] == model):
            text = f"{float(row['mean']):.1f} ± {float(row['sd']):.1f}"
            time = own.get((MODELS[model], row["dataset"].lower()))
            if time is not None:
                median, lower, upper = (
                    float(time[column]) for column in ("milliseconds", "lower", "upper")
                )
                text += f" (ours {median:.1f} [{lower:.1f}, {upper:.1f}])"
            cells.append(text)
        lines.append(_line(model, *cells))
    return "\n".join(lines)


def _header(*titles: str) -> list[str]:
    return [_line(*titles), "|---" * len(titles) + "|"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _names(row: Row, model: str, kl: str) -> bool:
    """Return whether a row of ours is of a model, and of λ where the table has one."""
    if "variant" in row:
        return (row["variant"], row["kl_weight"]) == (model, kl)
    return row["method"].partition(" λ=")[0] == model


def _result(printed: Row | None, ours: Row, data: str, metric: str) -> str:
    text = "-" if printed is None else f"{float(printed['mean']):.1f} ± {float(printed['sd']):.1f}"
    column = "rank" if data == "rank" else f"{data.lower()}_{COLUMNS[metric]}"
    value = ours.get(column)
    sd = ours.get(f"{column}_sd")
    if not value:
        return text
    return f"{text} (ours {float(value):.1f}" + (f" ± {float(sd):.1f})" if sd else ")")


if __name__ == "__main__":
    main()

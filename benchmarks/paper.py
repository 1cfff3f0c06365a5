"""Print the paper's tables 2, 3 and 5 with the results of an experiment beside them.

    python benchmarks/paper.py OUT [--table 2]

OUT is the folder of `probsa benchmark`. Data sets that are named as in the paper (rsna, panda,
camelyon16) and methods that were run have a second number, ours. `paper.csv` has every number that
the paper prints: AUROC and F1 in percent, times of table 4 in milliseconds, and average ranks.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from probsa.core import TextTable

TABLES = {
    "2": ("table2_no_global", "comparison_local"),
    "3": ("table3_global", "comparison_global"),
    "5": ("table5_ablation", "ablation"),
}
"""The name of a table in paper.csv, and the file of ours."""
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

Row = Mapping[str, str]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="The paper's tables beside an experiment's.")
    parser.add_argument("out", type=Path, help="folder of `probsa benchmark`")
    parser.add_argument("--table", choices=TABLES, help="one table; all if not given")
    given = parser.parse_args()
    printed = TextTable.read(Path(__file__).with_name("paper.csv")).rows
    for table in [given.table] if given.table else TABLES:
        name, file = TABLES[table]
        path = given.out / "tables" / f"{file}.csv"
        ours = TextTable.read(path).rows if path.is_file() else []
        print(f"## Table {table}\n\n{markdown([r for r in printed if r['table'] == name], ours)}\n")


def markdown(rows: Sequence[Row], ours: Sequence[Row]) -> str:
    """Return a table with a row for each method and λ of the paper."""
    columns = list(dict.fromkeys((r["dataset"], r["metric"]) for r in rows))
    lines = ["| method | λ | " + " | ".join(" ".join(c) for c in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for model, kl in dict.fromkeys((r["model"], r["lambda"]) for r in rows):
        values = {(r["dataset"], r["metric"]): r for r in rows
                  if (r["model"], r["lambda"]) == (model, kl)}  # fmt: skip
        own = next((r for r in ours if _names(r, MODELS[model], kl)), {})
        cells = [model, kl, *(_cell(values.get(c), own, *c) for c in columns)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _names(row: Row, model: str, kl: str) -> bool:
    """Return whether a row of ours is of a model, and of λ where the table has one."""
    if "variant" in row:
        return (row["variant"], row["kl_weight"]) == (model, kl)
    return row["method"].partition(" λ=")[0] == model


def _cell(printed: Row | None, ours: Row, data: str, metric: str) -> str:
    text = "-" if printed is None else f"{float(printed['mean']):.1f} ± {float(printed['sd']):.1f}"
    column = "rank" if data == "rank" else f"{data.lower()}_{metric.lower()}"
    value, sd = ours.get(column), ours.get(f"{column}_sd")
    if not value:
        return text
    return f"{text} (ours {float(value):.1f}" + (f" ± {float(sd):.1f})" if sd else ")")


if __name__ == "__main__":
    main()

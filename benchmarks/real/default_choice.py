"""Choose the product's default among candidate methods, on recorded traces.

    python benchmarks/real/default_choice.py TRACES --rule ema-nll [--sets ct_ich] [--methods …]

Criterion, written before the traces of any set but ct_ich were looked at. Under one rule for the
choice of the epoch, the candidates are ranked within each set by the mean over runs (folds × seeds)
of the four measures of `selection.py`: bag NLL, bag AUROC, instance AUROC and average precision
within bags. All measures and sets weigh the same; sets without signal (`null_*`) do not count, and
the sets `contiguous_*`, `scattered_*` and `decoy_*` count as one set each. The lowest mean rank
wins; among those within 0.1 of it, the lowest bag NLL.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from selection import MEASURES, RULES, mean_ranks, measured, nan_mean, set_means, winner_of
from study_metrics import number
from trace_file import load_all

CANDIDATES = (
    "evidence-dirac",
    "evidence-diag-kl0.01",
    "evidence-diag-kl0.1",
    "evidence-field-kl0.01",
    "evidence-field-kl0.1",
)


def cells_of(out: Path, *, rule: str, sets: list[str] | None, methods: list[str]):  # noqa: ANN201
    """Return, by set, the measures of every run of each method that all methods have."""
    values: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for trace in load_all(out, sets=sets, methods=methods):
        data = trace.header["data"]
        if not data.startswith("null"):
            kind = data.rpartition("_")[0] if data[-1].isdigit() else data
            row = list(measured(trace, RULES[rule](trace)).values())
            values[kind][trace.header["method"]["name"]].append(row)
    return {
        (kind, ""): {name: np.array(runs[name]) for name in methods}
        for kind, runs in values.items()
        if set(runs) == set(methods)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--rule", default="ema-nll", choices=RULES)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+", default=list(CANDIDATES))
    a = parser.parse_args()
    cells = cells_of(a.traces, rule=a.rule, sets=a.sets, methods=a.methods)
    ranks = mean_ranks(cells)
    means = {name: set_means(cells, name) for name in a.methods}
    print(f"sets: {', '.join(kind for kind, _ in cells)}; rule: {a.rule}\n")
    print("| method | mean rank | " + " | ".join(MEASURES) + " |")
    print("|---" * (2 + len(MEASURES)) + "|")
    for name in sorted(ranks, key=lambda n: ranks[n]):
        print(f"| {name} | {ranks[name]:.2f} | " + " | ".join(map(number, means[name])) + " |")
    for kind, runs in cells.items():
        shown = {name: nan_mean(runs[name]) for name in a.methods}
        best = [max(shown, key=lambda n: s * shown[n][k]) for k, s in enumerate(MEASURES.values())]
        print(f"\n{kind[0]}: best by {dict(zip(MEASURES, best, strict=True))}")
    print(f"\nBy the criterion: **{winner_of(ranks, {n: float(m[0]) for n, m in means.items()})}**")


if __name__ == "__main__":
    main()

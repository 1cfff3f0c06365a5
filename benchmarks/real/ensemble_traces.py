"""Combine the seeds of a method into traces of an ensemble, with one member per seed.

    python benchmarks/real/ensemble_traces.py TRACES --method evidence-field-kl0.1 --rule ema-nll

Each member is taken at the epoch that the rule chooses for it. Probabilities are averaged; so are
scores, and their variance is the sum of that within members and that between them. The new traces
are named METHOD-xK (METHOD-xK-RULE for rules other than ema-nll), and every rule finds the same
weights in them.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from selection import RULES
from trace_file import Trace, load_all, path_of, save


def ensemble(members: Sequence[Trace], *, name: str, rule: str) -> Trace:
    """Return the trace of an ensemble; `members` are the seeds of one method and fold."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for trace in members:
        weights, epoch = RULES[rule](trace)
        row = 0 if weights == "average" else epoch - 1
        kept = 0 if weights == "average" else int(np.flatnonzero(trace.epochs == epoch)[0])
        parts["p"].append(trace.arrays[f"{weights}_p"][row].astype(np.float64))
        for key in ("mean", "variance"):
            column = trace.arrays.get(f"{weights}_{key}")
            value = np.zeros_like(parts["mean"][-1]) if column is None else column[kept]
            parts[key].append(value.astype(np.float64))
    stacked = {key: np.stack(values) for key, values in parts.items()}
    combined = {
        "p": stacked["p"].mean(0),
        "mean": stacked["mean"].mean(0),
        "variance": stacked["variance"].mean(0) + stacked["mean"].var(0),
    }
    first = members[0]
    arrays = {
        "instance_labels": first.arrays["instance_labels"],
        "instance_epochs": np.array([1]),
        **{f"{w}_{k}": v[None] for w in ("raw", "ema", "average") for k, v in combined.items()},
    }
    header = {**first.header, "method": {**first.header["method"], "name": name}, "seed": 0}
    return Trace(header, arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--method", required=True)
    parser.add_argument("--rule", default="ema-nll", choices=RULES)
    parser.add_argument("--sets", nargs="+")
    a = parser.parse_args()
    folds: dict[tuple[str, int], list[Trace]] = defaultdict(list)
    for trace in load_all(a.traces, sets=a.sets, methods=[a.method]):
        folds[trace.header["data"], trace.header["fold"]].append(trace)
    for (data, fold), members in folds.items():
        name = f"{a.method}-x{len(members)}" + ("" if a.rule == "ema-nll" else f"-{a.rule}")
        path = path_of(a.traces, data=data, method=name, fold=fold, seed=0)
        save(path, ensemble(members, name=name, rule=a.rule))
    print(f"{len(folds)} traces of ensembles")


if __name__ == "__main__":
    main()

"""Tables of traced runs under a chosen rule: maps, bags, paired differences and doubt.

    python benchmarks/real/summary.py TRACES --data BAGS --rule ema-nll [--rules abmil=auroc]
        [--against abmil] [--null null_maps.csv]

Values are means over runs (folds × seeds). Instance measures are within positive test bags with
instances of both labels (mean over bags), and pooled over the instances of all positive test bags
of a fold; `g` are those of the class scores uᵀh. Attention logits are pooled as
s = μ − logsumexp(μ) + log N. Differences are paired: both methods are averaged over folds and seeds
within the same resamples of groups (column `group` of labels.csv, else bags).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from selection import RULES, Choice
from study_doubt import doubt_table
from study_metrics import auroc, average_precision, bag_losses, difference, evidence_scale, number
from trace_file import Trace, load_all

from probsa.core import TextTable
from probsa.statistics import Draws

COLUMNS = {
    "within_auroc": "AUROC within",
    "within_ap": "AP within",
    "pooled_auroc": "AUROC pooled",
    "pooled_ap": "AP pooled",
    "g_within_auroc": "g: AUROC within",
    "g_within_ap": "g: AP within",
    "g_pooled_auroc": "g: AUROC pooled",
    "g_pooled_ap": "g: AP pooled",
    "bag_auroc": "bag AUROC",
    "bag_nll": "NLL",
    "bag_brier": "Brier",
}
Samples = dict[str, np.ndarray]
"""By measure: its value on the data, then on every resample of the groups."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A run and what the rule chose of it."""

    trace: Trace
    choice: Choice

    @property
    def has_zero(self) -> bool:
        """Whether the scores of instances are log-odds, with a zero of their own."""
        return self.trace.header["method"]["model"].startswith("evidence")


class Resampler:
    """Resamples of the groups of a set, the same ones for every method."""

    def __init__(self, labels: Path, *, resamples: int) -> None:
        rows = TextTable.read(labels).rows
        self.index = {r["bag"]: k for k, r in enumerate(rows)}
        self.draws = Draws.stratified(
            np.array([r["label"] for r in rows]),
            groups=[r.get("group") or r["bag"] for r in rows],
            resamples=resamples,
            seed=0,
        ).with_data()

    def of(self, names: Sequence[str]) -> Draws:
        """Return the draws of some bags, which may repeat."""
        return self.draws.for_items(np.array([self.index[n] for n in names], dtype=np.int64))

    def mean(self, names: Sequence[str], values: np.ndarray) -> np.ndarray:
        """Return the mean over bags of a value, leaving out NaN."""
        defined = np.isfinite(values)
        columns = np.stack([np.where(defined, values, 0.0), defined.astype(float)], axis=1)
        total, count = self.of(names).totals(columns).T
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def run_samples(run: Chosen, resampler: Resampler) -> Samples:
    """Return the measures of one run on its test fold."""
    trace, (weights, epoch) = run.trace, run.choice
    names, y = trace.names("test"), trace.labels("test")
    p = trace.test_probability(weights, epoch)
    samples = {
        "bag_auroc": resampler.of(names).ranks(y > 0, p)[0],
        "bag_nll": resampler.mean(names, bag_losses(y, p)),
        "bag_brier": resampler.mean(names, (p - y) ** 2),
    }
    bags = [b for b in trace.instances(weights, epoch) if b.label > 0 and (b.truth >= 0).all()]
    if not bags:
        return samples
    names = [b.name for b in bags]
    kind = trace.header["score_kind"]
    scales = [evidence_scale(b.mean, kind=kind, has_zero=run.has_zero) for b in bags]
    columns = {"": ([b.mean for b in bags], scales), "g_": ([b.g for b in bags],) * 2}
    for prefix, (within, pooled) in columns.items():
        if within[0] is None:
            continue
        both = list(zip(bags, within, strict=True))
        samples |= {
            f"{prefix}within_auroc": resampler.mean(
                names, np.array([auroc(b.truth, v) for b, v in both])
            ),
            f"{prefix}within_ap": resampler.mean(
                names, np.array([average_precision(b.truth, v) if b.has_both else np.nan
                                 for b, v in both])
            ),
        }  # fmt: skip
        if pooled[0] is not None:
            owners = [b.name for b in bags for _ in b.truth]
            truth = np.concatenate([b.truth for b in bags]) > 0
            ranks = resampler.of(owners).ranks(truth, np.concatenate(pooled))
            samples |= {f"{prefix}pooled_auroc": ranks[0], f"{prefix}pooled_ap": ranks[1]}
    return samples


def method_samples(runs: Sequence[Chosen], resampler: Resampler) -> Samples:
    """Return the measures of a method: over seeds in each fold, then over folds."""
    by_run = [(r.trace.header["fold"], run_samples(r, resampler)) for r in runs]
    samples = {}
    for key in COLUMNS:
        by_fold: dict[int, list[np.ndarray]] = {}
        for fold, of_run in by_run:
            if key in of_run:
                by_fold.setdefault(fold, []).append(of_run[key])
        if by_fold:
            folds = np.array([np.mean(v, axis=0) for v in by_fold.values()])
            defined = np.isfinite(folds)
            total = np.where(defined, folds, 0.0).sum(0)
            samples[key] = np.where(defined.any(0), total / np.maximum(defined.sum(0), 1), np.nan)
    return samples


def print_set(
    runs: Mapping[str, Sequence[Chosen]],
    resampler: Resampler,
    *,
    against: str | None,
    null: Sequence[Mapping[str, str]],
) -> None:
    """Print the table of a set, and the differences to one method."""
    by_method = {m: method_samples(r, resampler) for m, r in runs.items()}
    print("| method | runs | " + " | ".join(COLUMNS.values()) + " |")
    print("|---|---" + "|---" * len(COLUMNS) + "|")
    for method, samples in by_method.items():
        cells = [number(samples[k][0]) if k in samples else "–" for k in COLUMNS]
        print(f"| {method} | {len(runs[method])} | " + " | ".join(cells) + " |")
    for name in dict.fromkeys(r["map"] for r in null):
        cells = []
        for key in COLUMNS:
            values = [float(r[key]) for r in null if r["map"] == name and r.get(key)]
            cells.append(number(float(np.mean(values))) if values else "–")
        print(f"| *{name}* | | " + " | ".join(cells) + " |")
    if against is None or against not in by_method:
        return
    base = by_method[against]
    keys = [k for k in COLUMNS if any(k in s for s in by_method.values())]
    print(f"\nDifference to {against}, with 95 % intervals over groups.\n")
    print("| method | " + " | ".join(COLUMNS[k] for k in keys) + " |")
    print("|---" * (len(keys) + 1) + "|")
    for method, samples in by_method.items():
        if method == against:
            continue
        cells = [
            difference(samples[k] - base[k]) if k in samples and k in base else "–" for k in keys
        ]
        print(f"| {method} | " + " | ".join(cells) + " |")


def chosen_runs(
    traces: Sequence[Trace], *, rule: str, rules: Mapping[str, str]
) -> dict[str, list[Chosen]]:
    """Return the runs by method, each with the choice of its method's rule."""
    runs: dict[str, list[Chosen]] = {}
    for trace in traces:
        method = trace.header["method"]["name"]
        choice = RULES[rules.get(method, rule)](trace)
        runs.setdefault(method, []).append(Chosen(trace=trace, choice=choice))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, help="the folder of the sets, for their groups")
    parser.add_argument("--rule", choices=RULES, default="auroc")
    parser.add_argument("--rules", nargs="+", default=[], metavar="METHOD=RULE")
    parser.add_argument("--against", help="print differences to this method")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--null", type=Path, help="the table of null_maps.py, to show beside")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--check", action="store_true", help="check the rules and the measures")
    a = parser.parse_args()
    if a.check:
        from study_checks import check_all

        check_all()
        return
    null = TextTable.read(a.null).rows if a.null else []
    rules = dict(text.split("=") for text in a.rules)
    for data in a.sets or sorted(p.name for p in a.traces.iterdir() if p.is_dir()):
        traces = load_all(a.traces, sets=[data], methods=a.methods)
        if not traces:
            continue
        runs = chosen_runs(traces, rule=a.rule, rules=rules)
        resampler = Resampler(a.data / data / "labels.csv", resamples=a.resamples)
        print(f"\n## {data}\n")
        of_set = [r for r in null if r["set"] == data]
        print_set(runs, resampler, against=a.against, null=of_set)
        doubt_table(runs, resampler)


if __name__ == "__main__":
    main()

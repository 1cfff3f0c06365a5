"""Turn traces into rows of the LocalMIL leaderboard, one file per method.

    python benchmarks/real/trace_rows.py TRACES --sets-folder SETS --out SUBMISSIONS
        [--rules abmil=auroc …]

The weights are those that a rule chooses: the rule of recipes/localmil.yaml, `auroc` for the
paper's models and `ema-nll` for fields and evidence models, unless --rules says otherwise. Only
replicates with all folds count.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from selection import RULES
from trace_file import Instances, Trace, load_all

from probsa.core import write_json
from probsa.datasets import LabelTable, read_table
from probsa.evaluation import BagMeasures, Prediction, bag_measures
from probsa.evaluation.submission import FORMAT, Submission, SubmittedBag, SubmittedSet

NONE = BagMeasures(auroc=None, average_precision=None, doubt_gain=None, faithfulness=None)


def prediction(b: Instances, *, kind: str) -> Prediction:
    """Return what the measures need of a bag's prediction."""
    n, empty = len(b.mean), np.empty(0, np.float32)
    weight = np.full(n, 1 / n, np.float32)
    return Prediction(
        name=b.name,
        probability=empty,
        std=empty,
        coords=None,
        attention_mean=b.mean.astype(np.float32),
        attention_variance=b.variance.astype(np.float32),
        weight_mean=weight,
        weight_variance=np.zeros(n, np.float32),
        degree=weight,
        score_kind=kind,
        instance_labels=b.truth.astype(np.int64),
    )


def bags_of(trace: Trace, table: LabelTable, *, rule: str) -> dict[str, SubmittedBag]:
    """Return the test bags of a run at the weights of a rule."""
    choice = RULES[rule](trace)
    kept = {b.name: b for b in trace.instances(choice.weights, choice.epoch)}
    p = trace.test_probability(choice.weights, choice.epoch)
    place = {bag: k for k, bag in enumerate(table.bags)}
    bags = {}
    for k, name in enumerate(trace.names("test")):
        y, b = int(trace.labels("test")[k]), kept.get(name)
        row = place[name]
        assert table.folds is not None and (b is not None or y == 0)
        bags[name] = SubmittedBag(
            y=y,
            group=table.group(row),
            fold=table.folds[row],
            n=trace.header["test"]["sizes"][k],
            positive=0 if b is None else int((b.truth > 0).sum()),
            p=float(np.clip(p[k], 0, 1)),
            measures=NONE
            if b is None or y == 0
            else bag_measures(prediction(b, kind=trace.header["score_kind"])),
        )
    return bags


def rule_of(method: str, given: Mapping[str, str]) -> str:
    """Return the rule of a method."""
    by_recipe = method.startswith("evidence") or "-field" in method
    return given.get(method, "ema-nll" if by_recipe else "auroc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("--sets-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--rules", nargs="+", default=[], metavar="METHOD=RULE")
    a = parser.parse_args()
    given = dict(item.split("=") for item in a.rules)
    found: dict[str, dict[str, dict[int, dict[str, SubmittedBag]]]] = defaultdict(dict)
    tables: dict[str, LabelTable] = {}
    for trace in load_all(a.traces, sets=a.sets, methods=a.methods):
        data, method = trace.header["data"], trace.header["method"]["name"]
        if data not in tables:
            tables[data] = read_table(a.sets_folder / data / "labels.csv")
        replicates = found[method].setdefault(data, defaultdict(dict))
        bags = bags_of(trace, tables[data], rule=rule_of(method, given))
        replicates[trace.header["seed"]] |= bags
    for method, sets in found.items():
        whole = {}
        for data, replicates in sets.items():
            card = json.loads((a.sets_folder / data / "card.json").read_text())
            every = SubmittedSet(
                fingerprint=card["fingerprint"],
                replicates={str(seed): bags for seed, bags in sorted(replicates.items())},
            )
            good = {r: bags for r, bags in every.replicates.items() if every.missing(r) is None}
            if good:
                whole[data] = SubmittedSet(fingerprint=every.fingerprint, replicates=good)
            print(f"{method} on {data}: {len(good)} of {len(replicates)} replicates are whole")
        if whole:
            row = Submission(method=method, sets=whole)
            write_json(a.out / f"{method}.json", {"format": FORMAT, **asdict(row)})


if __name__ == "__main__":
    main()

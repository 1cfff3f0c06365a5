"""Predictions folders with patients of several bags, for guarantees."""

import numpy as np
from support.made_predictions import made

from probsa.evaluation import write_predictions


def write_cohort(
    path,
    *,
    parts=(("val", 40), ("test", 40)),
    seed=0,
    skill=1.5,
    classes=("0", "1"),
    threshold=0.4,
    **about,
):
    """Write predictions of groups with one or two bags, and a label table with the groups.

    Args:
        path: the folder of the predictions; the table lies beside it.
        parts: the parts of the run, with their number of groups.
        seed: seed of everything.
        skill: how far the log odds of the classes lie apart.
        classes: names of the classes.
        threshold: the stored threshold; None for none.
        about: further entries of predictions.json.
    """
    rng = np.random.default_rng(seed)
    predictions = []
    labels = {}
    part_of = {}
    group_of = {}
    for part, count in parts:
        for g in range(count):
            patient = rng.normal()
            for b in range(rng.integers(1, 3)):
                name = f"{path.name}-{part}{g}-{b}"
                y = int(rng.random() < 0.5)
                log_odds = skill * (2 * y - 1) + patient + 0.5 * rng.normal()
                truth = (rng.random(15) < 0.4) & bool(y)
                predictions.append(
                    made(
                        name,
                        rng.normal(size=15) + 1.5 * truth,
                        truth.astype(int),
                        probability=(1 / (1 + np.exp(-log_odds)),),
                        score_kind="evidence",
                    )
                )
                labels[name], part_of[name], group_of[name] = y, part, f"{path.name}-{part}{g}"
    metadata = {"model": "abmil", "epoch": 3, **about}
    write_predictions(
        path,
        predictions,
        labels=labels,
        parts=part_of,
        classes=classes,
        threshold=threshold,
        metadata=metadata,
    )
    table = path.with_suffix(".csv")
    rows = [f"{b},{y},{group_of[b]}" for b, y in labels.items()]
    table.write_text("\n".join(["bag,label,group", *rows]) + "\n")
    return path, table


def joined(tmp_path, *tables):
    """Return one table with the rows of several."""
    lines = [t.read_text().splitlines() for t in tables]
    path = tmp_path / "joined.csv"
    path.write_text("\n".join([lines[0][0], *(row for rows in lines for row in rows[1:])]) + "\n")
    return path

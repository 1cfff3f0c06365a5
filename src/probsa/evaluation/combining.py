"""The mean of several predictions of the same bags, such as those of runs with two encoders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ..core import check_apart, write_csv
from ..errors import BagError, InputError
from ..statistics import choose_threshold
from .baselines.null_maps import read_null_scores, write_null_scores
from .ensemble import MeansOfRuns, combine
from .prediction import Prediction
from .storage import FAILED, NULL_SCORES, Predictions, read_predictions, write_predictions

OF_INSTANCES = ("ood", "ood_distance")
OF_BAG = {"bag_ood": "ood", "bag_ood_distance": "ood_distance"}
"""The distances from training of a bag, and the columns of the table that hold them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combined:
    """What `combine_predictions` wrote."""

    folder: Path
    bags: int
    threshold: float | None
    failures: tuple[tuple[str, str], ...] = ()
    """The bags that are left out, with the reason."""


def combine_predictions(
    folders: Sequence[Path | str], out: Path | str, *, overwrite: bool = False
) -> Combined:
    """Write the mean of the predictions and maps of several folders, and how they disagree.

    The folders count equally, and the variance has a part within and a part between them. For two
    classes, the threshold is chosen on the validation bags again, or is the mean of the thresholds
    where these lack a class. Null maps are means of ranks within the bag. A bag is left out if a
    folder lacks it, or has it in another part of the run, or with another label or other instances;
    `failed.csv` has the reason.

    Args:
        folders: At least two folders of predictions.
        out: The folder to write.
        overwrite: Replace predictions that are there.

    Raises:
        InputError: There are fewer than two folders, or their tasks, classes or kinds of scores
            differ.
        BagError: No bag can be combined; gives the first reason.
        OutputExists: The folder exists and `overwrite` is not set, or it is one of `folders`.
    """
    check_apart(Path(out), *map(Path, folders))
    tables = [read_predictions(folder) for folder in folders]
    if len(tables) < 2:
        raise InputError(f"{len(tables)} folder is given: give two or more to combine")
    first, places = tables[0], [{bag: k for k, bag in enumerate(t.bags)} for t in tables]
    for other in tables[1:]:
        for what in ("task", "class_names", "outputs"):
            a, b = getattr(first, what), getattr(other, what)
            if a != b:
                raise InputError(
                    f"{first.folder} and {other.folder} are of different models: "
                    f"{what.replace('_', ' ')} {a!r} and {b!r}. Combine predictions of one target"
                )
    names = tuple(dict.fromkeys(name for table in tables for name in table.bags))
    failures: list[tuple[str, str]] = []

    def combined() -> Iterator[Prediction]:
        for name in names:
            try:
                yield _combined(name, tables, places)
            except BagError as error:
                failures.append((name, str(error)))
        if len(failures) == len(names):
            raise BagError(f"no bag can be combined. {failures[0][0]!r}: {failures[0][1]}")

    def more(new: Path) -> None:
        if failures:
            rows = [{"bag": bag, "reason": reason} for bag, reason in failures]
            write_csv(new / FAILED, ["bag", "reason"], rows)
        if all((t.folder / NULL_SCORES).is_dir() for t in tables):
            nulls = MeansOfRuns(runs=tuple(map(_StoredRanks, tables)), seen=())
            write_null_scores(new, nulls, read=first.instances)

    rows = places[0].items()
    given = first.labels if first.targets is None else first.targets
    threshold = _threshold(tables, places)
    shared = {
        k: v
        for k, v in first.metadata.items()
        if k not in ("reservations", "map_trust") and all(t.metadata.get(k) == v for t in tables)
    }
    write_predictions(
        Path(out),
        combined(),
        labels={name: given[k] for name, k in rows},
        parts={name: first.parts[k] for name, k in rows},
        classes=first.classes,
        threshold=threshold,
        metadata={
            **shared,
            "model": " + ".join(str(t.metadata.get("model", "unknown")) for t in tables),
            "members": len(tables),
            "combined": [str(t.folder) for t in tables],
        },
        overwrite=overwrite,
        more=more,
    )
    written = len(names) - len(failures)
    return Combined(folder=Path(out), bags=written, threshold=threshold, failures=tuple(failures))


def _combined(
    name: str, tables: Sequence[Predictions], places: Sequence[dict[str, int]]
) -> Prediction:
    """Return the mean prediction of a bag.

    Raises:
        BagError: a folder lacks the bag, or its part, label or instances differ.
        InputError: the scores of its instances are of different kinds.
    """
    lacking = [t.folder for t, place in zip(tables, places, strict=True) if name not in place]
    if lacking:
        raise BagError(f"{lacking[0]} has no prediction of it")
    stated = [
        (t.parts[place[name]], t.labels[place[name]])
        for t, place in zip(tables, places, strict=True)
    ]
    members = [table.instances(name) for table in tables]
    first, (part, label) = members[0], stated[0]
    for table, (other_part, other_label), other in zip(tables, stated, members, strict=True):
        pair = f"{tables[0].folder} and {table.folder}"
        if other_part != part:
            raise BagError(f"it is a {part} and a {other_part} bag of the runs of {pair}")
        if other_label != label:
            raise BagError(f"it has the labels {label} and {other_label} in {pair}")
        if other.score_kind != first.score_kind:
            raise InputError(
                f"bag {name!r}: the scores of {pair} are of the kinds {first.score_kind} and "
                f"{other.score_kind}, which have no common mean: combine models of one kind"
            )
        sizes = len(first.attention_mean), len(other.attention_mean)
        if sizes[0] != sizes[1]:
            raise BagError(f"it has {sizes[0]} and {sizes[1]} instances in {pair}")
        a, b = first.coords, other.coords
        if a is not b and (a is None or b is None or not np.array_equal(a, b)):
            raise BagError(f"its instances have different coordinates in {pair}")
    known: dict[str, list[Any]] = {k: [getattr(p, k) for p in members] for k in OF_INSTANCES}
    for field, column in OF_BAG.items():
        columns = [getattr(table, column) for table in tables]
        rows = zip(columns, places, strict=True)
        known[field] = [None if v is None else v[place[name]] for v, place in rows]
    means = {
        k: None if any(v is None for v in values) else np.mean(values, 0)
        for k, values in known.items()
    }
    found = combine(members, align=first.score_kind == "logit")
    return replace(found, group=tables[0].group_of.get(name, ""), **means)


def _threshold(tables: Sequence[Predictions], places: Sequence[dict[str, int]]) -> float | None:
    """Return the threshold of the mean probability; None where another rule decides calls."""
    first = tables[0]
    if not first.of_task.two_classes:
        return None
    names = [
        name
        for name, k in places[0].items()
        if first.parts[k] == "val"
        and first.labels[k] is not None
        and all(name in p for p in places)
    ]
    y = np.array([first.labels[places[0][name]] == 1 for name in names], dtype=bool)
    if y.any() and not y.all():
        each = [
            t.probability[[place[n] for n in names], -1]
            for t, place in zip(tables, places, strict=True)
        ]
        return choose_threshold(y, np.mean(each, 0)).value
    known = [t.call_threshold for t in tables if t.call_threshold is not None]
    values = [threshold.value for threshold in known if threshold.origin != "default"]
    return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class _StoredRanks:
    """The null maps that are stored with predictions, as ranks of the instances of a bag."""

    table: Predictions

    @property
    def about(self) -> dict[str, Any]:
        """Where they come from."""
        return {"folder": str(self.table.folder)}

    def scores(self, bag: Prediction) -> dict[str, Any]:
        """Return the ranks by null map, or the reason why there are none."""
        size = len(bag.attention_mean)
        found = read_null_scores(self.table.folder, bag.name, instances=size)
        return {k: v if isinstance(v, str) else rankdata(v) for k, v in found.items()}

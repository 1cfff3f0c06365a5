"""Train a run on bags in memory: the package's own preparation, training loop and predictor."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core import Bag, TextTable
from ..datasets import BagList, LabelTable, Split, make_split
from ..errors import GraphError, InputError, TableError
from ..evaluation import Predictor, load, scale_run
from ..models import look_up
from ..training import RunConfig, prepare_bags, thread_count, train


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A trained predictor, and how it was trained."""

    predictor: Predictor
    split: Split
    history: list[dict[str, float | None]]
    """The rows of metrics.csv, one per epoch."""


def fit_bags(
    config: RunConfig, bags: Sequence[Bag], table: LabelTable, *, validation: float | int
) -> Fitted:
    """Train a run in a temporary folder.

    Args:
        config: the run; its paths are not used.
        bags: the bags, each with a name of its own.
        table: their labels.
        validation: share of the bags that validates; 0 for none.

    Raises:
        InputError, TableError, GraphError, BagError: as `probsa.training.train`.
    """
    _check_graphs(config.model, bags)
    data = BagList(bags)
    split = _split(table, validation=validation, seed=config.order_seed)
    prepared = prepare_bags(config, data, table=table, split=split)
    temporary = tempfile.TemporaryDirectory(prefix="probsa-")
    with temporary as folder, thread_count(config.training.threads):
        run = train(config, Path(folder) / config.model, prepared=prepared)
        predictor = load(run.path, device=config.training.device)
        if config.training.temperature_scaling:
            predicted = list(predictor.predict(data.bag(name) for name in split.val))
            y = np.array([prepared.targets[p.name] for p in predicted], dtype=np.int64)
            scale_run(run, predictor, predicted, y=y)
        rows = TextTable.read(run.metrics_file).rows
    history = [{k: float(v) if v else None for k, v in row.items()} for row in rows]
    return Fitted(predictor=predictor, split=split, history=history)


def _split(table: LabelTable, *, validation: float | int, seed: int) -> Split:
    if validation == 0:
        return Split(train=table.bags, val=(), test=(), origin="validation is 0: all bags train")
    try:
        return make_split(table, validation=validation, seed=seed)
    except TableError as error:
        raise InputError(
            f"{len(table.bags)} bags in {len(set(table.groups or table.bags))} groups cannot be "
            f"divided so that {validation:g} of them validate and every "
            f"{'class trains' if table.classes else 'part is complete'}: give more bags, or "
            "validation=0"
        ) from error


def _check_graphs(model: str, bags: Sequence[Bag]) -> None:
    """Refuse bags without coordinates for a model that needs neighbours, before training does."""
    if "edges" not in look_up(model).model.needs:
        return
    for bag in bags:
        if bag.coords is None and len(bag) > 1 and not bag.edges.numel():
            raise GraphError(
                f"{model} needs neighbours, but bag {bag.name!r} has no coordinates: give pairs "
                "(features, coords), or a model without a graph, such as model='abmil'"
            )

"""What images add to clinical covariates: covariates alone, images alone, and both.

The three fits have the same likelihood, the same split and the same seeds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Grid

from ..datasets import BagSet, LabelTable
from ..evaluation import (
    load,
    read_predictions,
    target_data,
)
from ..statistics import Draws, Metric, TargetMetrics
from ..training import (
    PreparedData,
    Reporter,
    RunFolder,
    build_model,
    open_units,
    prepare,
    stack_targets,
    train,
)
from ..variational import Bernoulli, Categorical, balanced_weights
from .linear_fit import fit_linear

IMAGES, COVARIATES, BOTH = "images alone", "covariates alone", "both"
ALMOST_ALL = 0.98
"""A primary metric (AUROC, kappa, concordance) of covariates alone above which one of them may
state the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CovariateSection:
    """The primary metric of the three fits on the evaluated bags, and their paired differences."""

    metric: str
    values: Mapping[str, Metric]
    gain_over_covariates: Metric
    """Both minus covariates alone, which is what the images add."""
    gain_over_images: Metric
    coefficients: Mapping[str, Sequence[float]]
    """The effect of each encoded covariate on the logits, in the fit of both."""
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its key in the JSON report."""
        return "covariates"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "metric": self.metric,
            "values": {name: m.to_dict() for name, m in self.values.items()},
            "gain_over_covariates": self.gain_over_covariates.to_dict(),
            "gain_over_images": self.gain_over_images.to_dict(),
            "coefficients": {name: list(b) for name, b in self.coefficients.items()},
            "warnings": list(self.warnings),
        }

    def render(self, console: Console) -> None:
        """Print it as text."""
        grid = Grid(title="clinical covariates", title_justify="left")
        grid.add_column("fit")
        grid.add_column(self.metric, justify="right")
        for name, metric in self.values.items():
            grid.add_row(name, str(metric))
        console.print(grid)
        console.print(
            f"what images add to the covariates: {self.gain_over_covariates}; what "
            f"covariates add to the images: {self.gain_over_images}",
            markup=False,
            soft_wrap=True,
        )
        effects = ", ".join(
            f"{name} {'/'.join(f'{v:+.2f}' for v in b)}" for name, b in self.coefficients.items()
        )
        console.print(f"association with the logit: {effects}", markup=False, soft_wrap=True)
        for warning in self.warnings:
            console.print(f"warning: {warning}", markup=False, soft_wrap=True)


def compare_covariates(
    run: RunFolder, *, bootstrap: int = 2000, reporter: Reporter | None = None
) -> CovariateSection | None:
    """Compare a run with covariates with fits of covariates alone and of images alone.

    The fit of images alone is a run in `images_alone` below the run folder, which is not trained
    again if it is complete.

    Args:
        run: the folder of a run that has predicted its held-out bags.
        bootstrap: number of resamples of the patients; 0 for no intervals.
        reporter: informed of the epochs of the fit of images alone.

    Returns:
        The comparison on the test bags, or without any on the validation bags; None for a run
        without covariates, and where several processes trained, which the fit of images alone
        would wait for.
    """
    config = run.config()
    if not config.data.covariates.columns or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return None
    prepared = prepare(config, previous=run.path)
    split = prepared.split
    bags, table = open_units(config.data)
    predictions = read_predictions(run.predictions)
    usable = set(predictions.bags) & set(prepared.targets)
    names = [name for name in split.test or split.val if name in usable]
    rows = [predictions.bags.index(name) for name in names]
    y = stack_targets(prepared.targets, names).double().numpy().reshape(len(names), -1)
    both = target_data(predictions, rows, y)
    fits = {
        COVARIATES: replace(both, predicted=_covariates_alone(run, prepared, names), scores={}),
        IMAGES: replace(
            both, predicted=_images_alone(run, prepared, bags, names, reporter=reporter), scores={}
        ),
        BOTH: replace(both, scores={}),
    }
    task = table.of_task
    draws = Draws.stratified(
        task.labels.strata(both.y), groups=_groups(table, names), resamples=bootstrap, seed=0
    )
    sampled = {name: task.metrics(data, draws) for name, data in fits.items()}
    return _section(run, prepared, sampled)


def _section(
    run: RunFolder, prepared: PreparedData, sampled: Mapping[str, TargetMetrics]
) -> CovariateSection:
    primary = prepared.table.of_task.primary
    of_fit = {name: metrics.overall[primary.name] for name, metrics in sampled.items()}
    alone = of_fit[COVARIATES].value
    warnings = []
    if primary.higher_is_better and alone is not None and alone > ALMOST_ALL:
        warnings.append(
            f"covariates alone reach {alone:.3f}: one of them may be a function of the target"
        )
    members = load(run.path, device="cpu").members
    found = [m.model.covariates.weight for m in members if m.model.covariates is not None]
    assert prepared.encoder is not None
    effects = torch.stack(found).mean(0).T.tolist()
    both, higher = of_fit[BOTH], primary.higher_is_better
    return CovariateSection(
        metric=primary.name,
        values=dict(of_fit),
        gain_over_covariates=_gain(both, of_fit[COVARIATES], higher=higher),
        gain_over_images=_gain(both, of_fit[IMAGES], higher=higher),
        coefficients=dict(zip(prepared.encoder.names, effects, strict=True)),
        warnings=tuple(warnings),
    )


def _gain(both: Metric, alone: Metric, *, higher: bool) -> Metric:
    """Return the paired gain of both, which is above 0 where they are better."""
    return both - alone if higher else alone - both


def _images_alone(
    run: RunFolder,
    prepared: PreparedData,
    bags: BagSet,
    names: Sequence[str],
    *,
    reporter: Reporter | None,
) -> np.ndarray:
    """Return what the same run without covariates predicts."""
    without = replace(
        prepared,
        bags=prepared.bags.sealed((), why=""),
        encoder=None,
        model_arguments={k: v for k, v in prepared.model_arguments.items() if k != "covariates"},
    )
    without.bags.covariates = {}
    if reporter is not None:
        reporter.note("For comparison, the same run is now trained on images alone.")
    folder = train(
        run.config(), run.path / "images_alone", resume=True, prepared=without, reporter=reporter
    )
    predictor = load(folder.path, device=run.config().training.device)
    bags.covariates = {}
    return _stacked(p.probability for p in predictor.predict(bags.bag(n) for n in names))


def _stacked(rows: Any) -> np.ndarray:
    return np.stack(list(rows)).astype(np.float64)


def _covariates_alone(run: RunFolder, prepared: PreparedData, names: Sequence[str]) -> np.ndarray:
    """Return what a linear model of the covariates predicts, with the likelihood of the run."""
    config = run.config()
    model = build_model(config, prepared).double()
    likelihood, columns = model.likelihood, model.n_classes
    given, train_names = prepared.bags.covariates, prepared.split.train
    x = torch.stack([given[name] for name in train_names]).double()
    y = stack_targets(prepared.targets, train_names)
    decay = config.training.covariate_weight_decay
    if config.training.sampling == "balanced" and isinstance(likelihood, Bernoulli | Categorical):
        # as the run sees every class equally often; `prior` moves the probabilities back
        weights = balanced_weights(y, columns)
        likelihood.class_weights = torch.tensor(weights).double()
    linear = fit_linear(likelihood, x, y, columns=columns, decay=decay)
    with torch.no_grad():
        if prepared.prior is not None and isinstance(likelihood, Bernoulli | Categorical):
            one = isinstance(likelihood, Bernoulli)
            likelihood.prior_shift = prepared.prior.shift(one_logit=one)
        test = linear(torch.stack([given[name] for name in names]).double())
        return likelihood.predict(test[:, None]).values.numpy().astype(np.float64)


def _groups(table: LabelTable, names: Sequence[str]) -> list[str]:
    rows = {bag: row for row, bag in enumerate(table.bags)}
    return [table.group(rows[name]) for name in names]

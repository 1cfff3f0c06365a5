"""What images add to clinical covariates: covariates alone, images alone, and both.

The three fits have the same likelihood, the same split and the same seeds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..datasets import BagSet
from ..evaluation import RIGHT, Section, grid, load, read_predictions, target_data
from ..statistics import Draws, Metric
from ..tasks import Measure
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
from ..variational import Bernoulli, Categorical
from .mean_features import fit_linear, weigh_classes

IMAGES, COVARIATES, BOTH = "images alone", "covariates alone", "both"
ALMOST_ALL = 0.98
"""A primary metric (AUROC, kappa, concordance) of covariates alone above which one of them may
state the target."""


def covariate_section(
    primary: Measure,
    values: Mapping[str, Metric],
    *,
    coefficients: Mapping[str, Sequence[float]],
) -> Section:
    """Return the primary metric of the three fits on the evaluated bags, and paired differences.

    Args:
        primary: The primary metric of the task.
        values: Its value for each of the three fits.
        coefficients: The effect of each encoded covariate on the logits, in the fit of both.
    """
    gains = {
        name: values[BOTH] - values[name]
        if primary.higher_is_better
        else values[name] - values[BOTH]
        for name in (COVARIATES, IMAGES)
    }
    alone = values[COVARIATES].value
    warnings = []
    if primary.higher_is_better and alone is not None and alone > ALMOST_ALL:
        warnings.append(
            f"covariates alone reach {alone:.3f}: one of them may be a function of the target"
        )
    effects = ", ".join(
        f"{name} {'/'.join(f'{value:+.2f}' for value in of_logits)}"
        for name, of_logits in coefficients.items()
    )
    rows = [(name, str(metric)) for name, metric in values.items()]
    return Section(
        "covariates",
        {
            "metric": primary.name,
            "values": values,
            "gain_over_covariates": gains[COVARIATES],
            "gain_over_images": gains[IMAGES],
            "coefficients": coefficients,
            "warnings": warnings,
        },
        text=[
            grid("clinical covariates", {"fit": {}, primary.name: RIGHT}, rows),
            f"what images add to the covariates: {gains[COVARIATES]}; what covariates add to the "
            f"images: {gains[IMAGES]}",
            f"association with the logit: {effects}",
        ],
        metrics={
            **{name: {primary.name: metric} for name, metric in values.items()},
            **{f"{BOTH} minus {name}": {primary.name: gain} for name, gain in gains.items()},
        },
        warnings=warnings,
    )


def compare_covariates(
    run: RunFolder, *, bootstrap: int = 2000, reporter: Reporter | None = None
) -> Section | None:
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
    task, rows_of = table.of_task, {bag: row for row, bag in enumerate(table.bags)}
    draws = Draws.patients(
        task.labels.strata(both.y),
        groups=[table.group(rows_of[name]) for name in names],
        resamples=bootstrap,
        seed=0,
    )
    primary = task.primary
    values = {name: task.metrics(f, draws).overall[primary.name] for name, f in fits.items()}
    members = load(run.path, device="cpu").members
    found = [m.model.covariates.weight for m in members if m.model.covariates is not None]
    assert prepared.encoder is not None
    effects = torch.stack(found).mean(0).T.tolist()
    return covariate_section(
        primary, values, coefficients=dict(zip(prepared.encoder.names, effects, strict=True))
    )


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
    predicted = predictor.predict(bags.bag(n) for n in names)
    return np.stack([p.probability for p in predicted]).astype(np.float64)


def _covariates_alone(run: RunFolder, prepared: PreparedData, names: Sequence[str]) -> np.ndarray:
    """Return what a linear model of the covariates predicts, with the likelihood of the run."""
    config = run.config()
    model = build_model(config, prepared).double()
    likelihood, columns = model.likelihood, model.n_classes
    given, train_names = prepared.bags.covariates, prepared.split.train
    x = torch.stack([given[name] for name in train_names]).double()
    y = stack_targets(prepared.targets, train_names)
    decay = config.training.covariate_weight_decay
    if config.training.sampling == "balanced":
        weigh_classes(likelihood, y, columns=columns)
    linear = fit_linear(likelihood, x, y, columns=columns, decay=decay)
    with torch.no_grad():
        if prepared.prior is not None and isinstance(likelihood, Bernoulli | Categorical):
            one = isinstance(likelihood, Bernoulli)
            likelihood.prior_shift = prepared.prior.shift(one_logit=one)
        test = linear(torch.stack([given[name] for name in names]).double())
        return likelihood.predict(test[:, None]).values.numpy().astype(np.float64)

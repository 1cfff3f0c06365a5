"""The model card of a predictor, from a template: what it was trained on, how well it does, limits.

Every figure comes from the run's own files; a figure that is not known is said to be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from ..core import as_record, counted, read_json
from ..datasets import SPLIT_PARTS
from ..errors import UnknownName
from ..features import describe
from ..statistics import Metric
from ..tasks import task_of
from ..training import RunFolder, read_split
from .predictor import Predictor
from .titles import TARGET_TITLES

SHOWN = (
    "auroc", "macro_auroc", "average_precision", "f1", "balanced_accuracy", "accuracy", "brier",
    "ece", "quadratic_kappa", "within_one", "rps", "mae", "rmse", "r_squared", "spearman", "crps",
    "uno_c", "harrell_c", "mean_auroc", "integrated_brier", "nll",
)  # fmt: skip
"""The metrics of a report that a card lists, as far as a task has them."""
PARTS = {"train": "training", "val": "validation", "test": "test"}
SCORES = {
    "logit": "attention logits f. They say what the model pooled, not what is diseased; only "
    "differences within a bag have a meaning",
    "weight": "attention weights, which sum to 1 in each bag. They say what the model pooled, not "
    "what is diseased",
    "probability": "probabilities that an instance is positive, as the model was trained to give",
    "relevance": "relevances of the bag's prediction, without a threshold",
    "evidence": "evidence f: above 0 it speaks for the positive class, below 0 against it",
}
TEMPLATE = Path(__file__).with_name("model_card.md")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says of a model besides what the model itself states."""

    data: str = ""
    """A sentence on the data."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Number of bags of each part."""
    part: str = ""
    """The part that the metrics are of."""
    bags: int = 0
    """Number of bags that the metrics are of."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    remark: str = ""
    """A sentence on results, where there are no metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _StoredReport:
    """The part of evaluation.json that a card shows."""

    part: str
    bags: int
    metrics: dict[str, Metric]


def facts_of(predictor: Predictor, *, data: str = "") -> CardFacts:
    """Collect what the run folder of a predictor states.

    Raises:
        InputError: a file of the run is damaged.
    """
    run = predictor.run
    if run is None:
        return CardFacts(data=data)
    parts = {}
    if run.split_file.is_file():
        split = read_split(run)
        parts = {part: len(getattr(split, part)) for part in SPLIT_PARTS}
    report = _report(run)
    if report is None:
        return CardFacts(data=data, parts=parts)
    metrics = {k: m for k, m in report.metrics.items() if k in SHOWN and m.value is not None}
    return CardFacts(data=data, parts=parts, part=report.part, bags=report.bags, metrics=metrics)


def model_card(predictor: Predictor, facts: CardFacts) -> str:
    """Return the card, Markdown with metadata in YAML, which the Hugging Face Hub shows.

    Args:
        predictor: the model.
        facts: what is known of its data and results.
    """
    from .. import __version__

    model, stated, config = predictor.model, predictor.stated, predictor.config
    members = getattr(predictor, "members", (predictor,))
    stated = stated or members[0].stated
    tags = ["multiple-instance-learning", "weakly-supervised", "uncertainty", model.name]
    metadata = {"library_name": "probsa", "tags": tags}
    kinds = {"slide": "patches of slides", "ct": "slices of CT scans"}
    run: dict[str, Any] = {} if config is None else config.to_dict()
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        model=model.name,
        predicts=_predicts(predictor),
        version=__version__,
        data=facts.data or "No description of the data was given.",
        parts=", ".join(f"{n:,} {PARTS.get(p, p)}" for p, n in facts.parts.items()) or "not stated",
        kinds=_listed(kinds[k] for k in (stated.kinds if stated else ())),
        encoders=_listed(map(_with_licence, stated.encoders if stated else ())),
        mpp=_listed(f"{v:g} µm per pixel" for v in (stated.mpps if stated else ())),
        patch_size=_listed(f"{v:g} pixels" for v in (stated.patch_sizes if stated else ())),
        results=_results(facts),
        score_kind=SCORES[model.score_kind],
        members=f" and of {len(members)} members" if len(members) > 1 else "",
        run=yaml.safe_dump(
            {"model": run.get("model"), "training": run.get("training"), "seed": run.get("seed")}
            if run
            else {"model": {"name": model.name, **dict(model.arguments)}},
            sort_keys=False,
        ),
    )


def _report(run: RunFolder) -> _StoredReport | None:
    path = run.path / "evaluation.json"
    if not path.is_file():
        return None
    advice = "evaluate the run again"
    return as_record(_StoredReport, read_json(path, advice=advice), where=str(path), advice=advice)


def _results(facts: CardFacts) -> str:
    if not facts.metrics:
        return facts.remark or "No figures on held-out bags are stored with this model."
    rows = [f"On {counted(facts.bags, 'bag')} of the {PARTS.get(facts.part, facts.part)} part:", ""]
    rows += ["| metric | value | 95 % interval |", "|---|---|---|"]
    for name in SHOWN:
        metric = facts.metrics.get(name)
        if metric is not None and metric.value is not None:
            known = metric.low is not None and metric.high is not None
            span = f"{metric.low:.3f} to {metric.high:.3f}" if known else "not computed"
            rows.append(f"| {TARGET_TITLES[name]} | {metric.value:.3f} | {span} |")
    return "\n".join(rows)


def _with_licence(encoder: str) -> str:
    """Return the name of an encoder with its licence, where the package knows it."""
    name = encoder.partition("@")[0]
    try:
        licence = describe(name)["licence"]
    except UnknownName:
        return encoder
    return f"{encoder} (licence: {licence})"


def _listed(values: Any) -> str:
    return ", ".join(values) or "not stated"


def _predicts(predictor: Predictor) -> str:
    """Return what the model predicts of a bag, in words, with the names of its outputs."""
    names, likelihood = predictor.classes, predictor.model.likelihood
    target = predictor.metadata.get("target") or ()
    return task_of(predictor.task).predicts(names, likelihood.outputs(names), target)

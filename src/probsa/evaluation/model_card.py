"""The model card of a predictor, from a template: what it was trained on, how well it does, limits.

Every figure comes from the run's own files; a figure that is not known is said to be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from ..core import EncoderName, counted, read_record
from ..datasets import SPLIT_PARTS, FeatureMetadata
from ..errors import UnknownName
from ..features import describe
from ..statistics import Metric
from ..tasks import TASKS
from ..training import RunFolder, read_split
from .map_tests import FAILED, MapTest
from .pretrained import PretrainedConfig
from .words import METRIC_TITLES, no_interval_text

SHOWN = (
    "auroc", "macro_auroc", "average_precision", "f1", "balanced_accuracy", "accuracy", "brier",
    "ece", "quadratic_kappa", "within_one", "rps", "mae", "rmse", "r_squared", "spearman", "crps",
    "uno_c", "harrell_c", "mean_auroc", "integrated_brier", "nll",
)  # fmt: skip
"""The metrics of a report that a card lists, as far as a task has them."""
KINDS = {"slide": "patches of slides", "ct": "slices of CT scans"}
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
class StoredReport:
    """What a card shows of evaluation.json: the metrics of some bags of one part."""

    part: str
    bags: int
    metrics: dict[str, Metric]
    chance: str = ""
    rival: tuple[str, ...] = ()
    map_trust: dict[str, Any] | None = None
    within_bags: dict[str, Any] | None = None
    threshold: float | None = None
    threshold_source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What a card says of a model besides what the model itself states."""

    data: str = ""
    """A sentence on the data."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """Number of bags of each part."""
    report: StoredReport | None = None
    remark: str = ""
    """A sentence on results, where there is no report."""


def facts_of(run: RunFolder | None, *, data: str = "") -> CardFacts:
    """Collect what a run folder states.

    Raises:
        InputError: a file of the run is damaged.
    """
    parts, report = {}, None
    if run is not None and run.split_file.is_file():
        split = read_split(run)
        parts = {part: len(getattr(split, part)) for part in SPLIT_PARTS}
    if run is not None and (path := run.path / "evaluation.json").is_file():
        report = read_record(StoredReport, path, advice="evaluate the run again")
    return CardFacts(data=data, parts=parts, report=report)


def model_card(config: PretrainedConfig, facts: CardFacts, *, score_kind: str) -> str:
    """Return the card, Markdown with metadata in YAML, which the Hugging Face Hub shows.

    Args:
        config: what config.json states of the model.
        facts: what is known of its data and results.
        score_kind: what the scores of its instances are, see `Prediction.score_kind`.
    """
    first, members = config.members[0], len(config.members)
    stated = config.features or FeatureMetadata()
    tags = ["multiple-instance-learning", "weakly-supervised", "uncertainty", first.model]
    run: dict[str, Any] = {"model": {"name": first.model, **dict(first.arguments)}}
    if config.run is not None:
        run = {key: config.run.get(key) for key in ("model", "training", "seed")}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        metadata=yaml.safe_dump({"library_name": "probsa", "tags": tags}, sort_keys=False),
        model=first.model,
        predicts=TASKS[config.task].predicts(
            config.classes,
            TASKS[config.task].outputs_named(config.outputs),
            (config.about or {}).get("target") or (),
        ),
        version=config.probsa_version,
        data=facts.data or "No description of the data was given.",
        parts=_listed(f"{n:,} {PARTS.get(p, p)}" for p, n in facts.parts.items()),
        kinds=_listed(KINDS[k] for k in stated.kinds),
        encoders=_listed(map(_with_licence, stated.encoders)),
        mpp=_listed(f"{v:g} µm per pixel" for v in stated.mpps),
        patch_size=_listed(f"{v:g} pixels" for v in stated.patch_sizes),
        results=f"{_results(facts)}\n\n{_verdicts(facts)}".rstrip(),
        score_kind=SCORES[score_kind],
        members=f" and of {members} members" if members > 1 else "",
        run=yaml.safe_dump(run, sort_keys=False),
    )


def _results(facts: CardFacts) -> str:
    report = facts.report
    metrics = {} if report is None else report.metrics
    shown = [name for name in SHOWN if name in metrics and metrics[name].value is not None]
    if report is None or not shown:
        return facts.remark or "No figures on held-out bags are stored with this model."
    about = f"On {counted(report.bags, 'bag')} of the {PARTS.get(report.part, report.part)} part:"
    rows = [about, "", "| metric | value | 95 % interval |", "|---|---|---|"]
    for name in shown:
        m = metrics[name]
        span = "not computed" if None in (m.low, m.high) else f"{m.low:.3f} to {m.high:.3f}"
        if m.no_interval is not None and (why := no_interval_text(m.no_interval)):
            span = why
        rows.append(f"| {METRIC_TITLES[name]} | {m.value:.3f} | {span} |")
    return "\n".join(rows)


def _verdicts(facts: CardFacts) -> str:
    """Return what the evaluation says beside chance, rival and null maps, and the threshold."""
    report = facts.report
    if report is None:
        return ""
    said = []
    trust = report.map_trust or {}
    for test in MapTest if report.map_trust is not None else ():
        result = "passed"
        if test in trust.get("failed", ()):
            result = f"not passed: {FAILED[test]}"
        elif test in trust.get("untested", ()):
            result = "not tested"
        said.append(f"{test.value}: {result}")
    if report.chance:
        said.append(f"this model is {report.chance}")
    said += [line.removesuffix(".") for line in report.rival]
    within = report.within_bags or {}
    for comparison in within.get("comparisons", ()):
        if comparison["map"] == within.get("shown_map"):
            said.append(comparison["sentence"].removesuffix("."))
    if report.map_trust is not None:
        verdicts = {
            "yes": "may be",
            "no": "should not be",
            "untested": "cannot yet be",
        }
        said.append(f"its maps {verdicts[trust['verdict']]} shown as explanations")
    if report.threshold is not None:
        said.append(
            f"threshold of positive calls: {report.threshold:.4g} ({report.threshold_source})"
        )
    return "\n".join(f"- {line[0].upper()}{line[1:]}." for line in said)


def _with_licence(encoder: str) -> str:
    """Return the name of an encoder with its licence, where the package knows it."""
    try:
        licence = describe(EncoderName.parse(encoder).name)["licence"]
    except UnknownName:
        return encoder
    return f"{encoder} (licence: {licence})"


def _listed(values: Any) -> str:
    return ", ".join(values) or "not stated"

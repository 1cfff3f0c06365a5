"""The model card of a predictor, from a template: what it was trained on, how well it does, limits.

Every figure comes from the run's own files; a figure that is not known is said to be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Literal

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
from .words import INTERVAL, METRIC_TITLES, NOT_ON_CARDS, no_interval_text

KINDS = {"slide": "patches of slides", "ct": "slices of CT scans"}
PARTS = {"train": "training", "val": "validation", "test": "test"}
MAY_BE = {"yes": "may be", "no": "should not be", "untested": "cannot yet be"}
"""What a verdict on maps allows."""
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
class StoredVerdict:
    """Whether the maps may be shown, as evaluation.json states it; see `MapTrust`."""

    verdict: Literal["yes", "no", "untested"]
    failed: tuple[str, ...]
    untested: tuple[str, ...]

    def result(self, test: MapTest) -> str:
        """Return the result of a test in words."""
        if test in self.failed:
            return f"not passed: {FAILED[test]}"
        return "not tested" if test in self.untested else "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredComparison:
    """A map beside null maps, as evaluation.json states it; see `NullComparison`."""

    map: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredComparisons:
    """The comparisons of maps with null maps, and the map that is shown."""

    comparisons: tuple[StoredComparison, ...] = ()
    shown_map: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredReport:
    """What a card shows of evaluation.json: the metrics of some bags of one part."""

    part: str
    bags: int
    metrics: dict[str, Metric]
    chance: str = ""
    rival: tuple[str, ...] = ()
    map_trust: StoredVerdict | None = None
    within_bags: StoredComparisons | None = None
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
    parts: dict[str, int] = {}
    report = None
    if run is not None and run.split_file.is_file():
        split = read_split(run)
        parts = {part: len(getattr(split, part)) for part in SPLIT_PARTS}
    path = None if run is None else run.path / "evaluation.json"
    if path is not None and path.is_file():
        report = read_record(StoredReport, path, advice="evaluate the run again")
    return CardFacts(data=data, parts=parts, report=report)


def model_card(config: PretrainedConfig, facts: CardFacts, *, score_kind: str) -> str:
    """Return the card, Markdown with metadata in YAML, which the Hugging Face Hub shows.

    Args:
        config: what config.json states of the model.
        facts: what is known of its data and results.
        score_kind: what the scores of its instances are, see `Prediction.score_kind`.
    """
    first = config.members[0]
    task = TASKS[config.task]
    members = len(config.members)
    features = config.features or FeatureMetadata()
    target = (config.about or {}).get("target") or ()
    tags = ["multiple-instance-learning", "weakly-supervised", "uncertainty", first.model]
    run: dict[str, Any] = {"model": {"name": first.model, **dict(first.arguments)}}
    if config.run is not None:
        run = {key: config.run.get(key) for key in ("model", "training", "seed")}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        metadata=yaml.safe_dump({"library_name": "probsa", "tags": tags}, sort_keys=False),
        model=first.model,
        predicts=task.predicts(config.classes, task.outputs_named(config.outputs), target),
        version=config.probsa_version,
        data=facts.data or "No description of the data was given.",
        parts=_listed(f"{bags:,} {PARTS.get(part, part)}" for part, bags in facts.parts.items()),
        kinds=_listed(KINDS[kind] for kind in features.kinds),
        encoders=_listed(map(_with_licence, features.encoders)),
        mpp=_listed(f"{mpp:g} µm per pixel" for mpp in features.mpps),
        patch_size=_listed(f"{size:g} pixels" for size in features.patch_sizes),
        results=f"{_results(facts)}\n\n{_verdicts(facts)}".rstrip(),
        score_kind=SCORES[score_kind],
        members=f" and of {members} members" if members > 1 else "",
        run=yaml.safe_dump(run, sort_keys=False),
    )


def _results(facts: CardFacts) -> str:
    report = facts.report
    metrics = {} if report is None else report.metrics
    shown: list[str] = []
    for name in METRIC_TITLES:
        is_defined = name in metrics and metrics[name].value is not None
        if is_defined and name not in NOT_ON_CARDS:
            shown.append(name)
    if report is None or not shown:
        return facts.remark or "No figures on held-out bags are stored with this model."
    about = f"On {counted(report.bags, 'bag')} of the {PARTS.get(report.part, report.part)} part:"
    rows = [about, "", f"| metric | value | {INTERVAL} |", "|---|---|---|"]
    for name in shown:
        m = metrics[name]
        rows.append(f"| {METRIC_TITLES[name]} | {m.value:.3f} | {_interval(m)} |")
    return "\n".join(rows)


def _interval(m: Metric) -> str:
    """Return the interval of a metric in words, or why it has none."""
    reason = "" if m.no_interval is None else no_interval_text(m.no_interval)
    if reason:
        return reason
    return "not computed" if None in (m.low, m.high) else f"{m.low:.3f} to {m.high:.3f}"


def _verdicts(facts: CardFacts) -> str:
    """Return what the evaluation says beside chance, rival and null maps, and the threshold."""
    report = facts.report
    if report is None:
        return ""
    trust = report.map_trust
    sentences: list[str] = []
    if trust is not None:
        sentences += [f"{test.value.capitalize()}: {trust.result(test)}." for test in MapTest]
    if report.chance:
        sentences.append(f"This model is {report.chance}.")
    sentences += report.rival
    within = report.within_bags or StoredComparisons()
    for comparison in within.comparisons:
        if comparison.map == within.shown_map:
            sentences.append(comparison.sentence)
    if trust is not None:
        sentences.append(f"Its maps {MAY_BE[trust.verdict]} shown as explanations.")
    if report.threshold is not None:
        sentences.append(
            f"Threshold of positive calls: {report.threshold:.4g} ({report.threshold_source})."
        )
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _with_licence(encoder: str) -> str:
    """Return the name of an encoder with its licence, where the package knows it."""
    try:
        licence = describe(EncoderName.parse(encoder).name)["licence"]
    except UnknownName:
        return encoder
    return f"{encoder} (licence: {licence})"


def _listed(values: Any) -> str:
    return ", ".join(values) or "not stated"

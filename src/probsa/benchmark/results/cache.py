"""Cache slow computations on runs, which tables and figures share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...statistics import Metric
from .instances import BOOTSTRAP, samples_of
from .pooled import Compared, compare_methods
from .results import AnyScores, Scores
from .target_comparison import TargetCompared, compare_targets
from .target_samples import TargetSamples, sample_targets
from .target_scores import TargetScores

Key = tuple[tuple[str, str, tuple[Path, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultCache:
    """Computes each result once for the same runs."""

    _compared: dict[tuple[Key, str | None], Compared] = field(default_factory=dict)
    _samples: dict[tuple[Key, int], Mapping[str, Metric] | None] = field(default_factory=dict)
    _targets: dict[tuple[Key, str | None], TargetCompared] = field(default_factory=dict)
    _target_samples: dict[Key, TargetSamples] = field(default_factory=dict)

    def compared(self, scores: Sequence[Scores], *, baseline: str | None) -> Compared:
        """Return `compare_methods` of the scores."""
        key = (_key(scores), baseline)
        if key not in self._compared:
            self._compared[key] = compare_methods(scores, baseline=baseline)
        return self._compared[key]

    def compared_targets(
        self, scores: Sequence[TargetScores], *, baseline: str | None
    ) -> TargetCompared:
        """Return `compare_targets` of the scores."""
        key = (_key(scores), baseline)
        if key not in self._targets:
            self._targets[key] = compare_targets(
                scores, baseline=baseline, sampled=self._sampled_targets
            )
        return self._targets[key]

    def _sampled_targets(self, scores: TargetScores) -> TargetSamples:
        key = _key([scores])
        if key not in self._target_samples:
            self._target_samples[key] = sample_targets(scores)
        return self._target_samples[key]

    def summary(self, scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
        """Return all instance metrics of the scores.

        Raises:
            BagError, InputError: As `samples_of` does.
        """
        samples = self.samples(scores, bootstrap=bootstrap)
        return None if samples is None else dict(samples)

    def samples(self, scores: Scores, *, bootstrap: int = BOOTSTRAP) -> Mapping[str, Metric] | None:
        """Return `samples_of` the scores.

        Raises:
            BagError, InputError: As `samples_of` does.
        """
        key = (_key([scores]), bootstrap)
        if key not in self._samples:
            self._samples[key] = samples_of(scores, bootstrap=bootstrap)
        return self._samples[key]


def _key(scores: Sequence[AnyScores]) -> Key:
    """Return the runs in order: a grid may finish more of them between two calls."""
    return tuple((s.data, s.method.name, s.runs) for s in scores)

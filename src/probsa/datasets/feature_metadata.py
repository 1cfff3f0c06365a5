"""Metadata of the features that a model was trained on, to detect features of another kind.

Without this check, a model predicts for any features of the same width.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..core import EncoderName, PositiveFloat, read_record
from ..errors import BagError
from .bag_set import BagSet
from .labels import LabelTable
from .metadata import Metadata

AGREES = 0.05
"""Relative tolerance of resolutions; scanners differ by less, magnifications by more."""
SHOWN = 3
"""Maximum number of values that a message lists; beyond it, their range is given."""
KINDS = {"slide": "patches of a slide", "ct": "slices of a scan"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureMetadata:
    """Every value that any of the bags states, sorted; empty if none states one."""

    encoders: tuple[str, ...] = ()
    """Names of encoders; in probsa's files with a digest of the weights: `resnet50@0123abcd`."""
    kinds: tuple[str, ...] = ()
    patch_sizes: tuple[PositiveFloat, ...] = ()
    mpps: tuple[PositiveFloat, ...] = ()
    """Micrometres per pixel of the patches."""

    @classmethod
    def of(cls, bags: BagSet, names: Iterable[str]) -> "FeatureMetadata":
        """Collect the metadata of the named bags, without reading features.

        Unreadable bags are skipped; reading them elsewhere raises an error.
        """
        encoders: set[str] = set()
        kinds: set[str] = set()
        patch_sizes: set[float] = set()
        mpps: set[float] = set()
        for name in names:
            with suppress(BagError):
                for metadata in bags.metadata_of(name):
                    encoder = _stated_encoder(metadata)
                    if encoder is not None:
                        encoders.add(encoder)
                    if metadata.kind is not None:
                        kinds.add(metadata.kind)
                    if metadata.patch_size:
                        patch_sizes.add(metadata.patch_size)
                    if metadata.mpp:
                        mpps.add(round(metadata.mpp, 4))
        return cls(
            encoders=tuple(sorted(encoders)),
            kinds=tuple(sorted(kinds)),
            patch_sizes=tuple(sorted(patch_sizes)),
            mpps=tuple(sorted(mpps - {0.0})),
        )

    @classmethod
    def read(cls, path: Path) -> "FeatureMetadata | None":
        """Read the file; None if it is missing, as in runs of earlier versions.

        Raises:
            InputError: the file is damaged.
        """
        if not path.is_file():
            return None
        advice = "copy it again, or remove it to skip the check of features"
        return read_record(cls, path, advice=advice, complete=True)

    def to_dict(self) -> Mapping[str, Any]:
        """Return the values to store in a file."""
        return asdict(self)

    def difference(self, metadata: Metadata) -> str | None:
        """Describe how a bag differs from all of these bags, with advice; None if it does not.

        Values that either side does not state are not compared.
        """
        differences = [
            self._other_kind(metadata),
            self._other_encoder(metadata),
            self._other_mpp(metadata),
            self._other_patch_size(metadata),
        ]
        stated = [d for d in differences if d is not None]
        if not stated:
            return None
        problems = "; ".join(d.problem for d in stated)
        advice = "; ".join(d.advice for d in stated)
        return (
            f"it differs from every bag that the model was trained on: {problems}. "
            f"{advice[0].upper()}{advice[1:]}; or give --other-features to predict it as it is"
        )

    def _other_kind(self, metadata: Metadata) -> "_Difference | None":
        kind = metadata.kind
        if not kind or not self.kinds or kind in self.kinds:
            return None
        expected = " or ".join(KINDS.get(k, k) for k in self.kinds)
        problem = f"its instances are {KINDS[kind]}, expected {expected}"
        return _Difference(problem, f"give bags of {expected}")

    def _other_encoder(self, metadata: Metadata) -> "_Difference | None":
        encoder = _stated_encoder(metadata)
        if not encoder or not self.encoders:
            return None
        training_encoders = [EncoderName.parse(text) for text in self.encoders]
        if any(EncoderName.parse(encoder).may_equal(other) for other in training_encoders):
            return None
        problem = f"its encoder is {encoder}, expected {' or '.join(self.encoders[:SHOWN])}"
        first = training_encoders[0]
        weights = " and the weights of the training" if first.digest else ""
        return _Difference(problem, f"extract its features with --encoder {first.name}{weights}")

    def _other_mpp(self, metadata: Metadata) -> "_Difference | None":
        mpp = metadata.mpp
        if not mpp or not self.mpps:
            return None
        if any(abs(mpp / training_mpp - 1) <= AGREES for training_mpp in self.mpps):
            return None
        nearest = min(self.mpps, key=lambda training_mpp: abs(training_mpp - mpp))
        problem = f"its patches have {mpp:.4g} µm per pixel, {_expected(self.mpps)}"
        return _Difference(problem, f"patch it with --mpp {nearest:.4g}")

    def _other_patch_size(self, metadata: Metadata) -> "_Difference | None":
        side = metadata.patch_size
        if not side or not self.patch_sizes or side in self.patch_sizes:
            return None
        nearest = min(self.patch_sizes, key=lambda size: abs(size - side))
        problem = f"its patches are {side:g} pixels wide, {_expected(self.patch_sizes)}"
        return _Difference(problem, f"patch it with --patch-size {nearest:g}")


class _Difference(NamedTuple):
    """How a bag differs from those of the training, and what to do about it."""

    problem: str
    advice: str


TELLING = {
    "mpp_level0": "a scanner resolution of {:.2g} µm per pixel",
    "mpp": "patches of {:.2g} µm per pixel",
    "patch_size": "patches of {:g} pixels",
    "encoder": "the encoder {}",
}
"""Metadata that should not tell the classes apart."""
FEWEST = 4
"""Fewer bags of a class than this may have such a value in common by chance."""


def telling_metadata(bags: BagSet, table: LabelTable) -> str:
    """Say in a sentence what all bags of a class have in common that no other bag has.

    Empty if there is nothing, or if one of both has fewer than `FEWEST` bags.
    """
    by_class: dict[int, list[Metadata]] = {}
    for name, y in zip(table.bags, table.labels, strict=True):
        if y is not None:
            with suppress(BagError):  # reading the bag reports it
                by_class.setdefault(y, []).extend(bags.metadata_of(name))
    for key, words in TELLING.items():
        # as text: resolutions that differ by less than scanners do are equal
        texts = {y: [_text(m, key, words) for m in each] for y, each in by_class.items()}
        for y in sorted(texts):
            text = _telling_text(texts, y)
            if text:
                return (
                    f"possible shortcut: all bags {table.stratum_names([y])} have {text}, and no "
                    "other bag has: a model can learn this instead of the disease"
                )
    return ""


def _text(metadata: Metadata, key: str, words: str) -> str:
    """Return a value of `TELLING` in words; empty if it is not stated."""
    value = getattr(metadata, key)
    return words.format(value) if value else ""


def _telling_text(texts: Mapping[int, Sequence[str]], y: int) -> str:
    """Return what all bags of the class y have in common that no other bag has, else nothing."""
    class_texts = texts[y]
    other_texts = [text for other, each in texts.items() if other != y for text in each]
    if min(len(class_texts), len(other_texts)) < FEWEST or len(set(class_texts)) > 1:
        return ""
    text = class_texts[0]
    # a bag that does not state the value may have it too
    if text in other_texts or "" in other_texts:
        return ""
    return text


def _stated_encoder(metadata: Metadata) -> str | None:
    """Return the encoder of a bag, unless it was only inferred from the folder's name."""
    return None if metadata.encoder_guessed else metadata.encoder


def _expected(values: tuple[float, ...]) -> str:
    if len(values) > SHOWN:
        return f"expected one of {len(values)} values from {values[0]:.4g} to {values[-1]:.4g}"
    return f"expected {' or '.join(f'{v:.4g}' for v in values)}"

"""Metadata of the features that a model was trained on, to detect features of another kind.

Without this check, a model predicts for any features of the same width.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core import PositiveFloat, read_record
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
        each: list[Metadata] = []
        for name in names:
            with suppress(BagError):
                each += bags.metadata_of(name)
        values: dict[str, set[Any]] = {
            "encoders": {_encoder(m) for m in each},
            "kinds": {m.kind for m in each},
            "patch_sizes": {m.patch_size for m in each},
            "mpps": {m.mpp and round(m.mpp, 4) for m in each},
        }
        return cls(**{k: tuple(sorted(stated - {None, 0.0})) for k, stated in values.items()})

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
        found: list[tuple[str, str]] = []
        kind, encoder = metadata.kind, _encoder(metadata)
        mpp, side = metadata.mpp, metadata.patch_size
        if kind and self.kinds and kind not in self.kinds:
            expected = " or ".join(KINDS.get(k, k) for k in self.kinds)
            given = f"its instances are {KINDS[kind]}, expected {expected}"
            found.append((given, f"give bags of {expected}"))
        if encoder and self.encoders and not any(_one_encoder(encoder, e) for e in self.encoders):
            name, _, digest = self.encoders[0].partition("@")
            weights = " and the weights of the training" if digest else ""
            given = f"its encoder is {encoder}, expected {' or '.join(self.encoders[:SHOWN])}"
            found.append((given, f"extract its features with --encoder {name}{weights}"))
        if mpp and self.mpps and all(abs(mpp / known - 1) > AGREES for known in self.mpps):
            nearest = min(self.mpps, key=lambda known: abs(known - mpp))
            given = f"its patches have {mpp:.4g} µm per pixel, {_expected(self.mpps)}"
            found.append((given, f"patch it with --mpp {nearest:.4g}"))
        if side and self.patch_sizes and side not in self.patch_sizes:
            nearest = min(self.patch_sizes, key=lambda size: abs(size - side))
            given = f"its patches are {side:g} pixels wide, {_expected(self.patch_sizes)}"
            found.append((given, f"patch it with --patch-size {nearest:g}"))
        if not found:
            return None
        advice = "; ".join(part for _, part in found)
        return (
            "it differs from every bag that the model was trained on: "
            f"{'; '.join(given for given, _ in found)}. "
            f"{advice[0].upper()}{advice[1:]}; or give --other-features to predict it as it is"
        )


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
    stated: list[tuple[int, Metadata]] = []
    for name, y in zip(table.bags, table.labels, strict=True):
        with suppress(BagError):  # reading the bag reports it
            stated += [] if y is None else [(y, m) for m in bags.metadata_of(name)]
    for key, words in TELLING.items():
        values = [(y, words.format(v) if (v := getattr(m, key)) else "") for y, m in stated]
        for y in sorted({y for y, _ in stated}):
            own, others = ([v for k, v in values if (k == y) is same] for same in (True, False))
            enough = min(len(own), len(others)) >= FEWEST
            if enough and len({*own}) == 1 and own[0] and not {"", own[0]} & {*others}:
                return (
                    f"possible shortcut: all bags {table.stratum_names([y])} have {own[0]}, and no "
                    "other bag has: a model can learn this instead of the disease"
                )
    return ""


def _encoder(metadata: Metadata) -> str | None:
    return None if metadata.encoder_guessed else metadata.encoder


def _one_encoder(a: str, b: str) -> bool:
    """Return whether two names may be the same encoder; only probsa's have a digest of weights."""
    (name, _, digest), (other, _, others) = a.partition("@"), b.partition("@")
    return name == other and (digest == others or not digest or not others)


def _expected(values: tuple[float, ...]) -> str:
    if len(values) > SHOWN:
        return f"expected one of {len(values)} values from {values[0]:.4g} to {values[-1]:.4g}"
    return f"expected {' or '.join(f'{v:.4g}' for v in values)}"

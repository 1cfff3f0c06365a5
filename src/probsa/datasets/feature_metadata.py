"""What the features of a model's training bags say of themselves, to know other features by.

A width fits many encoders, resolutions and even organs: the model would give a probability.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import BagError, InputError
from .bag_set import BagSet
from .metadata import Metadata

AGREES = 0.05
"""Share by which a resolution may be another: scanners differ by less, magnifications by more."""
SHOWN = 3
"""Values that a message lists before it gives their range."""
KINDS = {"slide": "patches of a slide", "ct": "slices of a scan"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """Every value that any of the bags states, sorted; nothing where none does."""

    encoders: tuple[str, ...] = ()
    """Names, of our files with a digest of the weights: `resnet50@0123abcd`."""
    kinds: tuple[str, ...] = ()
    patch_sizes: tuple[float, ...] = ()
    mpps: tuple[float, ...] = ()
    """Micrometres per pixel of the patches."""

    @classmethod
    def of(cls, bags: BagSet, names: Iterable[str]) -> "Stated":
        """What these bags state; no features are read.

        One that cannot be read states nothing: that is said where it is read.
        """
        found: dict[str, set[Any]] = {"encoders": set(), "kinds": set()}
        found |= {"patch_sizes": set(), "mpps": set()}
        for name in names:
            try:
                metadata = bags.metadata(name)
            except BagError:
                continue
            found["encoders"].add(_encoder(metadata))
            found["kinds"].add(metadata.kind)
            found["patch_sizes"].add(metadata.patch_size)
            found["mpps"].add(metadata.mpp and round(metadata.mpp, 4))
        return cls(**{k: tuple(sorted(v - {None, 0.0})) for k, v in found.items()})

    @classmethod
    def read(cls, path: Path) -> "Stated | None":
        """From the file; None where there is none, of a run of an earlier version.

        Raises:
            InputError: the file is damaged.
        """
        if not path.is_file():
            return None
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                encoders=tuple(map(str, held["encoders"])),
                kinds=tuple(map(str, held["kinds"])),
                patch_sizes=tuple(map(float, held["patch_sizes"])),
                mpps=tuple(map(float, held["mpps"])),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} is damaged ({error!r}): copy it again, or remove it, and features are "
                "taken as they come"
            ) from error

    def to_dict(self) -> Mapping[str, Any]:
        """For a file."""
        return asdict(self)

    def difference(self, metadata: Metadata) -> str | None:
        """How a bag is like none of these bags, and what to do; None where nothing says that.

        What either side does not state is not compared.
        """
        came, do = [], []
        kind, encoder = metadata.kind, _encoder(metadata)
        if kind is not None and self.kinds and kind not in self.kinds:
            expected = " or ".join(KINDS.get(k, k) for k in self.kinds)
            came.append(f"its instances are {KINDS[kind]}, expected {expected}")
            do.append(f"give bags of {expected}")
        if (
            encoder is not None
            and self.encoders
            and not any(_one_encoder(encoder, e) for e in self.encoders)
        ):
            came.append(f"its encoder is {encoder}, expected {' or '.join(self.encoders[:SHOWN])}")
            name, _, digest = self.encoders[0].partition("@")
            weights = " and the weights of the training" if digest else ""
            do.append(f"extract its features with --encoder {name}{weights}")
        if (
            metadata.mpp
            and self.mpps
            and not any(abs(metadata.mpp / m - 1) <= AGREES for m in self.mpps)
        ):
            nearest = min(self.mpps, key=lambda m: abs(m - (metadata.mpp or m)))
            came.append(f"its patches have {metadata.mpp:.4g} µm per pixel, {_expected(self.mpps)}")
            do.append(f"patch it with --mpp {nearest:.4g}")
        size = metadata.patch_size
        if size and self.patch_sizes and size not in self.patch_sizes:
            nearest = min(self.patch_sizes, key=lambda s: abs(s - size))
            came.append(f"its patches are {size:g} pixels wide, {_expected(self.patch_sizes)}")
            do.append(f"patch it with --patch-size {nearest:g}")
        if not came:
            return None
        advice = "; ".join(do)
        return (
            f"it is like no bag that the model was trained on: {'; '.join(came)}. "
            f"{advice[0].upper()}{advice[1:]}; or give --other-features to predict it as it is"
        )


def _encoder(metadata: Metadata) -> str | None:
    return None if metadata.encoder_guessed else metadata.encoder


def _one_encoder(a: str, b: str) -> bool:
    """Whether two names can be one encoder's: other tools' have no digest of the weights."""
    (name, _, digest), (other, _, others) = a.partition("@"), b.partition("@")
    return name == other and (digest == others or not digest or not others)


def _expected(values: tuple[float, ...]) -> str:
    if len(values) > SHOWN:
        return f"expected one of {len(values)} values from {values[0]:.4g} to {values[-1]:.4g}"
    return f"expected {' or '.join(f'{v:.4g}' for v in values)}"

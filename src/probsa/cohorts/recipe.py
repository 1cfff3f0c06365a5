"""How the features of a cohort were made, so that the same can be done with other slides."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..core import EncoderName, as_record, read_stamp
from ..errors import BagError, InputError, WeightsError
from ..features import Precision
from ..patches import PatchSettings
from ..slides import Windows
from .extraction import ExtractOptions
from .work import PatchSet, stored_settings

LOOKED_AT = 5
"""Number of bags that are asked how they were made."""
AGAIN = "copy the run again, or state how its features were made"


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureRecipe:
    """How features were made from slides or scans: what `probsa run` does with new ones."""

    kind: Literal["slide", "ct"]
    encoder: str
    """Its registered name."""
    identity: str = ""
    """The encoder with a digest of its weights; empty if it is not known."""
    precision: Precision = "float32"
    dtype: Literal["float32", "float16"] = "float32"
    windows: str | None = None
    """CT windows; None for slides."""
    patches: PatchSettings | None = None
    """How the tissue was found and cut; None for scans."""

    @classmethod
    def of_features(cls, folder: Path, names: Sequence[str]) -> "FeatureRecipe | None":
        """Return the recipe of features that `probsa extract` wrote into a work folder.

        Args:
            folder: the folder of the feature files, within its set of patches.
            names: bags of the folder; the first of a few that states how it was made is read.

        Returns: None if no bag states it, or if the settings of the patches are not beside them.
        """
        made_with = _first_made_with(folder, names[:LOOKED_AT])
        settings = stored_settings(PatchSet(folder.parent))
        if made_with is None or not settings:
            return None
        identity = made_with["encoder"]
        values: dict[str, Any] = {
            "encoder": EncoderName.parse(str(identity)).name,
            "identity": identity,
        }
        if settings.get("kind") == "ct":
            values["kind"] = "ct"
        else:
            values["kind"] = "slide"
            values["patches"] = settings
        for key in ("precision", "dtype", "windows"):
            if made_with.get(key) is not None:
                values[key] = made_with[key]
        try:
            return cls.from_dict(values, where=str(folder))
        except InputError:  # another version or another tool wrote these settings
            return None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str) -> "FeatureRecipe":
        """Read what `to_dict` returned.

        Raises:
            InputError: a key is missing or has another type; the message starts with `where`.
        """
        return as_record(cls, dict(values), where=where, advice=AGAIN)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def options(self, **how: Any) -> ExtractOptions:
        """Return the options of an extraction; `how` are those that do not change the features."""
        windows = {} if self.windows is None else {"windows": Windows.parse(self.windows)}
        return ExtractOptions(
            encoder=self.encoder, precision=self.precision, dtype=self.dtype, **windows, **how
        )

    def check_encoder(self, options: ExtractOptions) -> None:
        """Compare the encoder and its weights with those of the features, before it is used.

        Raises:
            WeightsError: the weights are missing, or are other ones.
        """
        if not self.identity:
            return
        identity = replace(options, device="cpu").build().identity
        if identity != self.identity:
            raise WeightsError(
                f"the encoder is {identity}, but the features of the training were made by "
                f"{self.identity}: give its weights with --weights, in the version of probsa that "
                "made them"
            )


def _first_made_with(folder: Path, names: Sequence[str]) -> dict[str, Any] | None:
    """Return what the features of the first bag that says so depend on; None if none does."""
    for name in names:
        try:
            made_with = json.loads(read_stamp(folder / f"{name}.h5", "made_with") or "null")
        except (BagError, InputError, ValueError):
            continue
        if isinstance(made_with, dict) and made_with.get("encoder"):
            return made_with
    return None

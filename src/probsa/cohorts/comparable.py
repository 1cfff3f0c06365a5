"""What of the settings decides whether results were made in the same way.

These are all options that version 0.2 had, and of later options those that differ from their first
default, which is what was done before there was the option. A new option therefore changes no
digest of a finished work folder, and the digests that 0.2 stored are those of today.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ..patches import PatchSettings, TissueOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownOptions:
    """The options of a dataclass, with the defaults that they had first."""

    kind: type
    of_0_2: Mapping[str, Any]
    """Options of version 0.2 and their defaults. Never changed, even if an option is removed."""
    since: Mapping[str, Any] = field(default_factory=dict)
    """Options that were added since, and their first defaults. Only added to."""

    def compared(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by which results are compared; values of other things are kept."""
        if not self.of_0_2.keys() & values.keys():  # no settings, or those of something else
            return dict(values)
        result = {key: values.get(key, default) for key, default in self.of_0_2.items()}
        first = {**_defaults(self.kind), **self.since}
        for key, value in values.items():
            is_first_default = key in first and first[key] == value
            if key not in result and not is_first_default:
                result[key] = value
        return result


TISSUE = KnownOptions(
    kind=TissueOptions,
    of_0_2={
        "method": "saturation",
        "threshold": 8,
        "median": 7,
        "closing": 4,
        "min_area": 16384.0,
        "min_hole": 16384.0,
        "max_holes": None,
        "unit": "um2",
        "resolution": 8.0,
        "level": None,
    },
)
PATCHES = KnownOptions(
    kind=PatchSettings,
    of_0_2={
        "size": 512,
        "mpp": 0.5,
        "overlap": 0,
        "level": 0,
        "grid": "global",
        "rule": "share",
        "min_tissue": 0.25,
        "padding": True,
    },
)
"""Those of tissue detection, under `tissue`, are compared by `TISSUE`."""


def compared_patches(settings: PatchSettings) -> dict[str, Any]:
    """Return the values by which patches are compared, with those of their tissue."""
    values = settings.to_dict()
    tissue = TISSUE.compared(values.pop("tissue"))
    return PATCHES.compared(values) | {"tissue": tissue}


def _defaults(kind: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind) if f.default is not MISSING}

"""What of the settings decides whether results were made in the same way.

If an option `smoothing` came after version 0.2 with the default 0, `{"size": 512, "smoothing": 0}`
counts as `{"size": 512}`: nothing was smoothed before. In general, all options of 0.2 are compared,
and of later options those that differ from their first default. A new option therefore changes no
digest of a finished work folder, and the digests that 0.2 stored are still valid.
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
    """Options that were added since, and their first defaults. Only added to.

    An option of the dataclass that is neither here nor in `of_0_2` has its present default.
    """

    def compared(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by which results are compared.

        Values without any option of version 0.2 are no settings of this kind, and are returned as
        they are: a work folder of CT series, for example, states its kind alone.
        """
        if not self.of_0_2.keys() & values.keys():
            return dict(values)
        result = {key: values.get(key, default) for key, default in self.of_0_2.items()}
        first_defaults = _defaults(self.kind)
        first_defaults.update(self.since)  # the default of an option may have changed since
        for key, value in values.items():
            is_first_default = key in first_defaults and first_defaults[key] == value
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
    """Return the present defaults of the options of a dataclass."""
    defaults: dict[str, Any] = {}
    for option in fields(kind):
        if option.default is not MISSING:
            defaults[option.name] = option.default
        elif option.default_factory is not MISSING:
            defaults[option.name] = option.default_factory()
    return defaults

"""Load the plug-ins of other packages; one that fails is named and left out."""

import logging
from dataclasses import dataclass
from importlib.metadata import entry_points

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenPlugin:
    """A plug-in that could not be imported."""

    name: str
    """The name of its entry point."""
    group: str
    package: str
    """The package that brings it; empty if unknown."""
    reason: str

    def __str__(self) -> str:
        package = f" of the package {self.package}" if self.package else ""
        return (
            f"the plug-in {self.name!r}{package} ({self.group}) cannot be imported and is left "
            f"out: {self.reason}"
        )


_broken: dict[tuple[str, str], BrokenPlugin] = {}


def load_plugins(group: str) -> None:
    """Import every entry point of a group; each that fails is logged once and left out."""
    for point in entry_points(group=group):
        try:
            point.load()
        except (Exception, SystemExit) as e:  # noqa: BLE001 - others' code may raise anything
            broken = BrokenPlugin(
                name=point.name,
                group=group,
                package="" if point.dist is None else point.dist.name,
                reason=f"{type(e).__name__}: {e}".partition("\n")[0][:300],
            )
            _broken[group, point.name] = broken
            log.warning("note: %s", broken)


def broken_plugins() -> list[BrokenPlugin]:
    """Return the plug-ins that have failed so far."""
    return list(_broken.values())

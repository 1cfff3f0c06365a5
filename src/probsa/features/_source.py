"""The names of the encoders, read from source code, because the encoders import PyTorch."""

import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from ..core import NotConstant, source_modules
from ..errors import UnknownName, WeightsError
from ._names import ADDRESSES, HUB, OPEN

GROUP = "probsa.encoders"
"""Entry points by which other packages add encoders."""


def known_names() -> list[str]:
    """Return every registered name, sorted, as `names` does.

    The names are read from the source where it states them all: not if other packages may have
    registered encoders, nor if a name is computed. PyTorch is imported only then.
    """
    is_registry_loaded = f"{__package__}._registry" in sys.modules
    if not is_registry_loaded and not entry_points(group=GROUP):
        try:
            return list(_read_names())
        except (NotConstant, SyntaxError):
            pass
    from ._registry import names

    return names()


def check_name(name: str) -> None:
    """Refuse the name of an encoder that does not exist.

    Raises:
        UnknownName: There is no such encoder; the message suggests the nearest name.
    """
    names = known_names()
    # of an open family, such as `timm:`, every model may be named
    family, _, model = name.partition(":")
    is_of_open_family = bool(model) and family + OPEN in names
    if name not in names and not is_of_open_family:
        raise UnknownName("encoder", name, names)


def check_weights_path(weights: str) -> None:
    """Refuse a file of weights that does not exist; `hub` and addresses are not looked up.

    Raises:
        WeightsError: There is no such file.
    """
    if weights != HUB and not weights.startswith(ADDRESSES) and not Path(weights).exists():
        raise WeightsError(
            f"--weights: there is no file {weights}: give a file, an address, or hub to download "
            "the weights of the encoder"
        )


@cache
def _read_names() -> tuple[str, ...]:
    """Return the names that the decorators of the encoders state."""
    names: list[str] = []
    for module in source_modules(Path(__file__).parent):
        for _, decorator in module.marked("register", "published"):
            names.append(module.evaluate(decorator.args[0]))  # the first argument is the name
    return tuple(sorted(names))

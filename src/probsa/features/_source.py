"""Names of encoders, read from the source: PyTorch is not imported."""

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
    """Return every registered name, sorted, as `names` does."""
    if f"{__package__}._registry" not in sys.modules and not entry_points(group=GROUP):
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
    known = known_names()
    family, _, model = name.partition(":")
    if name not in known and not (model and family + OPEN in known):
        raise UnknownName("encoder", name, known)


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
        for _, call in module.marked("register", "published"):
            names.append(module.evaluate(call.args[0]))
    return tuple(sorted(names))

"""Check the values of a grid's keys: texts, lists, whole numbers and words."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError


def texts(given: Any) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple."""
    if given is None:
        return ()
    return tuple(str(g) for g in given) if isinstance(given, list) else (str(given),)


def listed(given: Mapping[str, Any], key: str, *, where: str) -> list[Any]:
    """Return a list, empty if the key is absent."""
    value = given.get(key) or []
    if not isinstance(value, list):
        raise InputError(f"{key} in {where} is {value!r}: expected a list")
    return value


def numbers(given: Any, key: str, *, where: str) -> tuple[int, ...]:
    """Return a list of whole numbers; a number n stands for 0 to n − 1."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return tuple(range(given))
    several = list(given) if isinstance(given, list | tuple) else []
    wrong = [g for g in several if not isinstance(g, int) or isinstance(g, bool) or g < 0]
    if not several or wrong or len(set(several)) < len(several):
        raise InputError(
            f"{key} in {where} is {given!r}: expected a whole number of at least 1, or a list of "
            "different ones"
        )
    return tuple(several)


def number(given: Any, key: str, *, where: str, least: int = 0) -> int:
    """Return a whole number of at least `least`."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InputError(
            f"{key} in {where} is {given!r}: expected a whole number of at least {least}"
        )
    return given


def choice(given: Mapping[str, Any], key: str, known: Sequence[str], *, where: str) -> Any:
    """Return one of the known words; the first is the default."""
    value = given.get(key, known[0])
    if value not in known:
        raise InputError(f"{key} in {where} is {value!r}: expected {', '.join(known)}")
    return value

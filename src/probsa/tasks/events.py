"""What the cells of a column of events mean: the event of a bag was seen, or its time is censored.

A word such as `dead`, `censored` or `0:LIVING` says it itself. A bare code (1 or 0, true or false,
yes or no) says whether that is so after which the column is named: 1 is an event in `event` and
`os_status`, and a censored time in `os_censorship` and `alive`. A name that can be read both ways,
such as `death_censored_loss`, gives bare codes no meaning, so that they are refused.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum

from ..core import finite_number


class Direction(Enum):
    """What the code 1 means in a column, by its name."""

    EVENT = "event"
    CENSORED = "censored"
    UNCLEAR = "unclear"


TRUE = ("1", "true", "t", "yes", "y")
FALSE = ("0", "false", "f", "no", "n")
EVENT_WORDS = (
    "event",
    "event seen",
    "event observed",
    "observed",
    "uncensored",
    "not censored",
    "non censored",
    "dead",
    "deceased",
    "died",
    "death",
    "expired",
    "dead of disease",
    "dead with tumor",
    "dead with tumour",
    "recurred",
    "recurrence",
    "relapsed",
    "relapse",
    "progressed",
    "progression",
    "recurred progressed",
    "recurrence progression",
)
"""Words of an event that was seen, in small letters with single spaces."""
CENSORED_WORDS = (
    "censored",
    "right censored",
    "censoring",
    "unobserved",
    "not observed",
    "no event",
    "event free",
    "alive",
    "living",
    "not dead",
    "not deceased",
    "survived",
    "lost to follow up",
    "lost to followup",
    "diseasefree",
    "disease free",
    "progressionfree",
    "progression free",
    "recurrencefree",
    "recurrence free",
    "relapse free",
    "no progression",
    "no recurrence",
    "no relapse",
    "not progressed",
    "not recurred",
    "alive or dead tumor free",
    "alive or dead tumour free",
)
"""Words of a time that is censored."""
CODED = re.compile(r"([01])(?:\.0+)?\s*[:=|(-]\s*([^()]*[^()\s])\s*\)?")
"""A code with its word, as in cBioPortal's `1:DECEASED`."""

PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word within the name of a column: `isCensored` and `is_censored` have two."""
CENSORING = re.compile(r"censor|censur|zensier|zensur|^r?cens$")
INDICATORS = ("cens", "rcens", "indicator")
"""Parts of names that statisticians give to 1 for an event, as in `cens` of the GBSG2 study."""
NEGATED_CENSORING = re.compile(r"(un|non|not|no)(censor|censur|zensier|zensur)")
NEGATIONS = ("not", "non", "no", "un", "never")
EVENT_NAMES = ("event", "events", "death", "dead", "died", "deceased", "dod")
STATUS_NAMES = ("status", "vital", "indicator")
ALIVE_NAMES = ("alive", "living", "survived", "survivor", "surviving")
UNCLEAR_NAMES = ("survival", "free")
"""Parts of names of outcomes: with `survival`, tables of some cohorts mean 1 for alive."""
TIME_NAMES = (
    "time",
    "times",
    "day",
    "days",
    "week",
    "weeks",
    "month",
    "months",
    "year",
    "years",
    "duration",
    "futime",
    "followup",
    "survival",
    "tte",
    "dtime",
    "stime",
)
UNITS = ("day", "days", "week", "weeks", "month", "months", "year", "years", "time", "times")


def direction_of(column: str) -> Direction:
    """Return what 1 means in a column of this name."""
    parts = _parts(column)
    negative = sum(part in NEGATIONS for part in parts) % 2 == 1
    censoring = [part for part in parts if CENSORING.search(part)]
    # the event of "event-free survival" names the outcome, not the column's own event
    next_parts = [*parts[1:], ""]
    event = any(
        part in EVENT_NAMES and next_part != "free"
        for part, next_part in zip(parts, next_parts, strict=True)
    )
    alive = not {*parts}.isdisjoint(ALIVE_NAMES)
    lost = "lost" in parts and any(part.startswith("follow") for part in parts)
    if censoring:
        negated = negative != any(NEGATED_CENSORING.match(part) for part in censoring)
        if negated:
            return Direction.EVENT
        indicator = not {*parts}.isdisjoint(INDICATORS)
        return Direction.UNCLEAR if event or alive or indicator else Direction.CENSORED
    if event and alive:
        return Direction.UNCLEAR
    if event or alive or lost:
        return Direction.EVENT if event != negative else Direction.CENSORED
    if not {*parts}.isdisjoint(STATUS_NAMES):
        return Direction.EVENT
    unclear = any(part in UNCLEAR_NAMES or part.endswith("free") for part in parts)
    return Direction.UNCLEAR if unclear else Direction.EVENT


def event_of(cell: str, direction: Direction) -> float | None:
    """Return 1 if a cell says that the event was seen and 0 if it says censored, else None.

    A code beside a word that says the opposite, as in `0:DECEASED`, says nothing.
    """
    text = _normal(cell)
    event = _event_of_word(text)
    if event is not None:
        return event
    coded = CODED.fullmatch(cell.strip())
    if coded is None:
        return _event_of_code(text, direction)
    by_code = _event_of_code(coded[1], direction)
    by_word = _event_of_word(_normal(coded[2]))
    if by_word is None:
        return by_code
    return by_word if by_code is None or by_code == by_word else None


def contradicts_itself(cell: str, direction: Direction) -> bool:
    """Return whether a cell has a code and a word that say opposite things."""
    coded = CODED.fullmatch(cell.strip())
    if coded is None:
        return False
    by_code = _event_of_code(coded[1], direction)
    by_word = _event_of_word(_normal(coded[2]))
    return by_code is not None and by_word is not None and by_code != by_word


def censoring_columns(header: Iterable[str]) -> list[str]:
    """Return the columns whose names speak of censoring, whichever way they run."""
    return [column for column in header if any(map(CENSORING.search, _parts(column)))]


def time_columns(header: Iterable[str]) -> list[str]:
    """Return the columns whose names say that they hold a time, those with a unit first."""
    columns = [column for column in header if _says_time(column)]
    return sorted(columns, key=lambda column: not any(p in UNITS for p in _parts(column)))


def event_columns(header: Iterable[str]) -> list[str]:
    """Return the columns whose names say whether an event was seen, or censoring."""
    names = {*EVENT_NAMES, *ALIVE_NAMES, "status"}
    columns = []
    for column in header:
        says_event = any(part in names or CENSORING.search(part) for part in _parts(column))
        if says_event and not _says_time(column):
            columns.append(column)
    return columns


def codes_text(column: str, codes: Mapping[str, float]) -> str:
    """Say what the cells of a column were read as; empty if there are none.

    Args:
        column: The column of events.
        codes: The event, 1 or 0, that each different cell stands for.
    """
    meanings: list[str] = []
    for event, meaning in ((1.0, "an event"), (0.0, "censored")):
        cells = sorted(cell for cell in codes if codes[cell] == event)
        if cells:
            meanings.append(f"{' or '.join(cells)} is {meaning}")
    return f"in the column {column!r}, {' and '.join(meanings)}" if meanings else ""


def _says_time(column: str) -> bool:
    """Return whether a name is that of a time; without a unit, it must not speak of an event."""
    parts = set(_parts(column))
    if parts.isdisjoint(TIME_NAMES) and not {"follow", "up"} <= parts:
        return False
    if not parts.isdisjoint(UNITS):
        return True
    names_event = not parts.isdisjoint((*EVENT_NAMES, *STATUS_NAMES, *ALIVE_NAMES))
    names_censoring = any(map(CENSORING.search, parts))
    return not names_event and not names_censoring


def _parts(column: str) -> list[str]:
    return [part.lower() for part in PART.findall(column)]


def _normal(cell: str) -> str:
    """Return a text in small letters with single spaces."""
    return re.sub(r"[\s_/-]+", " ", cell.strip().lower()).strip()


def _event_of_word(word: str) -> float | None:
    if word in EVENT_WORDS:
        return 1.0
    return 0.0 if word in CENSORED_WORDS else None


def _event_of_code(word: str, direction: Direction) -> float | None:
    """Return the event that a bare code says, None for another text or an unclear column."""
    number = finite_number(word)
    code = f"{number:g}" if number is not None else word
    if direction is Direction.UNCLEAR or code not in (*TRUE, *FALSE):
        return None
    return float((code in TRUE) == (direction is Direction.EVENT))

"""Numbers of things in messages."""


def counted(number: int, thing: str, plural: str | None = None) -> str:
    """Return the number and its noun, in the singular for 1.

    Args:
        number: How many there are.
        thing: The noun in the singular.
        plural: The noun in the plural; None for the noun with an s.

    >>> counted(1, "bag"), counted(1200, "bag"), counted(2, "series", "series")
    ('1 bag', '1,200 bags', '2 series')
    """
    return f"{number:,} {thing if number == 1 else plural or f'{thing}s'}"

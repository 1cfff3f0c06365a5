"""List the encoders on the command line and at the end of docs/encoders.md, from the registry."""

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Card, Preprocessing
from ._names import OPEN
from ._registry import entry, names

HEAD = """\
## Every encoder

| name | features | input | licence | gated | needs |
|---|---|---|---|---|---|
"""


def catalogue_lines(encoder: str | None = None) -> Iterator[str]:
    """Yield the properties of one encoder or of all as lines of text.

    Args:
        encoder: The name of one encoder; None for all.
    """
    encoders = names() if encoder is None else [encoder]
    for name in encoders:
        card = entry(name).card
        texts = _describe(name)
        licence = f"{card.licence} Gated." if card.gated else card.licence
        yield f"{name:<16} {card.summary}"
        yield f"    {texts.output}; input: {texts.input}"
        yield f"    licence: {licence}"
        yield f"    {card.source}"
        yield f"    weights: {texts.weights}; needs: {texts.needs}"


def catalogue_page() -> str:
    """Return the end of docs/encoders.md: a table of all encoders, and a section for each."""
    rows = []
    sections = []
    for name in names():
        card = entry(name).card
        texts = _describe(name)
        cells = [
            f"`{name}`",
            str(card.width or "the model's"),
            texts.side,
            card.licence.rstrip("."),
            "yes" if card.gated else "no",
            texts.needs,
        ]
        rows.append(f"| {' | '.join(cells)} |\n")
        sections.append(f"""
## `{name}`

{card.summary}

- **Source**: {card.source}
- **Weights**: {texts.weights}
- **Input**: {texts.input}
""")
    return HEAD + "".join(rows + sections) + _handcrafted_section()


def _handcrafted_section() -> str:
    """Return the section of the page that lists the features of `handcrafted`."""
    from .handcrafted import BLOCKS

    lines = ["\n## The features of `handcrafted`\n", "In this order:\n"]
    first = 0
    for block in BLOCKS:
        last = first + len(block.members) - 1
        lines.append(f"- **{block.name}** ({first} to {last}): {block.meaning}.")
        first = last + 1
    return "\n".join([*lines, ""])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """Properties of an encoder as texts."""

    weights: str
    """Where its weights are."""
    needs: str
    """The packages that it needs."""
    input: str
    """The patches that it takes, and how they are changed."""
    side: str
    """The side of its input, for a table."""
    output: str
    """What it gives."""


def _describe(name: str) -> _Texts:
    """Return the properties of an encoder; one whose name ends in `OPEN` loads any model."""
    card = entry(name).card
    preprocessing = entry(name).preprocessing
    packages = " and ".join(card.packages)
    needs = f"{packages} (`probsa[encoders]`)" if packages else "no other package"
    if preprocessing is not None:
        inputs = _describe_input(preprocessing)
        side = f"{preprocessing.size} px"
    elif name.endswith(OPEN):
        inputs = "the model's own"
        side = "the model's"
    else:
        inputs = "patches of any size, without resizing"
        side = "any"
    output = "as many features as the model has"
    if card.width:
        output = f"{card.width} features per patch"
    return _Texts(
        weights=_describe_weights(card), needs=needs, input=inputs, side=side, output=output
    )


def _describe_weights(card: Card) -> str:
    origin = card.weights
    if origin is None:
        return "none"
    if origin.package:
        extra = f" (`probsa[{origin.extra}]`)" if origin.extra else ""
        return f"in the package `{origin.package}`{extra}"
    addresses = []
    if origin.url:
        addresses.append(origin.url)
    if origin.repository:
        addresses.append(f"https://huggingface.co/{origin.repository}")
    return " or ".join(addresses) or "on the model's page"


def _describe_input(preprocessing: Preprocessing) -> str:
    size = preprocessing.resize or preprocessing.size
    crop = f", cropped to the central {preprocessing.size}" if preprocessing.resize else ""
    return (
        f"{size} px by {preprocessing.resampling} resampling{crop}; "
        f"mean {_list_numbers(preprocessing.mean)}, "
        f"standard deviation {_list_numbers(preprocessing.std)}"
    )


def _list_numbers(values: tuple[float, ...]) -> str:
    return f"({', '.join(f'{v:.8g}' for v in values)})"

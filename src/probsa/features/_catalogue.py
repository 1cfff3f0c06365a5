"""List the encoders on the command line and at the end of docs/encoders.md, from the registry."""

from collections.abc import Iterator

from ._registry import OPEN, entry, names

HEAD = """\
## Every encoder

| name | features | input | licence | gated | needs |
|---|---|---|---|---|---|
"""


def catalogue_lines(which: str | None = None) -> Iterator[str]:
    """Yield the properties of one encoder or of all as lines of text."""
    for name in [which] if which else names():
        card, (weights, needs, taken, given) = entry(name).card, _facts(name)
        yield f"{name:<16} {card.summary}"
        yield f"    {given}; input: {taken}"
        yield f"    licence: {card.licence}{' Gated.' if card.gated else ''}"
        yield f"    {card.source}"
        yield f"    weights: {weights}; needs: {needs}"


def catalogue_page() -> str:
    """Return the end of docs/encoders.md: a table of all encoders, and a section for each."""
    rows, sections = [], []
    for name in names():
        card, how = entry(name).card, entry(name).preprocessing
        weights, needs, taken, _ = _facts(name)
        side = f"{how.size} px" if how else ("the model's" if name.endswith(OPEN) else "any")
        gated = "yes" if card.gated else "no"
        cells = f"`{name}`", card.width or "the model's", side, card.licence.rstrip("."), gated
        rows.append(f"| {' | '.join(map(str, (*cells, needs)))} |\n")
        sections.append(f"""
## `{name}`

{card.summary}

- **Source**: {card.source}
- **Weights**: {weights}
- **Input**: {taken}
""")
    return HEAD + "".join(rows + sections) + _statistics()


def _statistics() -> str:
    from .handcrafted import BLOCKS

    lines, first = ["\n## The features of `handcrafted`\n", "In this order:\n"], 0
    for name, members, meaning in BLOCKS:
        lines.append(f"- **{name}** ({first} to {first + len(members) - 1}): {meaning}.")
        first += len(members)
    return "\n".join([*lines, ""])


def _facts(name: str) -> tuple[str, str, str, str]:
    """Return where the weights of an encoder are, what it needs, takes and gives."""
    card, how, origin = entry(name).card, entry(name).preprocessing, entry(name).card.weights
    weights = "none"
    if origin and origin.package:
        weights = f"in the package `{origin.package}` (`probsa[effnet]`)"
    elif origin:
        hub = origin.repository and f"https://huggingface.co/{origin.repository}"
        weights = " or ".join(filter(None, (origin.url, hub))) or "on the model's page"
    packages = " and ".join(card.packages)
    needs = f"{packages} (`probsa[encoders]`)" if packages else "no other package"
    taken = "patches of any size, without resizing"
    if how:
        mean, std = (f"({', '.join(f'{v:.8g}' for v in values)})" for values in (how.mean, how.std))
        crop = f", cropped to the central {how.size}" if how.resize else ""
        taken = f"{how.resize or how.size} px by {how.resampling} resampling{crop}; mean {mean}, "
        taken += f"standard deviation {std}"
    elif name.endswith(OPEN):
        taken = "the model's own"
    given = f"{card.width} features per patch"
    return weights, needs, taken, given if card.width else "as many features as the model has"

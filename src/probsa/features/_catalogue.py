"""The encoders as a list and as a page (docs/encoders.md), made from the registry alone."""

from collections.abc import Iterator

from ._base import Card, Preprocessing
from ._registry import DEFAULT, OPEN, describe, entry, names

PAGE = """\
# Encoders

Made from the registry (`probsa encoders --markdown`): what turns the pixels of a patch, or the
windows of a CT slice, into numbers. `probsa extract WORK --encoder NAME` uses one; where none is
named it is `{default}`, which needs no weights.

No weights are part of this package, and none are downloaded unasked:

- `--weights FILE` reads a file: safetensors, or tensors that PyTorch saved (`.pt`, `.pth`, `.bin`).
  A file that could only be read by running code of it is refused. A folder that holds a
  `model.safetensors` or a `pytorch_model.bin` will do, and so will the address of a file.
- `--weights hub` downloads them from where their makers put them. A gated model's licence has to
  be accepted on its page first, and `hf auth login` (formerly `huggingface-cli login`) run once.
- Without `--weights`, what PyTorch's and the Hugging Face Hub's local caches hold is used.

The licences are the makers' and hold for what you do with the features; read them. Features carry
the encoder's name with a digest of its weights, so that those of other weights are not mixed in.

| name | numbers | input | licence | gated | needs |
|---|---|---|---|---|---|
"""


def catalogue_rows(which: str | None = None) -> list[dict[str, object]]:
    """What `probsa encoders --json` says: of one, or of all of them."""
    return [describe(name) for name in ([which] if which else names())]


def catalogue_lines(which: str | None = None) -> Iterator[str]:
    """The same for people."""
    for name in [which] if which else names():
        card, how = entry(name).card, entry(name).preprocessing
        yield f"{name:<16} {card.summary}"
        yield f"    {_numbers(card)}; input: {_input(name, how)}"
        yield f"    licence: {card.licence}{' Gated.' if card.gated else ''}"
        yield f"    {card.source}"
        yield f"    weights: {_weights(card)}; needs: {_needs(card)}"


def catalogue_page() -> str:
    """docs/encoders.md."""
    table = "".join(_row(name) for name in names())
    sections = "".join(_section(name) for name in names())
    return PAGE.format(default=DEFAULT) + table + sections + _statistics()


def _row(name: str) -> str:
    card, how = entry(name).card, entry(name).preprocessing
    cells = (
        f"`{name}`",
        str(card.width or "the model's"),
        f"{how.size} px" if how else ("the model's" if name.endswith(OPEN) else "any"),
        card.licence.rstrip("."),
        "yes" if card.gated else "no",
        _needs(card),
    )
    return f"| {' | '.join(cells)} |\n"


def _section(name: str) -> str:
    card, how = entry(name).card, entry(name).preprocessing
    return "\n".join(
        (
            f"\n## `{name}`\n",
            card.summary,
            "",
            f"- **Source**: {card.source}",
            f"- **Licence**: {card.licence}",
            f"- **Weights**: {_weights(card)}" + (" (gated)" if card.gated else ""),
            f"- **Input**: {_input(name, how)}",
            f"- **Gives**: {_numbers(card)}. **Needs**: {_needs(card)}.",
            "",
        )
    )


def _statistics() -> str:
    from .handcrafted import BLOCKS

    said = ["\n## The numbers of `handcrafted`\n", "In this order:\n"]
    first = 0
    for block in BLOCKS:
        last = first + len(block.members) - 1
        said.append(f"- **{block.name}** ({first} to {last}): {block.metadata}.")
        first = last + 1
    return "\n".join([*said, ""])


def _numbers(card: Card) -> str:
    return f"{card.width} numbers a patch" if card.width else "as many numbers as the model has"


def _input(name: str, how: Preprocessing | None) -> str:
    if how is None:
        return "the model's own" if name.endswith(OPEN) else "patches of any size, as they are"
    cut = f", of which the middle {how.size}" if how.resize else ""
    resized = f"{how.resize or how.size} px by {how.resampling} resampling{cut}"
    return f"{resized}; mean {_triple(how.mean)}, standard deviation {_triple(how.std)}"


def _triple(of: tuple[float, float, float]) -> str:
    return "(" + ", ".join(f"{v:g}" if v == float(f"{v:g}") else str(v) for v in of) + ")"


def _weights(card: Card) -> str:
    if card.weights is None:
        return "none"
    there = [card.weights.url]
    if card.weights.repository:
        there.append(f"https://huggingface.co/{card.weights.repository}")
    return " or ".join(filter(None, there)) or "on the model's page"


def _needs(card: Card) -> str:
    return (
        f"{' and '.join(card.packages)} (`probsa[encoders]`)" if card.packages else "nothing more"
    )

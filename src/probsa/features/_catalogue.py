"""List the encoders on the command line and in docs/encoders.md, from the registry."""

from collections.abc import Iterator

from ._base import Card, Preprocessing
from ._registry import DEFAULT, OPEN, describe, entry, names

PAGE = """\
# Encoders

This page is generated from the registry (`probsa encoders --markdown`). An encoder turns the pixels
of a patch, or the windows of a CT slice, into a feature vector. Choose one with
`probsa extract WORK --encoder NAME`; the default is `{default}`, which needs no weights.

The package contains no weights and downloads none unless you ask for it:

- `--weights FILE` reads a safetensors file or tensors saved by PyTorch (`.pt`, `.pth`, `.bin`).
  A file that could only be read by executing code in it is refused. FILE may also be a folder with
  `model.safetensors` or `pytorch_model.bin`, or the URL of a file.
- `--weights hub` downloads the weights from their authors' site. For a gated model, first accept
  the licence on its page and run `hf auth login` (formerly `huggingface-cli login`) once.
- Without `--weights`, the local caches of PyTorch and the Hugging Face Hub are used.

The licences are those of the authors and apply to your use of the features; please read them.
Features carry the encoder's name and a digest of its weights, so features of different weights
cannot be mixed by accident.

| name | features | input | licence | gated | needs |
|---|---|---|---|---|---|
"""


def catalogue_rows(which: str | None = None) -> list[dict[str, object]]:
    """Return the properties of one encoder or of all, as `probsa encoders --json` prints them."""
    return [describe(name) for name in ([which] if which else names())]


def catalogue_lines(which: str | None = None) -> Iterator[str]:
    """Yield the same properties as lines of text."""
    for name in [which] if which else names():
        card, how = entry(name).card, entry(name).preprocessing
        yield f"{name:<16} {card.summary}"
        yield f"    {_numbers(card)}; input: {_input(name, how)}"
        yield f"    licence: {card.licence}{' Gated.' if card.gated else ''}"
        yield f"    {card.source}"
        yield f"    weights: {_weights(card)}; needs: {_needs(card)}"


def catalogue_page() -> str:
    """Return the page docs/encoders.md."""
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
            f"- **Output**: {_numbers(card)}. **Needs**: {_needs(card)}.",
            "",
        )
    )


def _statistics() -> str:
    from .handcrafted import BLOCKS

    lines = ["\n## The features of `handcrafted`\n", "In this order:\n"]
    first = 0
    for block in BLOCKS:
        last = first + len(block.members) - 1
        lines.append(f"- **{block.name}** ({first} to {last}): {block.metadata}.")
        first = last + 1
    return "\n".join([*lines, ""])


def _numbers(card: Card) -> str:
    return f"{card.width} features per patch" if card.width else "as many features as the model has"


def _input(name: str, how: Preprocessing | None) -> str:
    if how is None:
        return "the model's own" if name.endswith(OPEN) else "patches of any size, without resizing"
    cut = f", cropped to the central {how.size}" if how.resize else ""
    resized = f"{how.resize or how.size} px by {how.resampling} resampling{cut}"
    return f"{resized}; mean {_triple(how.mean)}, standard deviation {_triple(how.std)}"


def _triple(values: tuple[float, float, float]) -> str:
    return "(" + ", ".join(f"{v:.8g}" for v in values) + ")"


def _weights(card: Card) -> str:
    if card.weights is None:
        return "none"
    if card.weights.package:
        return f"in the package `{card.weights.package}` (`probsa[effnet]`)"
    places = [card.weights.url]
    if card.weights.repository:
        places.append(f"https://huggingface.co/{card.weights.repository}")
    return " or ".join(filter(None, places)) or "on the model's page"


def _needs(card: Card) -> str:
    return (
        f"{' and '.join(card.packages)} (`probsa[encoders]`)"
        if card.packages
        else "no other package"
    )

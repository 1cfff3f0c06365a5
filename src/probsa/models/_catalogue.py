"""The page of models, docs/models.md, generated from the registry alone."""

from ._base import Model
from ._originals import sources
from ._registry import look_up, names
from ._source import needed_words

PAGE = """\
# Models

| you have | take |
|---|---|
| lesions that cover several neighbouring patches or slices | `probsa train` without `--model` |
| small or scattered lesions, or over 200,000 patches per bag | `evidence-diag` |
| grades, several findings, a number, survival times | the default with `--task` |
| new data that may hold no signal | `mean-pool`, then the default |
| a published method to compare with | its own name, with `--preset original` |

[Which model, and can I trust its map?](which-model.md) gives the reasons and says what to expect.
The default is three members of `evidence-field`.

Every model was tested on bags with a known answer, where a shortcut of the training bags is
reversed in the test bags ([assumptions](assumptions.md), one seed):

| a bag is positive if it has | passed | failed |
|---|---|---|
| one concept | `evidence-dirac`, `evidence-diag`, `evidence-field`, `vmil` | the other 25 |
| two concepts | `evidence-dirac`, `evidence-diag`, `evidence-field`, `vmil` | the other 25 |
| two concepts, however frequent | `iibmil` | the other 28 |

The entries below say where each model comes from: what follows its *paper*, what follows the
authors' *code*, and the settings of the *comparison* in the ProbSA paper, which are the defaults.
`preset="original"` selects the settings under *Original*, and `probsa convert-checkpoint` reads the
*weights*. `probsa models NAME` lists all arguments. All models are written from published
descriptions; this package contains no code and no weights of the authors. The page is generated
by `probsa models --markdown`.
"""


def methods() -> dict[type[Model], list[str]]:
    """Return the names of each method, one class each, in the order of their first names."""
    found: dict[type[Model], list[str]] = {}
    for name in names():
        found.setdefault(look_up(name).model, []).append(name)
    return found


def catalogue_page() -> str:
    """Return the text of docs/models.md."""
    shown: dict[str, str] = {}  # a name of the first method that follows its paper so
    return "\n".join([PAGE, *(_section(*item, shown) for item in methods().items())])


def _section(method: type[Model], its_names: list[str], shown: dict[str, str]) -> str:
    of, first = method.provenance, look_up(its_names[0])
    settings = {k: v for name in its_names for k, v in look_up(name).original.items()}
    from_paper, from_code = f". {of.follows_paper}", f". {of.follows_code}"
    if of.follows_paper in shown:
        from_paper, from_code, settings = f". As `{shown[of.follows_paper]}`.", "", {}
    shown.setdefault(of.follows_paper, its_names[-1])
    read = (
        name
        for name, source in sources().items()
        if source.model in its_names and source.read.__module__.startswith(f"{__package__}.")
    )
    needed = needed_words(method.needs, method.min_instances)
    lines = {
        "Paper": f"{of.paper}{from_paper}",
        "Code": f"{of.code}; licence: {of.licence}{from_code}",
        "Comparison": of.fair,
        "Original": ", ".join(f"`{k}={v!r}`" for k, v in sorted(settings.items())),
        "Weights": ", ".join(f"`{name}`" for name in sorted(read)),
        "Needs": f"{needed}. Score of an instance: {method.score_kind}.",
    }
    return "\n".join(
        (
            f"## {', '.join(f'`{name}`' for name in its_names)}",
            "",
            first.summary.partition(" (")[0],
            "",
            *(f"- **{key}**: {text}" for key, text in lines.items() if text),
            "",
        )
    )

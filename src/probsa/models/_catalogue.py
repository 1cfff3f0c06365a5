"""The list of models and its page, docs/models.md, generated from the registry alone."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ._base import Model, Provenance
from ._registry import fixed, names, original, summary

PAGE = """\
# Models

Made from the registry (`probsa models --markdown`): every method by its name, with its paper, the
licence of its authors' code, what its bags need, and where it follows what. All of it is written
from published descriptions; no code of theirs is in this package.

Defaults are the ProbSA paper's fair setting; `preset="original"` takes a method's own.
`probsa models NAME` lists its arguments, `probsa convert-checkpoint` reads its original weights.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """A method, with all the names under which it is registered."""

    names: tuple[str, ...]
    summary: str
    provenance: Provenance
    needs: str
    score: str
    original: dict[str, object]
    originals: tuple[str, ...]
    """Original implementations whose state dicts can be converted to this model."""


def catalogue() -> Iterator[MethodEntry]:
    """Iterate over the methods, one per class, in the order of their first names."""
    from ._originals import readers

    names_by_class: dict[type[Model], list[str]] = {}
    for name in names():
        names_by_class.setdefault(fixed(name)[0], []).append(name)
    modules = readers()
    for cls, its_names in names_by_class.items():
        preset = dict[str, object]()
        for name in its_names:
            preset |= original(name)
        # original weights belong to the method itself, not to its ProbSA variant in the same file
        variant = any(other is not cls and issubclass(cls, other) for other in names_by_class)
        readable = sorted(k for k, module in modules.items() if module == cls.__module__)
        yield MethodEntry(
            names=tuple(its_names),
            summary=summary(its_names[0]).partition(" (")[0],
            provenance=cls.provenance,
            needs=_needs(cls),
            score=cls.score_kind,
            original=preset,
            originals=() if variant else tuple(readable),
        )


def catalogue_rows() -> dict[str, dict[str, str]]:
    """Return the description of each registered name that `probsa models --json` prints."""
    return {
        name: {
            "summary": summary(name),
            "paper": entry.provenance.paper,
            "code": entry.provenance.code,
            "licence": entry.provenance.licence,
            "needs": entry.needs,
            "score": entry.score,
        }
        for entry in catalogue()
        for name in entry.names
    }


def catalogue_lines() -> Iterator[str]:
    """Iterate over the lines that `probsa models` prints: a method's names, then its details."""
    for entry in catalogue():
        yield from (f"{name:<22} {summary(name)}" for name in entry.names)
        provenance = entry.provenance
        yield f"    {provenance.paper}"
        yield f"    code: {provenance.code}; licence: {provenance.licence}"
        yield f"    needs: {entry.needs}"


def _needs(model: type[Model]) -> str:
    needed = sorted({"edges": "a graph", "coords": "coordinates"}[n] for n in model.needs)
    if model.min_instances > 1:
        needed.append(f"{model.min_instances} instances or more")
    return " and ".join(needed) or "features only"


def catalogue_page() -> str:
    """Return the text of docs/models.md."""
    return "\n".join([PAGE, *(_section(entry) for entry in catalogue())])


def _section(entry: MethodEntry) -> str:
    provenance = asdict(entry.provenance)
    lines = [
        f"## {', '.join(f'`{name}`' for name in entry.names)}",
        "",
        entry.summary,
        "",
        f"- **Paper**: {provenance['paper']}",
        f"- **Code**: {provenance['code']}; licence: {provenance['licence']}",
        f"- **Needs**: {entry.needs}. **Score of an instance**: {entry.score}.",
        f"- **As in its paper**: {provenance['follows_paper']}",
        f"- **As in its code**: {provenance['follows_code']}",
        f"- **Changed by the ProbSA paper's comparison**: {provenance['fair']}",
    ]
    if entry.original:
        settings = ", ".join(f"`{k}={v!r}`" for k, v in sorted(entry.original.items()))
        lines.append(f'- **`preset="original"`**: {settings}')
    if entry.originals:
        lines.append(f"- **Reads the weights of**: {', '.join(f'`{k}`' for k in entry.originals)}")
    return "\n".join([*lines, ""])

"""The models as a list and as a page (docs/models.md), made from the registry alone."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ._base import Source
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
class Entry:
    """A method under its names."""

    names: tuple[str, ...]
    summary: str
    source: Source
    needs: str
    score: str
    original: dict[str, object]
    originals: tuple[str, ...]
    """Families of original state dicts that become this model."""


def catalogue() -> Iterator[Entry]:
    """The methods, one for each class, in the order of their first names."""
    from ._originals import readers

    by_class: dict[type, list[str]] = {}
    for name in names():
        by_class.setdefault(fixed(name)[0], []).append(name)
    reading = readers()
    for cls, its_names in by_class.items():
        model, own = fixed(its_names[0])[0], dict[str, object]()
        for name in its_names:
            own |= original(name)
        own_file = cls.__module__
        # original weights become the method itself, not what was made of it
        variant = any(other is not cls and issubclass(cls, other) for other in by_class)
        yield Entry(
            names=tuple(its_names),
            summary=summary(its_names[0]).partition(" (")[0],
            source=model.source,
            needs=_needs(model),
            score=model.score_kind,
            original=own,
            originals=()
            if variant
            else tuple(sorted(k for k, m in reading.items() if m == own_file)),
        )


def catalogue_rows() -> dict[str, dict[str, str]]:
    """Each name with what `probsa models --json` says of it."""
    return {
        name: {
            "summary": summary(name),
            "paper": entry.source.paper,
            "code": entry.source.code,
            "licence": entry.source.licence,
            "needs": entry.needs,
            "score": entry.score,
        }
        for entry in catalogue()
        for name in entry.names
    }


def catalogue_lines() -> Iterator[str]:
    """The same for people: names first, then what they share."""
    for entry in catalogue():
        yield from (f"{name:<22} {summary(name)}" for name in entry.names)
        source = entry.source
        yield f"    {source.paper}"
        yield f"    code: {source.code}; licence: {source.licence}"
        yield f"    needs: {entry.needs}"


def _needs(model: type) -> str:
    needed = sorted({"edges": "a graph", "coords": "coordinates"}[n] for n in model.needs)
    if model.min_instances > 1:
        needed.append(f"{model.min_instances} instances or more")
    return " and ".join(needed) or "features only"


def catalogue_page() -> str:
    """docs/models.md."""
    return "\n".join([PAGE, *(_section(entry) for entry in catalogue())])


def _section(entry: Entry) -> str:
    source = asdict(entry.source)
    lines = [
        f"## {', '.join(f'`{name}`' for name in entry.names)}",
        "",
        entry.summary,
        "",
        f"- **Paper**: {source['paper']}",
        f"- **Code**: {source['code']}; licence: {source['licence']}",
        f"- **Needs**: {entry.needs}. **Score of an instance**: {entry.score}.",
        f"- **As in its paper**: {source['follows_paper']}",
        f"- **As in its code**: {source['follows_code']}",
        f"- **Changed by the ProbSA paper's comparison**: {source['fair']}",
    ]
    if entry.original:
        own = ", ".join(f"`{k}={v!r}`" for k, v in sorted(entry.original.items()))
        lines.append(f'- **`preset="original"`**: {own}')
    if entry.originals:
        lines.append(f"- **Reads the weights of**: {', '.join(f'`{k}`' for k in entry.originals)}")
    return "\n".join([*lines, ""])

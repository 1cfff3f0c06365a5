"""The list of models, and the names of their arguments, from the source: without PyTorch.

The registry is asked where it is loaded already, and where the source does not tell: with models of
other packages, or with a file whose registration is not written as constants.
"""

import ast
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..core import NotConstant, SourceClass, source_modules

GROUP = "probsa.models"
"""Entry points by which other packages add models."""
FOLDER = Path(__file__).parent
OF_REGISTRY = ("without", "original", "family", "baseline")
"""Parameters of `register` that are not arguments of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedModel:
    """A registered name, as `probsa models` lists it."""

    name: str
    method: str
    """The class that the name belongs to, with its module."""
    summary: str
    paper: str
    code: str
    licence: str
    needs: str
    """What its bags must contain, in words."""
    score: str


def needed_words(needs: Collection[str], min_instances: int) -> str:
    """Return what the bags of a method must contain, in words."""
    words = {"edges": "a graph", "coords": "coordinates"}
    contents = sorted(words[need] for need in needs)
    if min_instances > 1:
        contents.append(f"{min_instances} instances or more")
    return " and ".join(contents) or "features only"


def known_names() -> list[str]:
    """Return every registered name, sorted, as `names` does."""
    registered = _of_source()
    if registered is None:
        from ._registry import names

        return names()
    return sorted(registered)


def known_arguments(name: str) -> frozenset[str]:
    """Return the names of the arguments of a model, as `arguments` does.

    Raises:
        UnknownName: there is no such model, and the registry had to be asked.
    """
    registered = _of_source()
    if registered is not None:
        try:
            return _arguments(registered[name])
        except NotConstant:
            pass
    from ._registry import arguments

    return frozenset(arguments(name))


def listed_models() -> list[ListedModel]:
    """Return what `probsa models` lists, sorted by name."""
    registered = _of_source()
    if registered is not None:
        try:
            return [_listed(name, registered[name]) for name in sorted(registered)]
        except NotConstant:
            pass
    from ._registry import look_up, names

    models: list[ListedModel] = []
    for name in names():
        registration = look_up(name)
        method = registration.model
        provenance = method.provenance
        model = ListedModel(
            name=name,
            method=f"{method.__module__}.{method.__qualname__}",
            summary=registration.summary,
            paper=provenance.paper,
            code=provenance.code,
            licence=provenance.licence,
            needs=needed_words(method.needs, method.min_instances),
            score=method.score_kind,
        )
        models.append(model)
    return models


def catalogue_rows() -> dict[str, dict[str, str]]:
    """Return the description of each registered name that `probsa models --json` prints."""
    rows: dict[str, dict[str, str]] = {}
    for models in _by_method():
        for model in models:
            rows[model.name] = {
                "summary": model.summary,
                "paper": model.paper,
                "code": model.code,
                "licence": model.licence,
                "needs": model.needs,
                "score": model.score,
            }
    return rows


def catalogue_lines() -> Iterator[str]:
    """Iterate over the lines that `probsa models` prints: a method's names, then its details."""
    for models in _by_method():
        for model in models:
            yield f"{model.name:<22} {model.summary}"
        first = models[0]
        yield f"    {first.paper}"
        yield f"    code: {first.code}; licence: {first.licence}"
        yield f"    needs: {first.needs}"


def _by_method() -> list[list[ListedModel]]:
    """Return the models of each class, in the order of their first names."""
    methods: dict[str, list[ListedModel]] = {}
    for model in listed_models():
        methods.setdefault(model.method, []).append(model)
    return list(methods.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Registered:
    """A class under one of its names, as it is written."""

    cls: SourceClass
    fixed: dict[str, Any]
    without: frozenset[str]
    original: bool
    """Whether the name has a preset of its authors."""


def _of_source() -> dict[str, _Registered] | None:
    """Return the registered names; None if the registry has to be asked, or may be at no cost."""
    if f"{__package__}._registry" in sys.modules or entry_points(group=GROUP):
        return None
    try:
        return _read_registrations()
    except (NotConstant, SyntaxError):
        return None


@cache
def _read_registrations() -> dict[str, _Registered]:
    registered: dict[str, _Registered] = {}
    for module in source_modules(FOLDER):
        for node, call in module.marked("register"):
            if not isinstance(node, ast.ClassDef):
                raise NotConstant(node.name)
            values = module.keywords(call)
            (name,) = module.positional(call)
            registered[name] = _Registered(
                cls=SourceClass(module, node),
                fixed={key: value for key, value in values.items() if key not in OF_REGISTRY},
                without=frozenset(values.get("without", ())),
                original=bool(values.get("original")),
            )
    return registered


def _arguments(registered: _Registered) -> frozenset[str]:
    """Return the names of the arguments; see `constructor_arguments` and `Registration`."""
    hidden = {*registered.fixed, *registered.without}
    offered: set[str] = set()
    overridden = {"self"}
    for ancestor in registered.cls.ancestors():
        constructor = ancestor.constructor()
        if constructor is None:
            continue
        parameters = [*constructor.posonlyargs, *constructor.args, *constructor.kwonlyargs]
        for parameter in parameters:
            key = parameter.arg
            if key in overridden:
                continue
            options = _options(ancestor, parameter.annotation)
            if options is None:
                offered |= {key} - hidden
            elif key not in hidden:
                offered |= {*options.fields()} - hidden
        overridden |= {parameter.arg for parameter in parameters}
        if constructor.kwarg is None:  # nothing is passed on to the base
            break
    if registered.original:
        offered.add("preset")
    return frozenset(offered)


def _options(cls: SourceClass, annotation: ast.expr | None) -> SourceClass | None:
    """Return the dataclass of an annotation that is one, or a union that begins with one."""
    while isinstance(annotation, ast.BinOp):
        annotation = annotation.left
    if not isinstance(annotation, ast.Name):
        return None
    try:
        options = cls.module.find(annotation.id)
    except NotConstant:  # `int`, or a type of another package
        return None
    return options if isinstance(options, SourceClass) and options.is_dataclass else None


def _listed(name: str, registered: _Registered) -> ListedModel:
    cls = registered.cls
    docstring = next(c.docstring for c in cls.ancestors() if c.docstring)
    summary = docstring.partition("\n")[0]
    settings = ", ".join(f"{argument}={value}" for argument, value in registered.fixed.items())
    if settings:
        summary = f"{summary} ({settings})"
    provenance = cls.value("provenance")
    return ListedModel(
        name=name,
        method=f"{__package__}.{cls.module.path.stem}.{cls.node.name}",
        summary=summary,
        paper=provenance["paper"],
        code=provenance.get("code", "none published"),
        licence=provenance.get("licence", "none"),
        needs=needed_words(cls.value("needs"), cls.value("min_instances")),
        score=cls.value("score_kind"),
    )

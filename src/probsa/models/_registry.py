"""The registry: models by name. Every public module in this folder registers its own models.

Other packages add models through the entry point group `probsa.models`.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar, get_args

from docstring_parser import parse as parse_docstring
from docstring_parser import parse_from_object

from ..core import Limits, Seed, TaskName, check_value, enumerated, load_plugins
from ..errors import InputError, UnknownName
from ..tasks import TASKS
from ..variational import LikelihoodSpec, build_likelihood, logits_of
from ._base import Family, Model

M = TypeVar("M", bound=type[Model])


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """An argument of a model: a key of run files, and a flag."""

    annotation: Any
    default: Any
    """`inspect.Parameter.empty` if there is none."""
    group: tuple[str, type] | None = None
    """The constructor's parameter that holds the value in a dataclass, and that dataclass."""


PRESET = "preset"
"""The argument that selects the defaults of a model that registers an original setting."""
PRESETS = Argument(annotation=Literal["paper", "original"], default="paper")
PRESET_HELP = "Which defaults to use: those of the ProbSA paper, or those of the method's authors."


SEED = "seed"
"""The argument that is a number of no size."""
LONGEST = 10_000
"""Most numbers in a list: the layers, or the weights of the classes."""
CovariateCount = Annotated[int, Limits(at_least=0, at_most=10_000)]
AnyCount = Annotated[int, Limits(at_least=-(10**9), at_most=10**9)]
AnyNumber = Annotated[float, Limits(at_least=-1e9, at_most=1e9)]
"""Numbers that the arguments of other packages' models may be, if their annotations say no more."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A model class under one of its names."""

    model: type[Model]
    fixed: dict[str, object]
    """The constructor arguments that the name fixes."""
    without: frozenset[str]
    """The arguments, or groups of them, that are not offered under this name."""
    original: dict[str, object]
    """The arguments that `preset="original"` changes; empty if there is no such preset."""
    family: Family
    baseline: str | None

    @cached_property
    def arguments(self) -> dict[str, Argument]:
        """The arguments under this name: the schema of run files and flags."""
        hidden = {*self.fixed, *self.without}
        offered = {
            k: v
            for k, v in constructor_arguments(self.model).items()
            if k not in hidden and (v.group is None or v.group[0] not in hidden)
        }
        return offered | ({PRESET: PRESETS} if self.original else {})

    @cached_property
    def help(self) -> dict[str, str]:
        """The help texts of the arguments, from the docstrings of the classes."""
        parsed = [parse_docstring(inspect.cleandoc(c.__doc__ or "")) for c in self.model.__mro__]
        groups = {c for v in self.arguments.values() if v.group for c in v.group[1].__mro__[:-1]}
        documented = [*reversed(parsed), *map(parse_from_object, groups)]
        texts = {p.arg_name: p.description or "" for d in documented for p in d.params}
        return {PRESET: PRESET_HELP} | {k: " ".join(text.split()) for k, text in texts.items()}

    @property
    def summary(self) -> str:
        """The first line of the class's docstring, followed by the arguments the name fixes."""
        settings = ", ".join(f"{k}={v}" for k, v in self.fixed.items())
        first_line = (inspect.getdoc(self.model) or "").partition("\n")[0]
        return first_line + (f" ({settings})" if settings else "")


_registrations: dict[str, Registration] = {}


@cache
def constructor_arguments(cls: type[Model]) -> dict[str, Argument]:
    """Return the arguments of a class, with those that its constructor passes on to its base.

    The fields of a parameter whose annotation is a dataclass, or a union that begins with one, are
    arguments of their own.
    """
    found: dict[str, Argument] = {}
    seen = {"self"}
    for ancestor in cls.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        own = inspect.signature(ancestor.__init__).parameters
        for key, parameter in own.items():
            annotation = parameter.annotation
            options = next(iter(get_args(annotation)), annotation)
            if key in seen or parameter.kind is parameter.VAR_KEYWORD:
                continue
            if not (isinstance(options, type) and is_dataclass(options)):
                found.setdefault(key, Argument(annotation=annotation, default=parameter.default))
                continue
            for f in fields(options):
                default = inspect.Parameter.empty if f.default is MISSING else f.default
                option = Argument(annotation=f.type, default=default, group=(key, options))
                found.setdefault(f.name, option)
        seen |= set(own)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in own.values()):
            break
    return found


def register(
    name: str,
    *,
    without: Iterable[str] = (),
    original: Mapping[str, object] | None = None,
    family: Family | None = None,
    baseline: str | None = None,
    **fixed: object,
) -> Callable[[M], M]:
    """Register a model class under a name, with some of its arguments fixed.

    Args:
        name: name that `build` and run files use.
        without: arguments, or groups of them, that have no effect under this name.
        original: defaults of the method's own authors where they differ from the signature's
            (the ProbSA paper's); selected by `preset="original"`.
        family: the model's family under this name, if it is not the class's.
        baseline: the plain counterpart under this name, if it is not the class's.
        **fixed: values of constructor arguments.
    """

    def add(cls: M) -> M:
        if name in _registrations:
            other = _registrations[name].model
            raise ValueError(f"two models are named {name!r}: {other} and {cls}")
        every = constructor_arguments(cls)
        known = {*every, *(v.group[0] for v in every.values() if v.group is not None)}
        unknown = sorted({*fixed, *without, *(original or {})} - known)
        if unknown:
            raise ValueError(f"{name}: {cls.__name__} has no {', '.join(unknown)}")
        _registrations[name] = Registration(
            model=cls,
            fixed=fixed,
            without=frozenset(without),
            original=dict(original or {}),
            family=family or cls.family,
            baseline=baseline or cls.baseline,
        )
        return cls

    return add


@cache
def _discover() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        if not module.name.startswith("_"):
            import_module(f"{package}.{module.name}")
    load_plugins("probsa.models")


def names() -> list[str]:
    """Return every registered name, sorted."""
    _discover()
    return sorted(_registrations)


def look_up(name: str) -> Registration:
    """Return a registered model.

    Raises:
        UnknownName: there is none; suggests the nearest.
    """
    if name not in names():
        raise UnknownName("model", name, names())
    return _registrations[name]


def arguments(name: str) -> dict[str, Argument]:
    """Return the arguments of a model under this name: the schema of run files and flags."""
    return look_up(name).arguments


def plain_model(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the model that λ = 0 means, and those of the given arguments that it has.

    Without its prior, a variant is its plain baseline (Dirac), as in the paper's ablation. The
    answer is None for a model without a baseline.
    """
    base = look_up(name).baseline
    return None if base is None else (base, {k: given[k] for k in given if k in arguments(base)})


def build(
    name: str,
    *,
    likelihood: LikelihoodSpec | Mapping[str, Any] | None = None,
    covariates: int = 0,
    **model_arguments: Any,
) -> Model:
    """Build a model by name.

    `preset="original"` starts from the defaults of the method's authors instead of the ProbSA
    paper's; other arguments override both.

    Args:
        name: registered name of the model.
        likelihood: the likelihood of a target that is not a class, with the constants that were
            fitted on the training part; it determines the number of logits. None for classes.
        covariates: number of encoded clinical covariates, whose effect is added to the logits.
        **model_arguments: arguments of the model, see `arguments`.

    Raises:
        UnknownName: no such model or argument; suggests the nearest.
        InputError: a value is missing or not valid, or the model cannot learn the target of the
            likelihood.
    """
    registration = look_up(name)
    check_value("covariates", covariates, CovariateCount)
    spec = LikelihoodSpec.from_dict(likelihood) if isinstance(likelihood, Mapping) else likelihood
    if spec is not None:
        check_value("likelihood", spec, LikelihoodSpec)
        model_arguments = _for_target(name, model_arguments, spec)
    for argument in model_arguments:
        if argument not in registration.arguments:
            raise UnknownName(f"argument of {name}", argument, registration.arguments)
    missing = [
        argument
        for argument, about in registration.arguments.items()
        if about.default is inspect.Parameter.empty and argument not in model_arguments
    ]
    if missing:
        raise InputError(f"{name} needs {enumerated(missing)}")
    preset = model_arguments.pop(PRESET, PRESETS.default)
    check_value(PRESET, preset, PRESETS.annotation)
    if preset == "original":
        model_arguments = {**registration.original, **model_arguments}
    for argument, value in model_arguments.items():
        check_value(argument, value, registration.arguments[argument].annotation)
        _check_size(argument, value)
    every = constructor_arguments(registration.model)
    values: dict[str, Any] = {}
    groups: dict[tuple[str, type], dict[str, Any]] = {
        v.group: {} for v in every.values() if v.group
    }
    for argument, value in {**registration.fixed, **model_arguments}.items():
        group = every[argument].group
        (values if group is None else groups[group])[argument] = value
    values |= {key: options(**own) for (key, options), own in groups.items()}
    model = registration.model(**values)
    model.family, model.baseline = registration.family, registration.baseline
    model.name, model.arguments = name, dict(model_arguments)
    if spec is not None:
        model.likelihood = build_likelihood(spec)
        model.arguments["likelihood"] = spec.as_dict()
        del model.arguments["n_classes"]  # it follows from the likelihood
    if covariates:
        model.add_covariates(covariates)
        model.arguments["covariates"] = covariates
    return model


def _check_size(argument: str, value: object) -> None:
    """Refuse a number that no model can have, whatever the annotation of its argument allows.

    Raises:
        InputError: names the argument.
    """
    if isinstance(value, tuple | list):
        if len(value) > LONGEST:
            raise InputError(
                f"{argument} is a list of {len(value)} numbers; expected at most {LONGEST}"
            )
        for part in value:
            _check_size(argument, part)
    elif isinstance(value, int) and not isinstance(value, bool):
        check_value(argument, value, Seed if argument == SEED else AnyCount)
    elif isinstance(value, float):
        check_value(argument, value, AnyNumber)


def check_task(name: str, task: TaskName) -> None:
    """Refuse a target that a model cannot learn.

    Raises:
        UnknownName: no such model.
        InputError: the model's own losses need classes, or two classes.
    """
    if not _learns(name, task):
        learned = ", ".join(other for other in TASKS if _learns(name, other))
        able = ", ".join(other for other in names() if _learns(other, task))
        raise InputError(
            f"{name} cannot learn the task {task}: its method is defined for {learned}. Models for "
            f"{task}: {able}"
        )


def _learns(name: str, task: TaskName) -> bool:
    cls, target = look_up(name).model, TASKS[task]
    if cls.binary:
        return target.two_classes
    return target.unordered_classes or not cls.needs_classes


def _for_target(name: str, given: Mapping[str, Any], spec: LikelihoodSpec) -> dict[str, Any]:
    """Return the arguments of a model with as many logits as a likelihood needs."""
    check_task(name, spec.task)
    if given.get("class_weights") is not None:
        raise InputError("class_weights and a likelihood are given: the likelihood holds weights")
    columns = logits_of(spec)
    if given.get("n_classes", columns) != columns:
        raise InputError(
            f"n_classes is {given['n_classes']}, but the likelihood of the task {spec.task} needs "
            f"{columns} logits: leave n_classes out"
        )
    return {**given, "n_classes": columns}

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
        offered: dict[str, Argument] = {}
        for name, argument in constructor_arguments(self.model).items():
            has_hidden_group = argument.group is not None and argument.group[0] in hidden
            if name not in hidden and not has_hidden_group:
                offered[name] = argument
        if self.original:
            offered[PRESET] = PRESETS
        return offered

    @cached_property
    def help(self) -> dict[str, str]:
        """The help texts of the arguments, from the docstrings of the classes."""
        # a class says more of an argument than its bases do
        classes = reversed(self.model.__mro__)
        documents = [parse_docstring(inspect.cleandoc(cls.__doc__ or "")) for cls in classes]
        option_classes: set[type] = set()
        for argument in self.arguments.values():
            if argument.group is not None:
                option_classes |= {*argument.group[1].__mro__[:-1]}
        documents += [parse_from_object(cls) for cls in option_classes]
        texts = {PRESET: PRESET_HELP}
        for document in documents:
            for parameter in document.params:
                texts[parameter.arg_name] = " ".join((parameter.description or "").split())
        return texts

    @property
    def method_summary(self) -> str:
        """The first line of the class's docstring, the same under all names of a method."""
        return (inspect.getdoc(self.model) or "").partition("\n")[0]

    @property
    def summary(self) -> str:
        """The first line of the class's docstring, followed by the arguments the name fixes."""
        settings = ", ".join(f"{argument}={value}" for argument, value in self.fixed.items())
        return f"{self.method_summary} ({settings})" if settings else self.method_summary


_registrations: dict[str, Registration] = {}


@cache
def constructor_arguments(cls: type[Model]) -> dict[str, Argument]:
    """Return the arguments of a class, with those that its constructor passes on to its base.

    The fields of a parameter whose annotation is a dataclass, or a union that begins with one, are
    arguments of their own.
    """
    collected: dict[str, Argument] = {}
    overridden = {"self"}
    for ancestor in cls.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        parameters = inspect.signature(ancestor.__init__).parameters
        passes_on = False
        for key, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                passes_on = True
                continue
            if key in overridden:
                continue
            annotation = parameter.annotation
            # the first type of a union, or the annotation itself
            options = next(iter(get_args(annotation)), annotation)
            if not (isinstance(options, type) and is_dataclass(options)):
                argument = Argument(annotation=annotation, default=parameter.default)
                collected.setdefault(key, argument)
                continue
            for f in fields(options):
                default = inspect.Parameter.empty if f.default is MISSING else f.default
                option = Argument(annotation=f.type, default=default, group=(key, options))
                collected.setdefault(f.name, option)
        overridden |= set(parameters)
        if not passes_on:
            break
    return collected


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
        accepted: set[str] = set()
        for argument, about in constructor_arguments(cls).items():
            accepted.add(argument)
            if about.group is not None:
                accepted.add(about.group[0])
        unknown = sorted({*fixed, *without, *(original or {})} - accepted)
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
    baseline = look_up(name).baseline
    if baseline is None:
        return None
    accepted = arguments(baseline)
    return baseline, {key: value for key, value in given.items() if key in accepted}


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
    values = {**registration.fixed, **model_arguments}
    model = registration.model(**_grouped(registration.model, values))
    model.family = registration.family
    model.baseline = registration.baseline
    model.name = name
    model.arguments = dict(model_arguments)
    if spec is not None:
        model.likelihood = build_likelihood(spec)
        model.arguments["likelihood"] = spec.as_dict()
        del model.arguments["n_classes"]  # it follows from the likelihood
    if covariates:
        model.add_covariates(covariates)
        model.arguments["covariates"] = covariates
    return model


def _grouped(cls: type[Model], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of arguments as a constructor takes them: options in their dataclasses."""
    accepted = constructor_arguments(cls)
    # also groups of which no option is given
    groups: dict[tuple[str, type], dict[str, Any]] = {}
    for about in accepted.values():
        if about.group is not None:
            groups[about.group] = {}
    parameters: dict[str, Any] = {}
    for argument, value in values.items():
        group = accepted[argument].group
        if group is None:
            parameters[argument] = value
        else:
            groups[group][argument] = value
    for (parameter, options_class), options in groups.items():
        parameters[parameter] = options_class(**options)
    return parameters


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
        tasks = ", ".join(other for other in TASKS if _learns(name, other))
        models = ", ".join(other for other in names() if _learns(other, task))
        raise InputError(
            f"{name} cannot learn the task {task}: its method is defined for {tasks}. Models for "
            f"{task}: {models}"
        )


def _learns(name: str, task: TaskName) -> bool:
    cls = look_up(name).model
    target = TASKS[task]
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

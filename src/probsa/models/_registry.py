"""The registry: models by name. Every public module in this folder registers its own models.

Other packages add models through the entry point group `probsa.models`.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar

from ..core import TaskName, check_value, load_plugins
from ..errors import InputError, UnknownName
from ..tasks import TASKS
from ..variational import LikelihoodSpec, build_likelihood, logits_of
from ._base import Family, Model

M = TypeVar("M", bound=type[Model])

PRESET = inspect.Parameter(
    "preset",
    inspect.Parameter.KEYWORD_ONLY,
    default="paper",
    annotation=Literal["paper", "original"],
)
"""Selects the defaults, for models that register an original setting."""
OPTIONS_SUFFIX = "_options"
"""Suffix of the names of constructor parameters whose values are dataclasses of options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Properties of a registered model that are known before it is built; see `Model`."""

    family: Family
    has_kl: bool
    baseline: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """A model class under one of its names."""

    model: type[Model]
    fixed: dict[str, object]
    """The constructor arguments that the name fixes."""
    without: frozenset[str]
    """The arguments that are not offered under this name."""
    original: dict[str, object] | None
    facts: Facts


_registrations: dict[str, Registration] = {}


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
        without: arguments that have no effect under this name and are not offered.
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
        parameters = inspect.signature(cls).parameters
        groups = _option_groups(cls).values()
        known = {*parameters, *(option for group in groups for option in _flat_parameters(group))}
        unknown = sorted({*fixed, *without, *(original or {})} - known)
        if unknown:
            raise ValueError(f"{name}: {cls.__name__} has no {', '.join(unknown)}")
        _registrations[name] = Registration(
            model=cls,
            fixed=fixed,
            without=frozenset(without),
            original=None if original is None else dict(original),
            facts=Facts(
                family=family or cls.family,
                has_kl=cls.has_kl,
                baseline=baseline or cls.baseline,
            ),
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


def _look_up(name: str) -> Registration:
    if name not in names():
        raise UnknownName("model", name, names())
    return _registrations[name]


def _option_groups(cls: type[Model]) -> dict[str, type]:
    groups: dict[str, type] = {}
    for key, parameter in inspect.signature(cls).parameters.items():
        group = parameter.annotation
        if key.endswith(OPTIONS_SUFFIX) and isinstance(group, type) and is_dataclass(group):
            groups[key.removesuffix(OPTIONS_SUFFIX)] = group
    return groups


def _flat_parameters(group: type) -> dict[str, inspect.Parameter]:
    """Return the fields of a dataclass as keyword-only parameters."""
    return {
        f.name: inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=f.type,
        )
        for f in fields(group)
    }


def option_groups(name: str) -> dict[str, type]:
    """Return the dataclasses whose fields are arguments of a model, by the key that nests them.

    >>> option_groups("abmil-probsa-diag")["prior"].__name__
    'PriorOptions'
    """
    registration = _look_up(name)
    groups = _option_groups(registration.model)
    return {k: v for k, v in groups.items() if f"{k}{OPTIONS_SUFFIX}" not in registration.without}


def arguments(name: str) -> dict[str, inspect.Parameter]:
    """Return the arguments of a model under this name: the schema of run files and flags.

    The fields of the model's option dataclasses are among them, as flat arguments.
    """
    registration = _look_up(name)
    hidden = {*registration.fixed, *registration.without}
    offered: dict[str, inspect.Parameter] = {}
    groups = {f"{k}{OPTIONS_SUFFIX}": v for k, v in _option_groups(registration.model).items()}
    for key, parameter in inspect.signature(registration.model).parameters.items():
        if key not in hidden:
            offered |= _flat_parameters(groups[key]) if key in groups else {key: parameter}
    offered = {k: p for k, p in offered.items() if k not in hidden}
    return offered if registration.original is None else {**offered, PRESET.name: PRESET}


def original(name: str) -> dict[str, object]:
    """Return the arguments that `preset="original"` changes; empty if there is no such preset."""
    return dict(_look_up(name).original or {})


def plain_model(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the model that λ = 0 means, and those of the given arguments that it has.

    Without its prior, a variant is its plain baseline (Dirac), as in the paper's ablation. The
    answer is None for a model without a baseline.

    Args:
        name: registered name of a model.
        given: its arguments.
    """
    base = facts(name).baseline
    if base is None:
        return None
    return base, {k: v for k, v in given.items() if k in arguments(base)}


def facts(name: str) -> Facts:
    """Return the family, baseline and abilities of a registered model."""
    return _look_up(name).facts


def summary(name: str) -> str:
    """Return the first line of the class's docstring, followed by the arguments the name fixes."""
    registration = _look_up(name)
    settings = ", ".join(f"{k}={v}" for k, v in registration.fixed.items())
    first_line = (inspect.getdoc(registration.model) or "").partition("\n")[0]
    return first_line + (f" ({settings})" if settings else "")


def fixed(name: str) -> tuple[type[Model], dict[str, object]]:
    """Return the class behind a name, and the arguments that the name fixes."""
    registration = _look_up(name)
    return registration.model, registration.fixed


def build(
    name: str,
    *,
    likelihood: LikelihoodSpec | Mapping[str, Any] | None = None,
    covariates: int = 0,
    **model_arguments: Any,
) -> Model:
    """Build a model by name.

    Options of the prior and the posterior are flat arguments (`ridge=0.01`), or come together as a
    mapping or a dataclass (`prior={"ridge": 0.01}`, `prior=PriorOptions(ridge=0.01)`).
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
        InputError: an option is given twice, a value is not valid, or the model cannot learn the
            target of the likelihood.
    """
    spec = LikelihoodSpec.from_dict(likelihood) if isinstance(likelihood, Mapping) else likelihood
    if spec is not None:
        model_arguments = _for_target(name, model_arguments, spec)
    model_arguments = _flattened(name, model_arguments)
    known = arguments(name)
    for argument in model_arguments:
        if argument not in known:
            raise UnknownName(f"argument of {name}", argument, [*known, *option_groups(name)])
    registration = _look_up(name)
    preset = model_arguments.pop(PRESET.name, PRESET.default)
    if preset not in ("paper", "original"):
        raise UnknownName("preset", str(preset), ["paper", "original"])
    if preset == "original":
        model_arguments = {**(registration.original or {}), **model_arguments}
    for argument, value in model_arguments.items():
        check_value(argument, value, known[argument].annotation)
    values = {**registration.fixed, **model_arguments}
    for key, group in _option_groups(registration.model).items():
        options = {k: values.pop(k) for k in _flat_parameters(group) if k in values}
        values[f"{key}{OPTIONS_SUFFIX}"] = group(**options)
    model = registration.model(**values)
    model.family, model.baseline = registration.facts.family, registration.facts.baseline
    model.name, model.arguments = name, dict(model_arguments)
    if spec is not None:
        model.likelihood = build_likelihood(spec)
        model.arguments["likelihood"] = spec.as_dict()
        del model.arguments["n_classes"]  # it follows from the likelihood
    if covariates:
        model.add_covariates(covariates)
        model.arguments["covariates"] = covariates
    return model


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
    cls, target = _look_up(name).model, TASKS[task]
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


def _flattened(name: str, model_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each group of options among the arguments by its fields."""
    flat = dict(model_arguments)
    for key, group in option_groups(name).items():
        options = flat.pop(key, {})
        if isinstance(options, group):
            options = asdict(options)
        if not isinstance(options, Mapping):
            raise InputError(
                f"{key} is {options!r}; expected a mapping of {', '.join(_flat_parameters(group))}"
            )
        for option, value in options.items():
            if option not in _flat_parameters(group):
                raise UnknownName(f"option of {key}", str(option), _flat_parameters(group))
            if option in flat:
                raise InputError(f"{option} is given twice: by itself and in {key}")
            flat[option] = value
    return flat

"""A command is a function: its flags, help, checks and JSON come from signature and docstring.

Parameters before `*` are positional, the others are flags; the fields of a parameter that is a
dataclass are flags, too. Sections of the docstring describe them: `Args:`, or the title of a group;
what it does not describe has the help of its `Flag`, and belongs to the group of the one before.
`**keys` takes all other flags as text: the keys of a run or a grid, which are checked by who reads
run files. A parameter `json` tells the function that its answer will be printed as JSON.
"""

import argparse
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..core import (
    MAX_BAG_GB,
    PositiveFloat,
    bag_limit,
    convert_value,
    not_a_file,
    place_in_words,
    printable,
    takes_list,
)
from ..errors import InputError, OutputExists, ProbSAError, hint
from ..removed import instead_of

PathKind = Literal["file", "folder", "any", "output"]
"""What a path of a command line leads to: a file, a folder, one of the two, or a folder that is
written and need not exist yet."""
HELP_ALL = "--help-all"
HELP = {"-h", "--help", HELP_ALL}
MOST_NAMED = 3
"""How many of the bags that were left out for the same reason are named."""
JSON_HELP = "Print the result as one JSON document on standard output."


@dataclass(frozen=True, slots=True)
class Flag:
    """How a value is given, for annotations such as `Annotated[Path, Flag("DIR")]`."""

    metavar: str = ""
    help: str = ""
    """For flags that several commands share; a docstring takes precedence."""
    repeated: bool = False
    """Whether a list is given by several flags, not by several values after one."""
    alone: str | None = None
    """The value of the flag without one."""
    needs: str = ""
    """Another flag without which this one has no effect: `--export DIR`."""
    holds: PathKind | None = None
    """What must be at the path, or at each of several; None for other values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answers: a document for `--json`, and text for people."""

    document: Any
    text: str | Callable[[Any], None]
    """Or what writes it to a console of rich."""
    failures: Sequence[tuple[str, str]] = ()
    """(bag, reason) of what was left out: the exit status is 1 if there are any."""
    status: int = 0

    def write(self, *, as_json: bool) -> int:
        """Write the answer to standard output; return the exit status."""
        if as_json:
            write_json(self.document)
        elif callable(self.text):
            from .terminal import OUT

            self.text(OUT)
        elif self.text:
            write(self.text)
        if not as_json:
            self._write_failures()
        return 1 if self.failures else self.status

    def _write_failures(self) -> None:
        """Write which bags were left out; a reason that several share is written once."""
        bags_of: dict[str, list[str]] = {}
        for bag, reason in self.failures:
            bags_of.setdefault(reason, []).append(bag)
        for reason, bags in bags_of.items():
            names = ", ".join(bags[:MOST_NAMED])
            if len(bags) > MOST_NAMED:
                names += ", …"
            if len(bags) > 1:
                names = f"{len(bags)} bags ({names})"
            write(f"probsa: left out {names}: {reason}", error=True)


class CommandParser(argparse.ArgumentParser):
    """A parser that raises its errors, in plain words."""

    def __init__(self, **options: Any) -> None:
        style = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=style, allow_abbrev=False, **options)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Accept any value: choices are for help and completion, and checked with all others."""

    def error(self, message: str) -> Any:
        """Raise an error of argparse, which says what is wrong in its message alone."""
        if match := re.match(r"unrecognized arguments: (.+)", message):
            words = [word.partition("=")[0] for word in match[1].split()]
            removed = [word for word in words if word.startswith("-") and instead_of(word)]
            argument = (removed or words)[0]
            if not argument.startswith("-"):
                message = f"{self.prog} got an unexpected value {argument!r}: expected --FLAG VALUE"
            else:
                advice = instead_of(argument) or hint(argument, self._option_string_actions)
                message = f"{self.prog} has no argument {argument!r}.{advice}"
        elif match := re.match(r"argument ([\w.-]+): expected", message):
            message = f"{match[1]} needs a value"
        elif match := re.match(r"argument ([\w.-]+): ignored", message):
            message = f"{match[1]} takes no value"
        elif match := re.match(r"the following arguments are required: (.+)", message):
            names = [n if n.startswith("--") else n.upper() for n in match[1].split(", ")]
            message = f"{self.prog} needs {' and '.join(names)}. See {self.prog} --help"
        raise InputError(message)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a command's function, or a field of a dataclass among them."""

    name: str
    annotation: Any
    default: Any
    """`inspect.Parameter.empty` or `dataclasses.MISSING` if there is none."""
    help: str = ""
    title: str = ""
    """Of its group of flags; empty for the first."""
    positional: bool = False

    @property
    def key(self) -> str:
        """The name as users write it, without dashes in front."""
        return self.name.strip("_").replace("_", "-")

    @property
    def kind(self) -> tuple[Any, Any, Flag]:
        """The annotation without None, its type without marks, and how the value is given."""
        kind = self.annotation
        if get_origin(kind) in (Union, UnionType):
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
        flag = Flag()
        if get_origin(kind) is not Annotated:
            return kind, kind, flag
        for mark in kind.__metadata__:
            if isinstance(mark, Flag):
                flag = mark
        return kind, get_args(kind)[0], flag

    def add(self, group: Any) -> None:
        """Add the argument to a parser or to a group of it."""
        _, plain, flag = self.kind
        help_text = self.help or flag.help
        required = self.default in (inspect.Parameter.empty, MISSING)
        has_default = not required and self.default is not None and plain is not bool
        if has_default and "Default: " not in help_text:
            help_text += f" Default: {self.default}."
        options: dict[str, Any] = {"help": help_text.replace("%", "%%")}
        if plain is bool:
            options["action"] = "store_true"
        else:
            choices = get_args(plain) if get_origin(plain) is Literal else None
            metavar = None if choices else self.key.upper()
            options["default"] = None if required else self.default
            options["choices"] = choices
            options["metavar"] = flag.metavar or metavar
            if flag.repeated:
                options["action"] = "append"
            elif get_origin(plain) is list:
                options["nargs"] = "+"
            elif flag.alone is not None or (self.positional and not required):
                options["nargs"] = "?"
                options["const"] = flag.alone
        if self.positional:
            group.add_argument(self.name, **options)
        else:
            group.add_argument(f"--{self.key}", dest=self.name, required=required, **options)

    def read(self, value: Any) -> Any:
        """Return a value from the command line in the type of the parameter.

        Raises:
            InputError: names the flag, its value and what is expected.
        """
        kind, plain, flag = self.kind
        if value is None or plain is bool:
            return value
        is_list = get_origin(plain) is list and not flag.repeated and not self.positional
        if is_list and len(value) == 1:  # normal,tumour is normal tumour
            value = [part.strip() for part in value[0].strip("[]").split(",")]
        if plain in (int, float):
            with suppress(ValueError):
                number = plain(value)
                value = number if math.isfinite(number) else value
        return convert_value(value, kind, key=self.key if self.positional else f"--{self.key}")

    def check_path(self, value: Any) -> None:
        """Refuse a path of an input that does not exist, before anything is imported for it.

        Raises:
            InputError: names the path, and what is there.
        """
        expected = self.kind[2].holds
        if value is None or expected is None:
            return
        for path in value if isinstance(value, list) else [value]:
            check_input_path(path, expected, name=self.key if self.positional else f"--{self.key}")


def check_input_path(path: Path, expected: PathKind, *, name: str) -> None:
    """Refuse a path that leads to nothing, or to something else than expected.

    Raises:
        InputError: `name` is the argument; suggests the most similar name beside the path.
    """
    if expected == "output":
        if os.path.lexists(path) and not path.is_dir():
            raise OutputExists(f"{name}: {place_in_words(path)}: give a new folder")
        return
    if {"file": path.is_file(), "folder": path.is_dir(), "any": path.exists()}[expected]:
        return
    wanted = {"file": "file", "folder": "folder", "any": "file or folder"}[expected]
    if os.path.lexists(path):
        if expected != "folder":
            raise InputError(f"{name}: {not_a_file(path)}")
        raise InputError(f"{name}: {path} is not a folder: give a folder")
    beside = []
    with suppress(OSError):
        beside = [p.name for p in path.parent.iterdir()]
    raise InputError(f"{name}: there is no {wanted} {path}.{hint(path.name, beside)}")


KEY = Annotated[str, Flag("VALUE")]
LIMIT = Parameter(
    name="max_bag_gb",
    annotation=Annotated[PositiveFloat, Flag("GB")],
    default=None,
    help="Gigabytes that one bag or scan may take in memory. Files that state more are refused "
    f"before they are read. Default: {MAX_BAG_GB:g}, or for a run its own setting.",
)
LIMITED = {"info", "run", "convert", "predict", "evaluate", "map", "view"}
"""Commands with this flag: they read bags or scans, and are not training."""


class Command:
    """A command by its name: the function `run` of a module of `commands`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = import_module(f".commands.{name.replace('-', '_')}", __package__)
        self.signature = list(inspect.signature(self.module.run).parameters.values())
        self.takes_keys = any(p.kind is p.VAR_KEYWORD for p in self.signature)
        self.description, help_of = _read_docstring(self.module.run)
        self.parameters: list[Parameter] = []
        title = ""
        for p in self.signature:
            if is_dataclass(p.annotation):
                _, help_of_fields = _read_docstring(p.annotation)
                for f in fields(p.annotation):
                    text, title = help_of_fields.get(f.name, ("", title))
                    self.parameters.append(Parameter(f.name, f.type, f.default, text, title))
            elif p.kind is not p.VAR_KEYWORD and p.name != "json":
                text, title = help_of.pop(p.name, ("", title))
                positional = p.kind is p.POSITIONAL_OR_KEYWORD
                self.parameters.append(
                    Parameter(p.name, p.annotation, p.default, text, title, positional)
                )
        self.keys = [
            Parameter(name, KEY, None, text, group) for name, (text, group) in help_of.items()
        ]
        """The keys of a run or a grid that the docstring describes."""
        if name in LIMITED:
            self.parameters.append(LIMIT)

    def parser(self, keys: Mapping[str, str] | None = None) -> CommandParser:
        """Return the parser; with some `keys` given, all keys of a run or a grid are in it."""
        parser = CommandParser(prog=f"probsa {self.name}", description=self.description)
        self.add_to(parser, keys)
        return parser

    def add_to(self, parser: CommandParser, keys: Mapping[str, str] | None = None) -> None:
        """Add the arguments to a parser."""
        groups: dict[str, Any] = {"": parser}
        parameters = list(self.parameters)
        if keys is not None:
            parameters += self.keys
        for parameter in parameters:
            if parameter.title not in groups:
                groups[parameter.title] = parser.add_argument_group(parameter.title)
            parameter.add(groups[parameter.title])
        parser.add_argument("--json", action="store_true", help=JSON_HELP)
        if keys is not None and self.takes_keys:
            if self.module.KEYS.short:
                parser.add_argument(HELP_ALL, action="help", help="Show every flag, and exit.")
            parser.usage = self.module.KEYS.usage
            self.module.KEYS.add(parser, keys)

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
        """Return the command's own arguments, and the keys of a run or a grid as text.

        Raises:
            InputError: an argument is unknown, missing or wrong; says what is expected.
        """
        parser = self.parser()
        if not self.takes_keys:
            return parser.parse_args(arguments), {}
        takes_lists = not parser._get_positional_actions()
        flags = parser._option_string_actions
        own_arguments, keys = _separate(arguments, flags, takes_lists=takes_lists)
        return parser.parse_args(own_arguments), keys

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command and return its exit status."""
        if self.takes_keys and HELP & set(arguments):
            self._write_help_with_keys(arguments)
            return 0
        namespace, keys = self.parse(arguments)
        values = {p.name: p.read(getattr(namespace, p.name)) for p in self.parameters}
        for p in self.parameters:
            p.check_path(values[p.name])
            self._check_needed(p, values)
        for p in self.signature:
            if is_dataclass(p.annotation) and isinstance(p.annotation, type):
                of_record = {f.name: values.pop(f.name) for f in fields(p.annotation)}
                values[p.name] = p.annotation(**of_record)
            elif p.name == "json":
                values["json"] = namespace.json
        with bag_limit(values.pop("max_bag_gb", None)):
            answer = self.module.run(**values, **keys)
        return 0 if answer is None else answer.write(as_json=namespace.json)

    def _write_help_with_keys(self, arguments: Sequence[str]) -> None:
        """Write the help of a command that takes keys, for the model that the arguments name."""
        keys = {}
        with suppress(InputError):  # show help even if the arguments are not valid yet
            _, keys = self.parse([a for a in arguments if a not in HELP])
        parser = self.parser(keys)
        if HELP_ALL not in arguments and self.module.KEYS.short:
            self.module.KEYS.shorten(parser)
        write(parser.format_help())

    def _check_needed(self, parameter: Parameter, values: Mapping[str, Any]) -> None:
        """Refuse a flag that has no effect without another one, which is not given."""
        needed = parameter.kind[2].needs
        if not needed or values[parameter.name] == parameter.default:
            return
        other = needed.split()[0]
        if not values[other.strip("-").replace("-", "_")]:
            raise InputError(f"--{parameter.key} has no effect without {other}: add {needed}")


def _read_docstring(documented: Any) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a docstring's description, and by name a help text and the title of its group."""
    text = inspect.cleandoc(documented.__doc__ or "")
    description, *sections = re.split(r"\n(?=\S.*:\n {4}[\w.]+: )", text)
    help_of: dict[str, tuple[str, str]] = {}
    for section in sections:
        heading, _, body = section.partition(":\n")
        title = "" if heading == "Args" else heading.lower()
        for name, words in re.findall(r"^ {4}([\w.]+): (.+(?:\n {5,}.+)*)", body, re.MULTILINE):
            help_of[name] = " ".join(words.split()), title
    return description.strip(), help_of


def _separate(
    arguments: Sequence[str], flags: Mapping[str, argparse.Action], *, takes_lists: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command's own arguments, and the keys of a run with their values.

    Both `--batch-size 4` and `--batch_size=4` are understood, with or without the section; a
    true-or-false key alone means true, as may one of a model, which only the model knows. If it
    `takes_lists`, a list may be written as several values: `--classes normal tumour`.
    """
    from ..training import full_name, section_keys

    own_arguments: list[str] = []
    keys: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            own_arguments.append(token)
            continue
        name, equals, value = token.partition("=")
        key = full_name(name[2:].replace("-", "_"))
        flag = f"--{name[2:].replace('_', '-')}"
        is_switch = flag in flags and flags[flag].nargs == 0
        if not equals and not is_switch and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
            equals = "="
        section_key = section_keys().get(key)
        if takes_lists and section_key is not None and takes_list(section_key.annotation):
            more = [*takewhile(lambda word: not word.startswith("--"), rest)]
            del rest[: len(more)]
            if more:
                value = f"[{', '.join(v.strip(',') for v in (value, *more))}]"
        if flag in flags:
            own_arguments.append(f"{flag}{equals}{value}")
        elif equals:
            keys[key] = value
        elif key != "model.name" if section_key is None else section_key.annotation is bool:
            keys[key] = "true"
        else:
            raise InputError(f"{flag} needs a value")
    return own_arguments, keys


def message_of(error: Exception) -> str:
    """Return an expected error in words."""
    if isinstance(error, OSError) and not isinstance(error, ProbSAError) and error.filename:
        return f"cannot read or write {error.filename}: {error.strerror}"
    return str(error)


def write(text: str, *, error: bool = False) -> None:
    """Write text to standard output, or to standard error, without anything a terminal obeys."""
    stream = sys.stderr if error else sys.stdout
    stream.write(printable(text.rstrip("\n")) + "\n")


def write_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    write(json.dumps(value, indent=2, default=str, allow_nan=False))

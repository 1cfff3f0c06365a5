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
    described,
    not_a_file,
    place_in_words,
    printable,
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
        of_reason: dict[str, list[str]] = {}
        for bag, reason in () if as_json else self.failures:
            of_reason.setdefault(reason, []).append(bag)
        for reason, bags in of_reason.items():  # what is missing for all is said once
            named = ", ".join(bags[:MOST_NAMED]) + (", …" if len(bags) > MOST_NAMED else "")
            several = f"{len(bags)} bags ({named})" if len(bags) > 1 else named
            write(f"probsa: left out {several}: {reason}", error=True)
        return 1 if self.failures else self.status


class CommandParser(argparse.ArgumentParser):
    """A parser that raises its errors, in plain words."""

    def __init__(self, **given: Any) -> None:
        style = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=style, allow_abbrev=False, **given)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Accept any value: choices are for help and completion, and checked with all others."""

    def error(self, message: str) -> Any:
        if match := re.match(r"unrecognized arguments: (.+)", message):
            unknown = [word.partition("=")[0] for word in match[1].split()]
            removed = [word for word in unknown if word.startswith("-") and instead_of(word)]
            argument = next(iter(removed or unknown))
            if not argument.startswith("-"):
                message = f"{self.prog} got an unexpected value {argument!r}: expected --FLAG VALUE"
            else:
                guess = instead_of(argument) or hint(argument, self._option_string_actions)
                message = f"{self.prog} has no argument {argument!r}.{guess}"
        elif match := re.match(r"argument ([\w.-]+): (expected|ignored)", message):
            message = f"{match[1]} {'needs a' if match[2] == 'expected' else 'takes no'} value"
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
        marks = getattr(kind, "__metadata__", ())
        flag = next((mark for mark in reversed(marks) if isinstance(mark, Flag)), Flag())
        return kind, get_args(kind)[0] if marks else kind, flag

    def add(self, group: Any) -> None:
        """Add the argument to a parser or to a group of it."""
        _, plain, flag = self.kind
        key, words = self.key, self.help or flag.help
        required = self.default in (inspect.Parameter.empty, MISSING)
        if not required and self.default is not None and plain is not bool:
            words += "" if "Default: " in words else f" Default: {self.default}."
        how: dict[str, Any] = {"help": words.replace("%", "%%")}
        if plain is bool:
            how["action"] = "store_true"
        else:
            how["default"] = None if required else self.default
            choices = get_args(plain) if get_origin(plain) is Literal else None
            how["choices"] = choices
            how["metavar"] = flag.metavar or (None if choices else key.upper())
            if flag.repeated:
                how["action"] = "append"
            elif get_origin(plain) is list:
                how["nargs"] = "+"
            elif flag.alone is not None or (self.positional and not required):
                how |= {"nargs": "?", "const": flag.alone}
        if self.positional:
            group.add_argument(self.name, **how)
        else:
            group.add_argument(f"--{key}", dest=self.name, required=required, **how)

    def read(self, value: Any) -> Any:
        """Return a value from the command line in the type of the parameter.

        Raises:
            InputError: names the flag, its value and what is expected.
        """
        kind, plain, flag = self.kind
        if value is None or plain is bool:
            return value
        several = get_origin(plain) is list and not (flag.repeated or self.positional)
        if several and len(value) == 1:  # normal,tumour is normal tumour
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
        self.description, described = _read_docstring(self.module.run)
        self.parameters, title = [], ""
        for p in self.signature:
            words, found = described, [(p.name, p.annotation, p.default)]
            if is_dataclass(p.annotation):
                words = _read_docstring(p.annotation)[1]
                found = [(f.name, f.type, f.default) for f in fields(p.annotation)]
            elif p.kind is p.VAR_KEYWORD or p.name == "json":
                continue
            for key, annotation, default in found:
                text, title = words.pop(key, ("", title))
                positional = p.kind is p.POSITIONAL_OR_KEYWORD
                self.parameters.append(Parameter(key, annotation, default, text, title, positional))
        self.keys = [Parameter(n, KEY, None, *words) for n, words in described.items()]
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
        for parameter in self.parameters + ([] if keys is None else self.keys):
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
        own, keys = list(arguments), {}
        if self.takes_keys:
            several = not parser._get_positional_actions()
            own, keys = _separate(arguments, parser._option_string_actions, several=several)
        return parser.parse_args(own), keys

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command and return its exit status."""
        if self.takes_keys and (asked := HELP & set(arguments)):
            keys = {}
            with suppress(InputError):  # show help even if the arguments are not valid yet
                keys = self.parse([a for a in arguments if a not in HELP])[1]
            parser = self.parser(keys)
            if HELP_ALL not in asked and self.module.KEYS.short:
                self.module.KEYS.shorten(parser)
            write(parser.format_help())
            return 0
        given, keys = self.parse(arguments)
        values = {p.name: p.read(getattr(given, p.name)) for p in self.parameters}
        for p in self.parameters:
            p.check_path(values[p.name])
            needed = p.kind[2].needs
            if needed and values[p.name] != p.default:
                other = needed.split()[0]
                if not values[other.strip("-").replace("-", "_")]:
                    raise InputError(f"--{p.key} has no effect without {other}: add {needed}")
        for p in self.signature:
            if is_dataclass(p.annotation) and isinstance(p.annotation, type):
                own = {f.name: values.pop(f.name) for f in fields(p.annotation)}
                values[p.name] = p.annotation(**own)
            elif p.name == "json":
                values["json"] = given.json
        with bag_limit(values.pop("max_bag_gb", None)):
            answer = self.module.run(**values, **keys)
        return 0 if answer is None else answer.write(as_json=given.json)


def _read_docstring(documented: Any) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a docstring's description, and by name a help text and the title of its group."""
    text = inspect.cleandoc(documented.__doc__ or "")
    description, *sections = re.split(r"\n(?=\S.*:\n {4}[\w.]+: )", text)
    described: dict[str, tuple[str, str]] = {}
    for section in sections:
        title, _, body = section.partition(":\n")
        title = "" if title == "Args" else title.lower()
        for name, words in re.findall(r"^ {4}([\w.]+): (.+(?:\n {5,}.+)*)", body, re.MULTILINE):
            described[name] = " ".join(words.split()), title
    return description.strip(), described


def _separate(
    arguments: Sequence[str], flags: Mapping[str, argparse.Action], *, several: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the command's own arguments, and the keys of a run with their values.

    Both `--batch-size 4` and `--batch_size=4` are understood, with or without the section; a
    true-or-false key alone means true, as may one of a model, which only the model knows. If
    `several`, a list may be written as several values: `--classes normal tumour`.
    """
    from ..training import full_name, section_keys

    own: list[str] = []
    keys: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            own.append(token)
            continue
        name, equals, value = token.partition("=")
        key = full_name(name[2:].replace("-", "_"))
        flag = f"--{name[2:].replace('_', '-')}"
        is_switch = flag in flags and flags[flag].nargs == 0
        if not equals and not is_switch and rest and not rest[0].startswith("--"):
            value, equals = rest.pop(0), "="
        known = section_keys().get(key)
        if several and known is not None and "a list (" in described(known.annotation):
            more = [*takewhile(lambda word: not word.startswith("--"), rest)]
            del rest[: len(more)]
            value = f"[{', '.join(v.strip(',') for v in (value, *more))}]" if more else value
        may_stand_alone = key != "model.name" if known is None else known.annotation is bool
        if flag in flags:
            own.append(f"{flag}{equals}{value}")
        elif equals or may_stand_alone:
            keys[key] = value if equals else "true"
        else:
            raise InputError(f"{flag} needs a value")
    return own, keys


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

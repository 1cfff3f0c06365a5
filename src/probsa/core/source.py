"""Read names and constants from the source of this package, without importing it.

A module of a model imports PyTorch, which takes seconds. What a refusal needs, the names of models
and of their arguments, is written in the source as constants. Whatever is not is `NotConstant`:
the caller then imports the module.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitOr: operator.or_,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
BUILDERS: Mapping[str, Callable[..., Any]] = {
    "dict": dict,
    "frozenset": frozenset,
    "list": list,
    "set": set,
    "tuple": tuple,
}


class NotConstant(Exception):
    """Source text is not a constant expression, or a name in it is not found."""


@dataclass(frozen=True, eq=False)
class SourceClass:
    """A class as it is written."""

    module: "SourceModule"
    node: ast.ClassDef

    @property
    def is_dataclass(self) -> bool:
        """Whether `@dataclass` stands above the class."""
        return any("dataclass" in ast.unparse(mark) for mark in self.node.decorator_list)

    @property
    def docstring(self) -> str:
        """The docstring, without the indentation of the source; empty if there is none."""
        return ast.get_docstring(self.node) or ""

    def ancestors(self) -> "list[SourceClass]":
        """Return the class and those of this package that it inherits from, nearest first."""
        classes: list[SourceClass] = [self]
        for base in self._bases():
            for ancestor in base.ancestors():
                # a class that two bases inherit from comes after both
                classes = [cls for cls in classes if cls.node is not ancestor.node]
                classes.append(ancestor)
        return classes

    def _bases(self) -> "Iterator[SourceClass]":
        for base in self.node.bases:
            name = ast.unparse(base)
            binding = self.module.names.get(name)
            elsewhere = isinstance(binding, ast.ImportFrom) and not binding.level
            if binding is None or elsewhere:  # of another package: `nn.Module`, `ABC`
                continue
            base_class = self.module.find(name)
            if isinstance(base_class, SourceClass):
                yield base_class

    def constructor(self) -> ast.arguments | None:
        """Return the arguments of the class's own `__init__`; None if it has none."""
        for node in self.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return node.args
        return None

    def fields(self) -> list[str]:
        """Return the names of a dataclass's fields, those of its ancestors first."""
        names: dict[str, None] = {}
        for cls in reversed(self.ancestors()):
            for node in cls.node.body:
                if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                    continue
                if "ClassVar" not in ast.unparse(node.annotation):
                    names[node.target.id] = None
        return list(names)

    def value(self, name: str) -> Any:
        """Return the value of a class attribute, which may be inherited.

        Raises:
            NotConstant: no class assigns it, or the value is no constant.
        """
        for cls in self.ancestors():
            for node in reversed(cls.node.body):
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                if value is not None and name in _targets(node):
                    return cls.module.evaluate(value)
        raise NotConstant(name)


@dataclass(frozen=True, eq=False)
class SourceModule:
    """A file of this package, parsed: a module, or the stub that lists the names of a room."""

    path: Path
    tree: ast.Module
    names: dict[str, ast.stmt] = field(default_factory=dict)
    """The last statement at the top of the file that binds each name."""

    def marked(self, *marks: str) -> Iterator[tuple[ast.ClassDef | ast.FunctionDef, ast.Call]]:
        """Yield the classes and functions below decorators of these names, with their calls."""
        for node in self.tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) in marks:
                    yield node, mark

    def find(self, name: str) -> Any:
        """Return what a name stands for: a `SourceClass`, or the value of a constant.

        Raises:
            NotConstant: it is neither, or comes from another package.
        """
        node = self.names.get(name)
        if isinstance(node, ast.ClassDef):
            return SourceClass(self, node)
        if isinstance(node, ast.ImportFrom):
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return _imported(self.path, node).find(original)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return self.evaluate(node.value)
        raise NotConstant(f"{name} in {self.path}")

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of a constant expression.

        Calls of a class of this package are a mapping of its keyword arguments.

        Raises:
            NotConstant: it is none.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.find(node.id)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return self._items(node.elts)
        if isinstance(node, ast.Dict):
            values: dict[Any, Any] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                values |= (
                    self.evaluate(value)
                    if key is None
                    else {self.evaluate(key): self.evaluate(value)}
                )
            return values
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](self.evaluate(node.left), self.evaluate(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.evaluate(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node)
        if isinstance(node, ast.Attribute):
            return self._attribute(self.evaluate(node.value), node)
        if isinstance(node, ast.JoinedStr):
            return "".join(map(str, self._items(node.values)))
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            return self.evaluate(node.value)
        raise NotConstant(ast.unparse(node))

    def keywords(self, call: ast.Call) -> dict[str, Any]:
        """Return the keyword arguments of a call, also those of `**constants`."""
        values: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self.evaluate(keyword.value)
            values |= value if keyword.arg is None else {keyword.arg: value}
        return values

    def positional(self, call: ast.Call) -> tuple[Any, ...]:
        """Return the positional arguments of a call, also those of `*constants`."""
        return self._items(call.args)

    def _items(self, nodes: Sequence[ast.expr]) -> tuple[Any, ...]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += self.evaluate(node.value)
            else:
                items.append(self.evaluate(node))
        return tuple(items)

    def _attribute(self, owner: Any, node: ast.Attribute) -> Any:
        if isinstance(owner, SourceClass):
            return owner.value(node.attr)
        if isinstance(owner, dict) and node.attr in owner:  # a record; see `_call`
            return owner[node.attr]
        raise NotConstant(ast.unparse(node))

    def _call(self, name: str, call: ast.Call) -> Any:
        if name in BUILDERS:
            return BUILDERS[name](*self._items(call.args), **self.keywords(call))
        if name == "replace":  # of dataclasses
            (record,) = self._items(call.args)
            return record | self.keywords(call)
        if isinstance(self.find(name), SourceClass) and not call.args:
            return self.keywords(call)
        raise NotConstant(ast.unparse(call))


@cache
def source_module(path: Path) -> SourceModule:
    """Parse a file of this package."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    module = SourceModule(path, tree)
    for node in tree.body:
        for name in _targets(node):
            module.names[name] = node
    return module


def source_modules(folder: Path) -> list[SourceModule]:
    """Parse every public module of a folder, sorted by name."""
    return [source_module(p) for p in sorted(folder.glob("*.py")) if not p.name.startswith("_")]


def _targets(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (a.asname or a.name for a in node.names)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (t.id for t in node.targets if isinstance(t, ast.Name))


def _imported(path: Path, node: ast.ImportFrom) -> SourceModule:
    """Return the module that a relative import names: a file, or the stub of a room."""
    if not node.level:
        raise NotConstant(f"{node.module} is another package")
    place = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    for file in (place.with_suffix(".py"), place / "__init__.pyi"):
        if file.is_file() and file.is_relative_to(PACKAGE):
            return source_module(file)
    raise NotConstant(f"{node.module} is not found from {path}")

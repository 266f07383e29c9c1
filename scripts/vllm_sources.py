"""Look up classes, functions and signatures in Python sources, without importing them.

`Sources` reads a folder of packages, follows imports and base classes, and binds calls to signatures. A part of
`check_vllm_calls.py`; it imports the standard library only.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
_RENAMED = "MODULE_ATTRS"
"""The dictionary in vLLM's `__init__.py` with the modules of the names that it imports lazily."""


@dataclass(frozen=True, eq=False)
class Definition:
    """A top-level definition of a module."""

    module: str
    node: ast.stmt

    @property
    def name(self) -> str:
        """The full name, for messages."""
        return f"{self.module}.{getattr(self.node, 'name', '')}"


class Sources:
    """Python packages in a folder."""

    def __init__(self, root: Path) -> None:
        """Read modules below `root`, such as `root/vllm/outputs.py`, when they are looked up."""
        self.root = root

    @cache  # noqa: B019 - sources live as long as the script
    def module(self, name: str) -> ast.Module | None:
        """Parse a module; None if there is none of that name."""
        path = self.path(name)
        return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None

    def path(self, name: str) -> Path:
        """Return the file of a module, which may not exist."""
        package = self.root / name.replace(".", "/") / "__init__.py"
        return package if package.is_file() else self.root / f"{name.replace('.', '/')}.py"

    def name(self, path: Path) -> str:
        """Return the name of the module in a file."""
        return ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")

    def texts(self, folder: str) -> dict[Path, str]:
        """Return the texts of all modules in a folder, such as `vllm/entrypoints`."""
        return {path: path.read_text(encoding="utf-8") for path in sorted((self.root / folder).rglob("*.py"))}

    @cache  # noqa: B019
    def find(self, module: str, name: str) -> Definition | None:
        """Return the definition of a name of a module, in another module if it is imported from there."""
        tree = self.module(module)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.ClassDef | Function) and node.name == name and node in tree.body:
                return Definition(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(self._absolute(module, node), alias.name) or Definition(module, node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node in tree.body:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return Definition(module, node)
        return self._lazy(module, name) if tree else None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.path(module).name == "__init__.py"
        parts = module.split(".")[: None if package and node.level == 1 else -(node.level - package)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _lazy(self, module: str, name: str) -> Definition | None:
        found = self.find(module, _RENAMED) if name != _RENAMED else None
        if found is None or not isinstance(found.node, ast.Assign):
            return None
        place = ast.literal_eval(found.node.value).get(name)
        if place is None:
            return None
        there, _, attribute = place.partition(":")
        return self.find(module + there, attribute)

    def lineage(self, definition: Definition) -> tuple[list[Definition], bool]:
        """Return a class and its base classes in these sources, in order, and whether all base classes are there."""
        assert isinstance(definition.node, ast.ClassDef)
        classes, complete = [definition], True
        for base in definition.node.bases:
            bare = base.value if isinstance(base, ast.Subscript) else base
            name = bare.id if isinstance(bare, ast.Name) else ""
            found = self.find(definition.module, name)
            if found is not None and isinstance(found.node, ast.ClassDef):
                more, whole = self.lineage(found)
                classes, complete = [*classes, *more], complete and whole
            elif name not in ("ABC", "Generic", "Protocol", "object"):
                complete = False
        return classes, complete

    def member(self, definition: Definition, name: str) -> Function | ast.AST | None:
        """Return what defines an attribute of a class: a method, a field, or an assignment to `self.NAME`."""
        for owner in self.lineage(definition)[0]:
            for node in ast.walk(owner.node):
                if isinstance(node, Function) and node.name == name and node in owner.node.body:
                    return node
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                if isinstance(node, ast.Assign | ast.AnnAssign) and any(_names(target, name) for target in targets):
                    return node
        return None

    def signature(self, definition: Definition) -> inspect.Signature | None:
        """Return the signature of a function, or of a class's construction; None if it isn't known."""
        if isinstance(definition.node, Function):
            return signature_of(definition.node, bound=False)
        if not isinstance(definition.node, ast.ClassDef):
            return None
        classes, complete = self.lineage(definition)
        for owner in classes:
            if init := next((n for n in owner.node.body if isinstance(n, Function) and n.name == "__init__"), None):
                return signature_of(init, bound=True)
        fields = self.fields(definition)
        return _of_fields(fields) if fields and (complete or _is_record(definition.node)) else None

    def fields(self, definition: Definition) -> dict[str, bool]:
        """Return the annotated fields of a class and its base classes, and whether each must be given."""
        nodes = [n for owner in reversed(self.lineage(definition)[0]) for n in owner.node.body]
        annotated = [n for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
        fields = {n.target.id: n for n in annotated if "ClassVar" not in ast.unparse(n.annotation)}
        return {name: _required(node) for name, node in fields.items()}


def signature_of(node: Function, *, bound: bool) -> inspect.Signature:
    """Return the signature of a definition; without its first parameter if it is called `bound` to an object."""
    arguments, kind = node.args, inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = len(positional) - len(arguments.defaults)
    parameters = [
        kind(arg.arg, kind.POSITIONAL_OR_KEYWORD, default=None if i >= optional else kind.empty)
        for i, arg in enumerate(positional)
    ]
    if bound and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list):
        parameters = parameters[1:]
    parameters += [kind(arguments.vararg.arg, kind.VAR_POSITIONAL)] if arguments.vararg else []
    parameters += [
        kind(arg.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None)
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    parameters += [kind(arguments.kwarg.arg, kind.VAR_KEYWORD)] if arguments.kwarg else []
    return inspect.Signature(parameters)


def misfit(signature: inspect.Signature, positional: int, names: list[str], *, partial: bool) -> str | None:
    """Return why a call doesn't fit a signature; None if it does. `partial`: there may be more arguments."""
    bind = signature.bind_partial if partial else signature.bind
    try:
        bind(*[None] * positional, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return None


def _of_fields(fields: dict[str, bool]) -> inspect.Signature:
    """Return the signature of a record, whose fields with defaults come last."""
    kind = inspect.Parameter
    ordered = sorted(fields, key=lambda name: not fields[name])
    return inspect.Signature(
        [
            kind(name, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if fields[name] else None)
            for name in ordered
            if name.isidentifier()
        ]
    )


def _required(node: ast.AnnAssign) -> bool:
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("field", "Field", "msgspec.field"):
        return not any(keyword.arg in ("default", "default_factory") for keyword in node.value.keywords) and not (
            node.value.args
        )
    return node.value is None


def _is_record(node: ast.ClassDef) -> bool:
    """Whether a class's fields are the arguments of its construction: a dataclass, pydantic model or msgspec struct."""
    words = [ast.unparse(part) for part in (*node.decorator_list, *node.bases)]
    return any(word.split("(")[0].split(".")[-1] in ("dataclass", "config", "BaseModel", "Struct") for word in words)


def _names(target: ast.AST | None, name: str) -> bool:
    """Whether an assignment's target is the field `name` of a class, or `self.NAME`."""
    if isinstance(target, ast.Tuple):
        return any(_names(part, name) for part in target.elts)
    if isinstance(target, ast.Attribute):
        return target.attr == name and isinstance(target.value, ast.Name) and target.value.id == "self"
    return isinstance(target, ast.Name) and target.id == name

"""The library's own source as a picture: which file imports what, at run time or only for types."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pgelect

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(pgelect.__file__).parent


@dataclass(frozen=True, slots=True)
class Import:
    """One import in a file.

    Attributes:
        by: the module that imports, such as ``pgelect._engine.runner``.
        of: what it imports, as far as that is a module.
        for_types: only under ``if TYPE_CHECKING``.
        inside: in a function, so not when the module is imported.
    """

    by: str
    of: str
    for_types: bool
    inside: bool

    def __str__(self) -> str:
        return f"{self.by} imports {self.of}"


def files() -> list[Path]:
    """Every file of Python in the package."""
    return sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    """The module that a file is."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports() -> list[Import]:
    """Every import in the package."""
    modules = {module_of(path) for path in files()}
    return [found for path in files() for found in _imports_of(tree_of(path), module_of(path), modules)]


def _imports_of(
    node: ast.AST, by: str, modules: set[str], *, for_types: bool = False, inside: bool = False
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(by, alias.name, for_types, inside)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{by} has a relative import"
            assert child.module is not None
            for alias in child.names:
                name = f"{child.module}.{alias.name}"
                yield Import(by, name if name in modules else child.module, for_types, inside)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for part in child.body:
                yield from _imports_of(ast.Module([part], []), by, modules, for_types=True, inside=inside)
            for part in child.orelse:
                yield from _imports_of(ast.Module([part], []), by, modules, for_types=for_types, inside=inside)
        else:
            deeper = inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_of(child, by, modules, for_types=for_types, inside=deeper)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}

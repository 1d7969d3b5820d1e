"""Docstrings of the package have one markup: double backticks for code, and a ``:raises X:`` field for each error."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sparkdl_comm"
#: Double backticks, a role, or a link; what is left in single ones is in the second group.
CODE = re.compile(r"(``[^`]+``|:[a-z]+:`[^`]+`|`[^`]+`_)|(`[^`]+`)")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_markup(file: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node) or ""
            found += [single for _, single in CODE.findall(text) if single]
            found += re.findall(r"Raises \w+Error\b", text)
    assert not found, "write ``code``, and :raises SomeError: as a field"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_names_that_exist(file: Path) -> None:
    """``:param name:`` names an argument or a field, and ``file.py`` a file of the repository."""
    unknown = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        text = ast.get_docstring(node) or ""
        unknown += [name for name in re.findall(r"``((?:\w+/)*\w+\.py)``", text) if not _exists(file.parent, name)]
        if not isinstance(node, ast.Module):
            unknown += [name for name in re.findall(r":param (\w+):", text) if name not in _arguments(node)]
    assert not unknown


def _exists(folder: Path, name: str) -> bool:
    root = PACKAGE.parent
    return any((base / name).exists() for base in (folder, PACKAGE, root, root / "python"))


def _arguments(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        return {argument.arg for argument in every if argument is not None}
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return fields.union(*map(_arguments, made))

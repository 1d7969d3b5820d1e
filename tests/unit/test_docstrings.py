"""Docstrings of the package have one markup: double backticks for code, and a ``:raises X:`` field for each error."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sparkdl_comm"
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

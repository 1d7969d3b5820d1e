"""Docstrings of the package have one markup: double backticks for code, and a ``:raises X:`` field for each error.

Every name that the reference shows has one, with the shapes of tensors, the units of times, and its errors.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "sparkdl_comm"
REFERENCE = PACKAGE.parent / "docs" / "reference"
#: A directive of mkdocstrings with its options.
SHOWN = re.compile(r"^::: (\S+)\n((?: +.*\n)*)", re.MULTILINE)
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


def _public() -> Iterator[tuple[str, ast.FunctionDef | None, str]]:
    """Name, code and docstring of what the reference shows: functions, classes (with their constructor) and methods."""
    for page in sorted(REFERENCE.glob("*.md")):
        for path, options in SHOWN.findall(page.read_text(encoding="utf-8") + "\n"):
            module, only = _module_of(path)
            members = re.findall(r"^ +- (\w+)$", options, re.MULTILINE)
            for node in module.body:
                is_shown = (
                    getattr(node, "name", None) == only if only else not members and "members: false" not in options
                )
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and is_shown and not node.name.startswith("_"):
                    yield from _of(node, module, members)


def _module_of(path: str) -> tuple[ast.Module, str]:
    """The module of a dotted name, and the name in it: "" for the module itself."""
    file = PACKAGE.parent.joinpath(*path.split("."))
    for place in (file.with_suffix(".py"), file / "__init__.py"):
        if place.exists():
            return ast.parse(place.read_text(encoding="utf-8")), ""
    return ast.parse(file.parent.with_suffix(".py").read_text(encoding="utf-8")), file.name


def _of(
    node: ast.ClassDef | ast.FunctionDef, module: ast.Module, members: list[str]
) -> Iterator[tuple[str, ast.FunctionDef | None, str]]:
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    yield node.name, methods.get("__init__") if isinstance(node, ast.ClassDef) else node, ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        for name, method in methods.items():
            if not name.startswith("_") and (name in members or not members):
                overridden = [each for each in ast.walk(module) if getattr(each, "name", "") == name]
                texts = map(ast.get_docstring, [method, *overridden])
                yield f"{node.name}.{name}", method, next(filter(None, texts), "")


PUBLIC = {name: (code, text) for name, code, text in _public()}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name(name: str) -> None:
    code, text = PUBLIC[name]
    assert text, "no docstring: the site leaves it out"
    if code is None:
        return
    signature = ast.unparse(code.args) + ast.unparse(code.returns or ast.Constant(None))
    assert not re.search(r"Tensor\b|NDArray", signature) or re.search(r"``\[|shape", text), "a tensor without shape"
    assert "timeout" not in signature or "second" in text, "a time without unit"
    raised = {
        ast.unparse(each.exc).split("(")[0] for each in ast.walk(code) if isinstance(each, ast.Raise) and each.exc
    }
    assert not [error for error in raised if error[0].isupper() and f":raises {error}:" not in text], "write :raises X:"


def test_public_names_are_many() -> None:
    assert len(PUBLIC) > 100


def test_ddp_hooks() -> None:
    """Calls make the hooks. mkdocstrings shows the comment above an assignment."""
    text = (PACKAGE / "ddp_hooks.py").read_text(encoding="utf-8")
    for name in re.findall(r"^ +- (\w+)$", (REFERENCE / "ddp-hooks.md").read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^#: .*\.\n{name} = ", text, re.MULTILINE)

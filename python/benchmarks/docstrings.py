"""Docstrings of the installed libraries: the documents of the benchmarks with texts."""

from __future__ import annotations

import ast
import importlib.util
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

#: Libraries, and the part of each to read.
LIBRARIES = {"numpy": "", "pandas": "core", "sklearn": "", "torch": "nn"}
#: Names of the libraries, which are left out of the texts.
NAMES = {"numpy", "np", "pandas", "pd", "sklearn", "scikit", "learn", "torch", "pytorch"}
#: Docstrings of each library, and words of each docstring, at most.
PER_LIBRARY, WORDS = 800, 60


def documents(per_library: int = PER_LIBRARY) -> Iterator[tuple[int, list[str], bool]]:
    """Yield for each docstring the number of its library, its words, and True if it belongs to the test set."""
    for number, (library, part) in enumerate(LIBRARIES.items()):
        for words, testing in islice(docstrings(library, part), per_library):
            yield number, words, testing


def docstrings(library: str, part: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each docstring of 20 words or more, and True if it belongs to the test set.

    Docstrings of one file are all in the training set, or all in the test set. The files are parsed, not imported.

    :param part: folder of the library to read. Empty: all of it.
    """
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    seen = set()
    for file in sorted((root / part).rglob("*.py")):
        if "tests" in file.parts:
            continue
        testing = zlib.crc32(str(file.relative_to(root)).encode()) % 5 == 0
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                words = [word for word in re.findall(r"[a-z]{2,}", text.lower()) if word not in NAMES]
                if len(words) >= 20 and text not in seen:
                    seen.add(text)
                    yield words[:WORDS], testing

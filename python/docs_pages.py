"""Hooks of MkDocs that show pages of the repository which are not in docs/, without copies in git.

Links lead from file to file in the repository. The site's links are made from them.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[)#])")


@cache
def shown() -> dict[str, Path]:
    """Return the files outside of docs/ that the site shows, by their path in the site."""
    benchmarks = ROOT / "python" / "benchmarks"
    found = {
        "index.md": ROOT / "README.md",
        "changelog.md": ROOT / "CHANGELOG.md",
        "contributing/index.md": ROOT / "CONTRIBUTING.md",
        "performance/notes.md": benchmarks / "notes.md",
    }
    for name in ("README.md", "appendix.md", "chart.svg"):
        for path in sorted(benchmarks.glob(f"*/{name}")):
            found[f"performance/{path.parent.name}/{name}"] = path
    for folder in (ROOT / "notebooks", ROOT / "python" / "examples"):
        found |= {f"{folder.name}/{path.name}": path for path in sorted(folder.glob("[a-z]*.*"))}
    return found


@cache
def _places() -> dict[Path, str]:
    own = {path: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.*")}
    return own | {path: place for place, path in shown().items()}


def text_of(place: str, text: str) -> str:
    """Return the text of the page at ``place`` in the site, with links that work there."""
    source = shown().get(place, DOCS / place)

    def linked(link: re.Match[str]) -> str:
        there = _places().get((source.parent / link[0]).resolve())
        return link[0] if there is None else posixpath.relpath(there, posixpath.dirname(place) or ".")

    return _LINK.sub(linked, text)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages. Called by MkDocs."""
    from mkdocs.structure.files import File

    for place, path in shown().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page. Called by MkDocs."""
    return text_of(page.file.src_uri, markdown)

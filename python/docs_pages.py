"""Hook of MkDocs that shows pages of the repository which are not in docs/, without copies in git.

The pages keep their names, so links between them work in the repository and in the site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def shown() -> dict[str, Path]:
    """Return the files outside of docs/ that the site shows, by their path in the site."""
    benchmarks = ROOT / "python" / "benchmarks"
    found = {
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


def text_of(place: str, path: Path) -> str:
    """Return the text of a page at ``place`` in the site, with links that work there."""
    text = path.read_text(encoding="utf-8")
    if path.parent == ROOT:  # its links begin at the root of the repository
        text = text.replace("](docs/", "](" + "../" * place.count("/"))
    return text.replace("](../../../notebooks/", "](../../notebooks/")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages. Called by MkDocs."""
    from mkdocs.structure.files import File

    for place, path in shown().items():
        if path.suffix == ".md":
            files.append(File.generated(config, place, content=text_of(place, path)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files

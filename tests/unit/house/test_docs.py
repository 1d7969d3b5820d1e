"""Pages of the documentation: what is in the navigation, links, anchors, and pages made from the code.

MkDocs is not run: `make docs` builds the site with warnings as errors.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import docs_pages
import make_reference
import pytest
import yaml

from sparkdl_comm import ddp_hooks, errors

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@cache
def pages() -> dict[str, str]:
    """The text of every page of the site, by its path there."""
    own = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    places = own | {place for place in docs_pages.shown() if place.endswith(".md")}
    return {place: docs_pages.text_of(place, source_of(place).read_text(encoding="utf-8")) for place in places}


def source_of(place: str) -> Path:
    """The file of a page of the site."""
    return docs_pages.shown().get(place, DOCS / place)


def prose(text: str) -> str:
    """A page's text without its code."""
    return _CODE.sub("", _FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words))
        names.add(f"{slug}_{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def links(text: str) -> Iterator[tuple[str, str]]:
    """The target and the anchor of each link that leads to another place of the documentation."""
    for link in _LINK.findall(prose(text)):
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            yield target, anchor


def test_the_navigation_has_every_page_once() -> None:
    def places(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for each in entry if isinstance(entry, list) else entry.values():
                yield from places(each)

    found = list(places(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(found) == sorted(pages())


@pytest.mark.parametrize("place", sorted(pages()))
def test_links_of_the_site(place: str) -> None:
    files = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.*")} | set(docs_pages.shown())
    broken = []
    for target, anchor in links(pages()[place]):
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target)) if target else place
        is_known = there in files and (not anchor or not there.endswith(".md") or anchor in anchors(pages()[there]))
        broken += [f"{target}#{anchor}"] * (not is_known)
    assert not broken


@pytest.mark.parametrize("place", sorted(pages()))
def test_links_of_the_repository(place: str) -> None:
    source = source_of(place)
    broken = []
    for target, anchor in links(source.read_text(encoding="utf-8")):
        path = source.parent / target if target else source
        is_known = path.exists() and (not anchor or anchor in anchors(path.read_text(encoding="utf-8")))
        broken += [f"{target}#{anchor}"] * (not is_known)
    assert not broken


def test_every_example_is_short_and_in_a_guide() -> None:
    guides = "".join(text for place, text in pages().items() if place.startswith("guides/"))
    for path in (ROOT / "python" / "examples").glob("*.py"):
        assert f'--8<-- "python/examples/{path.name}"' in guides
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def test_every_error_has_a_cure() -> None:
    headings = " ".join(_HEADING.findall((DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")))
    known = {*errors.ERRORS_BY_NAME, "RankFailedError"} - {"SparkdlCommError"}
    assert known <= set(re.findall(r"\w+Error", headings))


@pytest.mark.parametrize(("name", "text"), make_reference.pages().items(), ids=list(make_reference.pages()))
def test_pages_made_from_the_code(name: str, text: str) -> None:
    assert (make_reference.ROOT / name).read_text(encoding="utf-8") == text, "run python/make_reference.py"


def test_all_hooks_are_on_their_page() -> None:
    page = (DOCS / "reference" / "ddp-hooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ +- (\w+)$", page, re.MULTILINE)) == sorted(ddp_hooks.__all__)

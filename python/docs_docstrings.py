"""Extension of griffe that turns the markup of docstrings (reStructuredText) into Markdown, for the site's API pages.

Nothing is imported: griffe reads the source. So the site is built without torch and Spark.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`(~?)([^`]+)`")
_CODE = re.compile(r"``([^`]+)``")


class PlainMarkup(griffe.Extension):
    """Extension that rewrites roles, code and literal blocks in every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value, obj)


def markdown(text: str, obj: griffe.Object) -> str:
    """Return a docstring's text as Markdown. A role becomes a link if the site shows its target, else code."""

    def link(match: re.Match[str]) -> str:
        shortened, name = match.groups()
        shown = name.rsplit(".", 1)[-1] if shortened else name.lstrip(".")
        return f'<autoref identifier="{_path(name, obj)}" optional><code>{shown}</code></autoref>'

    text = _CODE.sub(r"`\1`", _ROLE.sub(link, text))
    return re.sub(r" ?::\n\n(?= )", ":\n\n", text)


def _path(name: str, obj: griffe.Object) -> str:
    """Return the full name of what a docstring of ``obj`` calls ``name``."""
    if name.startswith("sparkdl_comm."):
        return name
    if name.startswith("."):
        return f"{obj.module.path}{name}"
    owner = obj if obj.is_class else obj.parent
    while owner is not None:
        if name.split(".")[0] in owner.members:
            return f"{owner.path}.{name}"
        owner = owner.parent
    return name

"""What all groups of Params have in common: keywords in two spellings, checks before anything runs."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pyspark.ml.param import Params

from ..errors import ConfError


class KeywordParams(Params):
    """Base of a group of Params.

    A group is a mixin: it sets the defaults of its own Params after ``super().__init__()``, and extends
    :meth:`_check_params`. Every Param has ``getX`` and ``setX``, and a snake_case spelling as a keyword.
    """

    def _set_keywords(self, keywords: dict[str, Any]) -> None:
        """Set Params by either spelling. ``TypeError``: unknown, given twice, or of the wrong type."""
        names = {snake_case(param.name): param.name for param in self.params}
        values: dict[str, Any] = {}
        for keyword, value in keywords.items():
            name = names.get(keyword, keyword)
            if not self.hasParam(name):
                known = sorted({*names, *names.values()})
                nearest = difflib.get_close_matches(keyword, known, n=1, cutoff=0.0)[0]
                raise TypeError(f"{type(self).__name__}: unknown parameter {keyword!r}; did you mean {nearest!r}?")
            if name in values:
                raise TypeError(f"{type(self).__name__}: {name} given twice, as {name} and as {snake_case(name)}")
            values[name] = value
        self._set(**values)

    def _check_params(self) -> None:
        """:class:`ConfError` naming Param, value and limit, if a value cannot be used. Groups extend it."""

    def _check_at_least(self, limit: int, *names: str) -> None:
        """:class:`ConfError` if one of the Params is set to less than ``limit``."""
        for name in names:
            value = self.getOrDefault(name)
            if value is not None and value < limit:
                raise ConfError(f"{name}={value}: must be at least {limit}")

    def _check_one_of(self, name: str, *choices: str) -> None:
        """:class:`ConfError` if the Param is none of ``choices``."""
        value = self.getOrDefault(name)
        if value not in choices:
            raise ConfError(f"{name}={value!r}: must be {', '.join(choices[:-1])} or {choices[-1]}")


def snake_case(name: str) -> str:
    """``features_col`` of ``featuresCol``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

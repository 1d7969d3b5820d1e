"""Base class of all groups of Params: keywords in two spellings, and checks."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pyspark.ml.param import Params

from sparkdl_comm.errors import ConfError

#: Names in other frameworks, and ours. The first of ours that the instance has is suggested.
_ELSEWHERE = {
    "epochs": ("maxIter",),
    "num_epochs": ("maxIter",),
    "n_epochs": ("maxIter",),
    "max_epochs": ("maxIter",),
    "iterations": ("maxIter",),
    "lr": ("learningRate", "optimizer"),
    "eta": ("learningRate", "optimizer"),
    "learning_rate": ("learningRate", "optimizer"),
    "learningRate": ("optimizer",),
    "weight_decay": ("optimizer",),
    "momentum": ("optimizer",),
    "batch": ("batchSize",),
    "bs": ("batchSize",),
    "workers": ("num_workers",),
    "numWorkers": ("num_workers",),
    "n_workers": ("num_workers",),
    "num_processes": ("num_workers",),
    "num_proc": ("num_workers",),
    "world_size": ("num_workers",),
    "features": ("featuresCol",),
    "feature_cols": ("featuresCols",),
    "label": ("labelCol",),
    "target": ("labelCol",),
    "loss_fn": ("loss",),
    "criterion": ("loss",),
    "net": ("model",),
    "module": ("model",),
    "network": ("model",),
    "scheduler": ("lr_scheduler",),
    "random_state": ("seed",),
    "random_seed": ("seed",),
    "use_gpu": ("device",),
    "useGpu": ("device",),
    "gpu": ("device",),
    "clip_grad_norm": ("maxGradNorm",),
    "gradient_clip_val": ("maxGradNorm",),
    "gradient_accumulation_steps": ("accumulationSteps",),
    "accumulate_grad_batches": ("accumulationSteps",),
    "validation_split": ("validationFraction",),
    "patience": ("earlyStoppingPatience",),
    "collate": ("collate_fn",),
    "collateFn": ("collate_fn",),
    "resume_from_checkpoint": ("resume",),
}


class KeywordParams(Params):
    """Base class of a group of Params.

    A group is a mixin. It sets the defaults of its own Params after ``super().__init__()``, and extends
    :meth:`_check_params`. Every Param has ``getX`` and ``setX``, and a snake_case spelling as a keyword.
    """

    def _set_keywords(self, keywords: dict[str, Any]) -> None:
        """Set Params by either spelling.

        :raises TypeError: a keyword is unknown or given twice, or a value has the wrong type.
        """
        names = {snake_case(param.name): param.name for param in self.params}
        values: dict[str, Any] = {}
        for keyword, value in keywords.items():
            name = names.get(keyword, keyword)
            if not self.hasParam(name):
                nearest = self._meant(keyword, sorted({*names, *names.values()}))
                raise TypeError(f"{type(self).__name__}: unknown parameter {keyword!r}; did you mean {nearest!r}?")
            if name in values:
                raise TypeError(f"{type(self).__name__}: {name} given twice, as {name} and as {snake_case(name)}")
            values[name] = value
        self._set(**values)

    def _meant(self, keyword: str, known: list[str]) -> str:
        """Return the parameter or attribute that an unknown keyword most likely means."""
        for name in _ELSEWHERE.get(keyword, ()):
            if self.hasParam(name) or hasattr(self, name):
                return name
        return difflib.get_close_matches(keyword, known, n=1, cutoff=0.0)[0]

    def _check_params(self) -> None:
        """Check the values of the Params. Groups extend it.

        :raises ConfError: a value cannot be used; names Param, value and limit.
        """

    def _check_at_least(self, limit: int, *names: str) -> None:
        """Check that each of the Params is unset or at least ``limit``.

        :raises ConfError: one is less.
        """
        for name in names:
            value = self.getOrDefault(name)
            if value is not None and value < limit:
                raise ConfError(f"{name}={value}: must be at least {limit}")

    def _check_one_of(self, name: str, *choices: str) -> None:
        """Check that the Param is one of ``choices``.

        :raises ConfError: it is not.
        """
        value = self.getOrDefault(name)
        if value not in choices:
            raise ConfError(f"{name}={value!r}: must be {', '.join(choices[:-1])} or {choices[-1]}")


def snake_case(name: str) -> str:
    """Return the snake_case spelling: ``features_col`` for ``featuresCol``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

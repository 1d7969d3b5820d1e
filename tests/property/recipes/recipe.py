"""A recipe: everything that decides how a training goes, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """One training. What is at its default is not shown.

    ``settings``: of ``spark.sparkdl.comm.``, without the prefix. ``rows``: of each rank. ``parts``: of the model, see
    ``modules.PARTS``. ``given``: the model as ``factory`` or as ``module``. ``loss``, ``optimizer``, ``groups``, ``schedule``:
    see ``components.py``; ``options``: the optimizer's. ``data``: what is special about the rows, see ``rows.py``.
    ``features``: ``arrays``; or sparse Vectors, of which batches are dense (``vectors``) or sparse (``sparse``).
    ``stop``: the optimizer step after which a first fit breaks off; a second one goes on from its checkpoints, which there
    are every ``every`` steps. None: one fit. ``thaw``: the stem is frozen in every other epoch, from the first one on, by
    this hook of a callback; after ``on_train_begin`` by the end of each epoch. None: never.
    ``best``: ends with the epoch of the smallest loss. ``returns``: what the model returns, see ``modules.RETURNS``.
    ``counts``: a callback has a state of its own.
    """

    strategy: str = "gloo"
    settings: dict[str, str] = field(default_factory=dict)
    rows: tuple[int, ...] = (4, 4)
    batch: int = 4
    accumulation: int = 1
    epochs: int = 2
    parts: tuple[str, ...] = ()
    frozen: bool = False
    given: str = "factory"
    loss: str = "mse"
    weights: bool = False
    optimizer: str = "SGD"
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 0.1})
    groups: str | None = None
    schedule: str | None = None
    interval: str = "step"
    clip: float | None = None
    precision: str = "fp32"
    data: tuple[str, ...] = ()
    features: str = "arrays"
    stop: int | None = None
    every: int = 1
    thaw: str | None = None
    best: bool = False
    returns: str = "tensor"
    counts: bool = False
    seed: int = 0

    @property
    def world(self) -> int:
        return len(self.rows)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.epochs * -(-sum(self.rows) // (self.batch * self.accumulation))

    def to_json(self) -> str:
        return json.dumps(self.changed())

    @classmethod
    def from_dict(cls, changed: dict[str, Any]) -> Recipe:
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in changed.items()})

    def changed(self) -> dict[str, Any]:
        """What is not at its default."""
        default = asdict(Recipe())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"


FIELDS = tuple(each.name for each in fields(Recipe))

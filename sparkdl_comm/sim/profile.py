"""Profiles of neural networks: the tensors of each layer, and the seconds of its forward and backward pass."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import InputError, nearest

#: Directory of the profiles in the package. python/make_profiles.py wrote them.
PROFILES = Path(__file__).parent / "profiles"


def shipped() -> list[str]:
    """Return the names of the profiles in the package."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


@dataclass(frozen=True)
class Layer:
    """Layer that owns parameters. A module without parameters (activation, pooling) is part of the layer before it.

    :param shapes: shapes of its tensors, by name.
    :param forward: seconds of the forward pass for a batch.
    :param backward: seconds of the backward pass for a batch.
    """

    name: str
    shapes: Mapping[str, Sequence[int]]
    forward: float
    backward: float

    @property
    def parameters(self) -> int:
        """Number of elements of all its tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclass(frozen=True)
class Profile:
    """Profile of a network.

    :param rows: rows of the batch that the seconds are for.
    :param source: origin of the shapes and seconds.
    :param layers: layers in the order of the forward pass.
    """

    title: str
    rows: int
    source: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Seconds of one forward and backward pass."""
        return math.fsum(layer.forward + layer.backward for layer in self.layers)

    def scaled(self, parameters: float, seconds: float) -> Profile:
        """Return a profile with scaled layers, each with a single tensor.

        :param parameters: factor of the number of elements.
        :param seconds: factor of the seconds.
        """
        return dataclasses.replace(
            self,
            source=f"{self.source}; parameters x {parameters:g}, seconds x {seconds:g}",
            layers=tuple(
                Layer(
                    layer.name,
                    {"weight": [max(1, round(layer.parameters * parameters))]},
                    layer.forward * seconds,
                    layer.backward * seconds,
                )
                for layer in self.layers
            ),
        )

    @classmethod
    def load(cls, name: str) -> Profile:
        """Return a profile of the package.

        :raises InputError: there is no profile ``name``. The message lists the known ones.
        """
        if name not in (known := shipped()):
            raise InputError(
                f"profile {name!r} is not known. There are {', '.join(known)} (or read a file: Profile.read)"
                f"{nearest(name, known)}"
            )
        return cls.read(PROFILES / f"{name}.json")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Return a profile from a JSON file that :meth:`to_json` wrote.

        :raises InputError: fields are missing or unknown, names are not unique, or shapes or seconds are invalid. The
            message names file and layer.
        """
        try:
            return cls._of(json.loads(path.read_text()))
        except (json.JSONDecodeError, UnicodeDecodeError, InputError, TypeError) as exc:
            raise InputError(f"profile {path}: {exc}") from exc

    @classmethod
    def _of(cls, parsed: dict[str, Any]) -> Profile:
        profile = cls(**{**parsed, "layers": tuple(Layer(**layer) for layer in parsed.get("layers", ()))})
        names = [layer.name for layer in profile.layers]
        if not names or len(set(names)) < len(names):
            raise InputError("needs layers with unique names")
        for layer in profile.layers:
            sizes = [size for shape in layer.shapes.values() for size in shape]
            if not layer.shapes or not all(type(size) is int and size > 0 for size in sizes):
                raise InputError(f"layer {layer.name}: shapes must be positive whole numbers, not {layer.shapes}")
            for seconds in (layer.forward, layer.backward):
                if not 0 <= seconds < math.inf:
                    raise InputError(f"layer {layer.name}: seconds must be finite and not negative, not {seconds}")
        return profile

    def to_json(self) -> str:
        """Return the profile as JSON, with one line per layer, so that diffs are readable. Seconds are rounded to a
        nanosecond.
        """
        head = {"title": self.title, "rows": self.rows, "source": self.source}
        lines = [
            json.dumps(
                {
                    "name": layer.name,
                    "shapes": {name: list(shape) for name, shape in layer.shapes.items()},
                    "forward": round(layer.forward, 9),
                    "backward": round(layer.backward, 9),
                }
            )
            for layer in self.layers
        ]
        opened = json.dumps(head, indent=1).removesuffix("\n}")
        return opened + ',\n "layers": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"

"""Model of a server: SGD with momentum on a flat float32 vector.

"Network-accelerated Distributed Machine Learning Using MLfabric", section 2, equation 2:
``w[t+1] = w[t] + u[t] + momentum * (w[t] - w[t-1])``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class MomentumModel:
    """Model with its momentum step. A sum of several updates is one step, and raises the version by their number.

    - ``values``: float32 ``[n]``, changed in place.
    - ``version``: the number of updates that the model contains.
    """

    def __init__(self, values: NDArray[np.float32], momentum: float, version: int = 0) -> None:
        self.values, self.version = values, version
        self._momentum = np.float32(momentum)
        self._step = np.zeros_like(values) if momentum else None

    def copy_state(self) -> NDArray[np.float32]:
        """Return a copy of all that later steps depend on, float32: the values, followed by the last step if there is
        momentum."""
        return self.values.copy() if self._step is None else np.concatenate([self.values, self._step])

    def load_state(self, state: NDArray[np.float32], version: int) -> None:
        """Restore what :meth:`copy_state` returned for a model of this ``version``."""
        np.copyto(self.values, state[: len(self.values)])
        if self._step is not None:
            np.copyto(self._step, state[len(self.values) :])
        self.version = version

    def apply(self, update: NDArray[np.float32], count: int) -> None:
        """Apply one step. ``update``: the sum of ``count`` updates, float32 ``[n]``."""
        if self._step is None:
            self.values += update
        else:
            self._step *= self._momentum
            self._step += update
            self.values += self._step
        self.version += count

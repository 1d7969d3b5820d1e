"""Test whether an optimizer may update stripes of tensors.

It may if it is elementwise: the update of an element depends only on that element, its gradients and the options of its
group. Layer-wise optimizers (``layerwise.py``) are accepted too: the owner of the stripes gives them the norms of the
whole tensors.

Classes of torch.optim and of this package are known. Any other optimizer is tested on a few small tensors shaped like
the model's:

1. One optimizer takes some steps on the whole tensors.
2. Two optimizers take the same steps on stripes of the tensors, cut as two ranks would have them: flat, and not at the
   ends of tensors. Norms that they request are those of the whole tensors.
3. The values after 1 and 2 must be equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim.layerwise import LAMB, LARS, LOCAL_NORMS, Layerwise, Norms
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.space.flat import FlatModel

_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.ASGD, torch.optim.Rprop),
)
#: Elementwise except for the norms that they request.
_LAYERWISE = (LARS, LAMB)

#: Steps of the test: enough for behavior that starts after a few steps, or occurs every tenth step.
_STEPS = 12
#: Maximum number of elements of a test tensor: 128 x 128, the size from which some optimizers factor their state.
_ELEMENTS = 1 << 14
#: Ends of the stripes, as fractions of a tensor.
_CUTS = (0.0, 0.4, 1.0)


def check_on_driver(module: nn.Module, optimization: Optimization) -> None:
    """Check before the ranks start that the optimizer is elementwise.

    :raises ModelError: it is not, or the test is not possible.
    """
    if not _is_known_elementwise(optimization.optimizer):
        model = FlatModel(module)
        check(model, OptimizerMaker(model, optimization))


def check(model: FlatModel, make_optimizer: OptimizerMaker) -> None:
    """Check that the optimizer is elementwise.

    :raises ModelError: the optimizer is not elementwise, or the test is not possible.
    """
    if _is_known_elementwise(make_optimizer.factory):
        return
    samples = [_Sample.like(owner, seed) for seed, owner in enumerate(_representatives(model, make_optimizer))]
    name = "optimizer"
    try:
        with torch.random.fork_rng(devices=[]):
            optimizer = make_optimizer([(sample.owner, sample.whole_parameter()) for sample in samples])
            name = f"optimizer {type(optimizer).__name__}"
            _refuse(type(optimizer))
            tape: list[_NormPairs] = []
            whole = _run_steps(make_optimizer, samples, None, tape)
    except ModelError:
        raise
    except Exception as error:  # whatever a user's optimizer raises
        raise ModelError(
            f"{name} fails on a few small tensors, which test whether ranks may update stripes of tensors."
            f" {type(error).__name__}: {error}"
        ) from error
    if not any(bool((after != sample.values.flatten()).any()) for after, sample in zip(whole, samples, strict=True)):
        raise ModelError(
            f"{name} changed nothing in {_STEPS} steps, so it is unknown whether it is elementwise. {HINT}"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            stripes = [_run_steps(make_optimizer, samples, cut, tape) for cut in zip(_CUTS, _CUTS[1:], strict=False)]
    except Exception as error:
        raise ModelError(f"{name} fails on stripes of tensors ({type(error).__name__}: {error}). {HINT}") from error
    for sample, expected, *parts in zip(samples, whole, *stripes, strict=True):
        largest_change = (expected - sample.values.flatten()).abs().max()
        if not torch.allclose(torch.cat(parts), expected, rtol=0.0, atol=1e-6 * float(largest_change), equal_nan=True):
            raise ModelError(
                f"{name} is not elementwise: a tensor of shape {list(sample.values.shape)} gets other values when its"
                f" stripes are updated separately. {HINT}"
            )


#: Advice if the optimizer is not elementwise.
HINT = (
    "With strategy ps, and with collective.loop=decoupled, each rank updates stripes of the tensors. Set ring without that"
    " loop, which gives the optimizer whole tensors (strategy, or spark.sparkdl.comm.strategy)"
)


def _is_known_elementwise(factory: Any) -> bool:
    """Return whether ``factory`` is an elementwise class, perhaps with arguments. A function may look at its tensors,
    so it is not known.

    :raises ModelError: it is a class that is not elementwise.
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    if isinstance(factory, type):
        _refuse(factory)
    return factory in (*_ELEMENTWISE, *_LAYERWISE)


def _refuse(kind: type) -> None:
    """Refuse a class, or a subclass of one, that is known not to be elementwise.

    :raises ModelError: it is such a class.
    """
    ancestors = {base.__name__ for base in kind.__mro__ if base.__module__.split(".")[:2] == ["torch", "optim"]}
    if "SparseAdam" in ancestors:
        raise ModelError(f"optimizer {kind.__name__} takes sparse gradients only. {HINT}")
    if ancestors & {"Adafactor", "Muon"}:
        raise ModelError(f"optimizer {kind.__name__} is not elementwise. {HINT}")


@dataclass(frozen=True)
class _Sample:
    """Test tensor in place of the parameter ``owner``. It is float64, so that small steps count."""

    owner: nn.Parameter
    values: torch.Tensor
    gradients: torch.Tensor

    @classmethod
    def like(cls, owner: nn.Parameter, seed: int) -> _Sample:
        shape = list(owner.shape)
        while math.prod(shape) > _ELEMENTS:
            longest = shape.index(max(shape))
            shape[longest] = -(-shape[longest] // 2)
        random = torch.Generator().manual_seed(seed)
        values, *gradients = torch.randn(_STEPS + 1, *shape, generator=random, dtype=torch.float64).to(owner.device)
        # Stripes must differ in size and norm.
        slope = torch.linspace(0.5, 2.0, values.numel(), dtype=torch.float64, device=owner.device).view(shape)
        return cls(owner, values * slope, torch.stack(gradients) * slope)

    def whole_parameter(self) -> nn.Parameter:
        tensor = nn.Parameter(self.values.clone())
        tensor.__dict__.update(self.owner.__dict__)  # attributes that an optimizer may look for
        return tensor

    def stripe(self, begin: float, end: float) -> slice:
        count = self.values.numel()
        return slice(round(begin * count), round(end * count))


def _representatives(model: FlatModel, make_optimizer: OptimizerMaker) -> list[nn.Parameter]:
    """Return the smallest and the largest parameter of each group and number of dimensions."""
    kinds: dict[tuple[int, int], list[nn.Parameter]] = {}
    for parameter in model.parameters:
        kinds.setdefault((make_optimizer.group_of(parameter), parameter.dim()), []).append(parameter)
    ends = [(min(kind, key=torch.numel), max(kind, key=torch.numel)) for kind in kinds.values()]
    return list({id(parameter): parameter for both in ends for parameter in both}.values())


#: Norms that an optimizer requested in a call, by the numbers of the samples.
_NormPairs = dict[int, tuple[float, float]]


class _RecordingNorms(Norms):
    """Norms of whole samples, recorded on ``tape`` call by call."""

    def __init__(self, numbers: dict[int, int], tape: list[_NormPairs]) -> None:
        self._numbers, self._tape = numbers, tape

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        norms = LOCAL_NORMS(parameters, others)
        self._tape.append({self._numbers[id(p)]: pair for p, pair in zip(parameters, norms, strict=True)})
        return norms


class _ReplayedNorms(Norms):
    """Norms for stripes of samples: the recorded norms of the whole samples, or NaN if there are none."""

    def __init__(self, numbers: dict[int, int], tape: list[_NormPairs]) -> None:
        self._numbers, self._calls = numbers, iter(tape)

    def __call__(self, parameters: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[float, float]]:
        whole = next(self._calls, {})
        return [whole.get(self._numbers[id(parameter)], (math.nan, math.nan)) for parameter in parameters]


def _run_steps(
    make_optimizer: OptimizerMaker, samples: Sequence[_Sample], cut: tuple[float, float] | None, tape: list[_NormPairs]
) -> list[torch.Tensor]:
    """Return the flat values of each sample after the test's steps.

    :param cut: begin and end of the stripe to update. None: the whole tensors are updated, and their norms are
        recorded.
    :param tape: record of the norms that the optimizer requests.
    """
    torch.manual_seed(0)
    tensors, places = [], []
    for sample in samples:
        place = slice(None) if cut is None else sample.stripe(*cut)
        places.append(place)
        tensors.append(
            sample.whole_parameter() if cut is None else nn.Parameter(sample.values.flatten()[place].clone())
        )
    pairs = [(s.owner, tensor) for s, tensor in zip(samples, tensors, strict=True) if tensor.numel()]
    optimizer = make_optimizer(pairs)
    if isinstance(optimizer, Layerwise):
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
        optimizer.norms = (_RecordingNorms if cut is None else _ReplayedNorms)(numbers, tape)
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] or 0.1  # a schedule may start at 0
    for step in range(_STEPS):
        for sample, place, tensor in zip(samples, places, tensors, strict=True):
            tensor.grad = sample.gradients[step].flatten()[place].clone().view(tensor.shape)
        optimizer.step()
    return [tensor.detach().flatten() for tensor in tensors]

"""The trained module, made on the driver of what rank 0 sent."""

from __future__ import annotations

import copy
import warnings

import torch

from sparkdl_comm.errors import ModelError
from sparkdl_comm.space import module_state
from sparkdl_comm.train.spec import TrainSpec


def trained_module(spec: TrainSpec, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A module with the trained ``tensors``, on the CPU, in eval mode; the user's own stays as it is.

    The module takes over the memory of ``tensors``.

    :raises ModelError: names of tensors that the module lacks, that were not sent, or that are of another shape.
    """
    if isinstance(spec.model, torch.nn.Module):
        module = copy.deepcopy(spec.model)
    else:
        with torch.random.fork_rng(devices=[]):  # the user's generator is not ours to advance
            torch.manual_seed(spec.seed)
            module = spec.model()
    module = module.cpu()
    tensors, extra = module_state.unpacked(tensors)
    here = module_state.tensors_of(module)
    sent = {id(here[name]) for name in tensors if name in here}
    missing = [name for name in here if name not in tensors and id(here[name]) not in sent]  # tied ones come once
    unexpected = [name for name in tensors if name not in here]
    other = [name for name in tensors if name in here and tensors[name].shape != here[name].shape]
    if missing or unexpected or other:
        raise ModelError(
            f"the ranks' model is not the driver's: missing {missing}, unexpected {unexpected}, of another shape {other}"
        )
    for name, tensor in tensors.items():
        here[name].data = tensor  # not copied, unlike by load_state_dict: models are large
    try:
        module_state.load_extra_state(module, extra)
    except Exception as error:  # noqa: BLE001 - a user's set_extra_state must not cost the trained model
        warnings.warn(f"the trained model lacks extra state: {error!r}", stacklevel=2)
    return module.eval()

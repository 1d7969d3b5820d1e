"""The driver's module: made before the ranks start, and given the tensors that rank 0 sends."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from pyspark import cloudpickle

from sparkdl_comm.errors import ModelError, ResultError, SparkdlCommError
from sparkdl_comm.space import module_state
from sparkdl_comm.train.spec import TrainSpec


def driver_module(spec: TrainSpec) -> torch.nn.Module:
    """Return a module like the ranks', on the CPU, for :func:`load_trained`. The user's own stays as it is.

    :raises ModelError: the factory fails on the driver.
    """
    if isinstance(spec.model, torch.nn.Module):
        return _copied(spec.model).cpu()
    with torch.random.fork_rng(devices=[]):  # the user's generator is not ours to advance
        torch.manual_seed(spec.seed)
        try:
            return spec.build_model().cpu()
        except ModelError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise ModelError(
                f"model: the factory raised {type(error).__name__} on the driver: {error}. The driver makes the module, too,"
                " to give you the trained one: have the factory run there as on executors"
            ) from error


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module that can be pickled. Where torch refuses (weight_norm), make it as executors make theirs."""
    try:
        return copy.deepcopy(module)
    except RuntimeError:
        made: torch.nn.Module = pickle.loads(cloudpickle.dumps(module))  # noqa: S301 - of this process
        return made


def load_trained(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Give ``module`` the trained ``tensors``, whose memory it takes over; returns it in eval mode.

    Buffers may have changed their shapes in training, or have been added.

    :raises ModelError: parameters that the module lacks, that were not sent, or that are of another shape.
    """
    transient = module_state.transient(tensors)
    tensors, extra = module_state.unpacked(tensors)
    here = module_state.tensors_of(module)
    parameters = {name: tensor for name, tensor in here.items() if isinstance(tensor, torch.nn.Parameter)}
    sent = {id(here[name]) for name in tensors if name in here}
    missing = [name for name in parameters if name not in tensors and id(here[name]) not in sent]  # tied ones come once
    unexpected = [name for name in tensors if name not in here and not _take_buffer(module, name, tensors[name])]
    other = [name for name in tensors if name in parameters and tensors[name].shape != here[name].shape]
    if missing or unexpected or other:
        raise ModelError(
            f"the ranks' model is not the driver's: missing {missing}, unexpected {unexpected}, of another shape {other}"
        )
    for name, tensor in tensors.items():
        if name in here:
            here[name].data = tensor  # not copied, unlike by load_state_dict: models are large
    for name, tensor in transient.items():
        _take_buffer(module, name, tensor, persistent=False)
    gone = [name for name in here if name not in tensors and name not in parameters]
    if gone:
        warnings.warn(
            f"buffers that rank 0's model no longer has keep their first values: {', '.join(gone)}", stacklevel=2
        )
    try:
        module_state.load_extra_state(module, extra)
    except Exception as error:  # noqa: BLE001 - a user's set_extra_state must not cost the trained model
        warnings.warn(f"the trained model lacks extra state: {error!r}", stacklevel=2)
    return module.eval()


@contextmanager
def keep_tensors(tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Give what is raised in here the trained tensors as ``state_dict``, so that no fit is lost at its end.

    :raises SparkdlCommError: what was raised, or a ResultError for another exception.
    """
    try:
        yield
    except SparkdlCommError as error:
        error.state_dict = module_state.state_dict_of(tensors)
        raise
    except Exception as error:
        kept = ResultError(
            f"training ended, and then {type(error).__name__}: {error}. The trained tensors are in this error's state_dict"
        )
        kept.state_dict = module_state.state_dict_of(tensors)
        raise kept from error


def _take_buffer(module: torch.nn.Module, name: str, tensor: torch.Tensor, *, persistent: bool = True) -> bool:
    """Give a part of the module a buffer that it got in training; False if there is no such part, or it is in the way."""
    path, _, own = name.rpartition(".")
    try:
        module.get_submodule(path).register_buffer(own, tensor, persistent=persistent)
    except (AttributeError, KeyError):
        return False
    return True

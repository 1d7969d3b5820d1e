"""The driver's copy of the module: made before the ranks start, and filled with the tensors that rank 0 sends."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import ModelError, ResultError, SparkdlCommError
from sparkdl_comm.optim.optimizer import ModelLike, build_module
from sparkdl_comm.space import module_state


def driver_module(model: ModelLike, seed: int) -> torch.nn.Module:
    """Return a module like the ranks', on the CPU. The user's own module stays as it is.

    :raises ModelError: the factory fails on the driver.
    """
    if isinstance(model, torch.nn.Module):
        return module_state.deep_copy(model).cpu()
    with torch.random.fork_rng(devices=[]):  # leaves the user's random state as it is
        torch.manual_seed(seed)
        try:
            return build_module(model).cpu()
        except ModelError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise ModelError(
                f"model: the factory raised {type(error).__name__} on the driver: {error}. The driver needs a module too,"
                " for the trained tensors. Write the factory so that it also runs on the driver"
            ) from error


def free_parameters(module: torch.nn.Module) -> None:
    """Free the memory of the parameters until :func:`load_trained`, so that the driver never holds a large model twice.
    They keep their shapes.
    """
    for parameter in module.parameters():
        if not is_lazy(parameter):  # ranks refuse a lazy one
            parameter.data = parameter.new_zeros(()).expand(parameter.shape)


def load_trained(module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Load the trained ``tensors`` into ``module``, which takes over their memory. Return it in eval mode.

    Training may have changed the shapes of buffers, or added buffers.

    :raises ModelError: a parameter is missing in ``tensors`` or in ``module``, or has another shape.
    """
    transient = module_state.transient_buffers(tensors)
    tensors, extra = module_state.unpack_state(tensors)
    own_tensors = module_state.tensors_of(module)
    parameters = {name: tensor for name, tensor in own_tensors.items() if isinstance(tensor, torch.nn.Parameter)}
    sent_ids = {id(own_tensors[name]) for name in tensors if name in own_tensors}
    # A tied parameter is sent once.
    missing = [name for name in parameters if name not in tensors and id(own_tensors[name]) not in sent_ids]
    unexpected = [name for name in tensors if name not in own_tensors and not _take_buffer(module, name, tensors[name])]
    reshaped = [name for name in tensors if name in parameters and tensors[name].shape != own_tensors[name].shape]
    if missing or unexpected or reshaped:
        raise ModelError(
            f"the ranks' model is not the driver's: missing {missing}, unexpected {unexpected}, of another shape {reshaped}"
        )
    for name, tensor in tensors.items():
        if name in own_tensors:
            own_tensors[name].data = tensor  # not copied, unlike by load_state_dict: models are large
    for name, tensor in transient.items():
        _take_buffer(module, name, tensor, persistent=False)
    removed = [name for name in own_tensors if name not in tensors and name not in parameters]
    if removed:
        warnings.warn(
            f"rank 0's model no longer has these buffers, so they keep their initial values: {', '.join(removed)}",
            stacklevel=2,
        )
    try:
        module_state.load_extra_state(module, extra)
    except Exception as error:  # noqa: BLE001 - a user's set_extra_state must not cost the trained model
        warnings.warn(f"the trained model lacks extra state: {error!r}", stacklevel=2)
    return module.eval()


@contextmanager
def keep_tensors(tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Attach the trained tensors, as ``state_dict``, to errors raised in the context, so that they are not lost.

    :raises SparkdlCommError: the error raised in the context, or a ResultError for any other exception.
    """
    try:
        yield
    except SparkdlCommError as error:
        error.state_dict = module_state.state_dict_of(tensors)
        raise
    except Exception as error:
        result_error = ResultError(
            f"training ended, and then {type(error).__name__}: {error}. The trained tensors are in this error's state_dict"
        )
        result_error.state_dict = module_state.state_dict_of(tensors)
        raise result_error from error


def _take_buffer(module: torch.nn.Module, name: str, tensor: torch.Tensor, *, persistent: bool = True) -> bool:
    """Register a buffer that training added, in its submodule. Return False if there is no such submodule, or the name
    is taken.
    """
    path, _, buffer = name.rpartition(".")
    try:
        module.get_submodule(path).register_buffer(buffer, tensor, persistent=persistent)
    except (AttributeError, KeyError):
        return False
    return True

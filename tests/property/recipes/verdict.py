"""What came of a recipe: as plain torch has it, refused in time, or wrong."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from sparkdl_comm.errors import ConfError, InputError, ModelError, NonFiniteLossError, RankFailedError, SparkdlCommError

from . import components, reference
from .crew import DiedError, HungError
from .fit import Fitted, Fitter
from .recipe import Recipe
from .reference import Trained

#: How far a tensor may be from plain torch's, beside its largest element (or 1, if that is smaller).
BOUNDS = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}
#: How much farther off than a rounding error makes plain torch a fit may be, where that is farther than its bound.
_FARTHER = 10.0
#: With which a recipe may be refused.
REFUSALS = (ConfError, InputError, ModelError)

#: Phases after the step that they are said to be at.
_AFTER = ("after step", "end of epoch", "finish")


@dataclass(frozen=True)
class Verdict:
    """``kind``: agreed, refused, stopped (a loss or gradient that is not finite), unstable (plain torch itself ends elsewhere
    if it begins a rounding error off, as where the learning rate is too large), or, if ``problem`` says what is wrong, a word
    for that."""

    kind: str
    problem: str = ""
    trained: Trained | None = None
    fitted: Fitted | None = None


def judge(recipe: Recipe, fitter: Fitter) -> Verdict:
    trained: Trained | None = None
    why = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of schedules, when fp16 skips the first step
            trained = reference.train(recipe)
    except Exception as exc:  # noqa: BLE001 - plain torch does not do it: whatever it says
        why = f"{type(exc).__name__}: {exc}"
    try:
        fitted = fitter.fit(recipe)
    except (HungError, DiedError) as exc:
        return Verdict(type(exc).__name__, str(exc), trained)
    except SparkdlCommError as exc:
        return _failed(recipe, trained, why, exc)
    except Exception as exc:  # noqa: BLE001 - it is the finding
        return Verdict("untyped error", f"{type(exc).__name__}: {exc}"[:1500], trained)
    if trained is None:
        return Verdict("trained what torch refuses", why, None, fitted)
    if not trained.finite:
        return Verdict("not finite, without a word", f"losses {fitted.losses}", trained, fitted)
    difference = _difference(recipe, trained, fitted)
    if difference is None:
        return Verdict("agreed", "", trained, fitted)
    kind, problem = difference
    if kind == "other weights" and _is_unstable(recipe, trained, fitted):
        return Verdict("unstable", "", trained, fitted)
    return Verdict(kind, problem, trained, fitted)


def _failed(recipe: Recipe, trained: Trained | None, why: str, exc: SparkdlCommError) -> Verdict:
    said = f"{type(exc).__name__} at step {exc.step} in {exc.phase}: {exc.message}"[:1500]
    if isinstance(exc, NonFiniteLossError):
        expected = trained is None or not trained.finite
        return Verdict("stopped", "", trained) if expected else Verdict("stopped without need", said, trained)
    if isinstance(exc, RankFailedError) or not isinstance(exc, REFUSALS):
        return Verdict("untyped error" if isinstance(exc, RankFailedError) else "failed", said, trained)
    if _is_late(exc):
        return Verdict("refused too late", said, trained)
    if trained is not None and not (trained.empty or refusable(recipe)):
        return Verdict("refused without need", said, trained)
    return Verdict("refused", "", trained)


def _is_late(exc: SparkdlCommError) -> bool:
    """Whether an optimizer step was done before. Steps count from 1; the one that is being done is not done yet."""
    return exc.step is not None and (exc.step > 1 or (exc.step == 1 and exc.phase in _AFTER))


def refusable(recipe: Recipe) -> bool:
    """Whether a recipe that plain torch trains may be refused."""
    parts = set(recipe.parts)
    return (
        recipe.loss == "temperature"
        or recipe.optimizer == "LBFGS"  # torch only sees that it lacks its closure if fp16 does not skip all steps
        or (not parts.isdisjoint({"weight normed", "hooked"}) and recipe.given == "module")  # cannot be pickled
        or not parts.isdisjoint({"extra dict", "extra tensor", "embedded sparse", "checkpointed shared re-entrant"})
        or not parts.isdisjoint({"aliased", "thawed"})
        or (cuts_tensors(recipe) and recipe.optimizer in {*components.WHOLE, *components.OWN, "SparseAdam"})
    )


def cuts_tensors(recipe: Recipe) -> bool:
    """Whether optimizers have stripes of tensors."""
    return recipe.strategy == "ps" or recipe.settings.get("collective.loop") == "decoupled"


def _difference(recipe: Recipe, trained: Trained, fitted: Fitted) -> tuple[str, str] | None:
    """What kind of difference there is, and where; None if there is none that matters."""
    want, got = _wanted(recipe, trained, fitted), fitted.state
    if list(want) != list(got):
        return "other state", f"{sorted(set(want) ^ set(got))}"
    bound = BOUNDS[recipe.precision]
    far: list[str] = []
    for name, value in want.items():
        if name.endswith("_extra_state"):
            if all(recipe.rows) and not _same(value, got[name]):
                return "other extra state", f"{name}: {got[name]!r}, in one process {value!r}"
        elif value.dtype != got[name].dtype or value.shape != got[name].shape:
            return "other state", f"{name}: {got[name].dtype} {tuple(got[name].shape)}"
        elif value.numel():
            off = _off(value, got[name])
            if not off <= bound:
                far.append(f"{name} by {off:.2g}")
    if far:
        kind = "other buffers" if all(".mean" in name or ".count" in name for name in far) else "other weights"
        return kind, f"{', '.join(far)} (relative; {bound:g} is allowed)"
    if fitted.skipped != trained.skipped:
        return "other history", f"{fitted.skipped} steps skipped, in one process {trained.skipped}"
    for epoch, (one, other) in enumerate(zip(trained.losses, fitted.losses, strict=True), 1):
        alike = math.isnan(one) and math.isnan(other)
        if not (alike or abs(one - other) <= 10 * bound * max(1.0, abs(one))):
            return "other history", f"loss of epoch {epoch}: {other}, in one process {one}"
    return None


def _wanted(recipe: Recipe, trained: Trained, fitted: Fitted) -> dict[str, Any]:
    """The state that the fit is to end with; the best epoch is the one of its own smallest loss, as two may be close."""
    finite = [epoch for epoch, loss in enumerate(fitted.losses) if math.isfinite(loss)]
    if not recipe.best or not finite:
        return trained.state
    return trained.states[min(finite, key=lambda epoch: fitted.losses[epoch])]


def _is_unstable(recipe: Recipe, trained: Trained, fitted: Fitted) -> bool:
    """Whether plain torch, begun a rounding error off, ends too far off as well, and the fit not much farther."""
    nearby = _farthest(trained.state, reference.train_nearby(recipe).state)
    far = _farthest(_wanted(recipe, trained, fitted), fitted.state)
    return nearby > BOUNDS[recipe.precision] and far <= _FARTHER * nearby


def _farthest(want: dict[str, Any], got: dict[str, Any]) -> float:
    return max(
        _off(value, got[name]) for name, value in want.items() if isinstance(value, torch.Tensor) and value.numel()
    )


def _off(want: torch.Tensor, got: torch.Tensor) -> float:
    scale = max(1.0, want.double().abs().max().item())
    return (want.double() - got.double()).abs().max().item() / scale


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)

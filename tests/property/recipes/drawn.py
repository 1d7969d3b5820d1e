"""Recipes, drawn. All of them make sense to plain torch, but for a few optimizers.

Hypothesis gives the bytes of which each is made. It does not draw the parts itself: the engine makes each example of those
before it, so that a thousand of them would differ in little.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.conf import CommConf
from sparkdl_comm.conf.strategy import AUTO
from sparkdl_comm.strategies.registry import STRATEGIES, load_strategy

from .modules import PARTS, RETURNS
from .recipe import Recipe

COLLECTIVES = (*ALGORITHMS, AUTO, "cheapest", "hitopk")
#: Strategies that are neither this package's collectives nor the parameter server, with common steps, on CPUs.
OTHERS = tuple(
    name
    for name in STRATEGIES
    if name not in (*COLLECTIVES, "ps", "nccl")
    and load_strategy(CommConf.from_mapping({}, strategy=name)).is_synchronous
)
#: Those that send the largest elements of gradients; all of them, here.
COMPRESSING = (
    *(name for name, algorithm in ALGORITHMS.items() if "all_gather" in algorithm.operations),
    AUTO,
    "hitopk",
)
COMPRESSIONS = ("topk:1", "mstopk:1")
#: Those that can reduce to one rank, and broadcast.
ROOTED = (*(name for name, algorithm in ALGORITHMS.items() if "reduce" in algorithm.operations), AUTO)
#: Those that have the two operations of a decoupled all-reduce.
DECOUPLED = tuple(
    name
    for name, algorithm in ALGORITHMS.items()
    if {"reduce_scatter", "all_gather"} <= {*algorithm.operations} or {"reduce", "broadcast"} <= {*algorithm.operations}
)
BATCHINGS = (
    "whole",
    "layerwise",
    "greedy1",
    "greedy2",
    "ibatch",
    "paper",
    "optimal",
    "parts:2",
    "fixed:1",
    "fixed:100",
)

_PLAIN_LOSSES = ("mse", "mse of two", "huber", "own")
_CLASS_LOSSES = ("cross entropy", "ignored labels", "class weights")


#: Those that a user can write over one of several outputs, without what this package does for losses over classes.
_LOSSES_OF_MAIN = (*_PLAIN_LOSSES, "cross entropy")

#: Kinds of the column of features.
COLUMNS = ("arrays", "vectors", "sparse")

#: By name, the options to draw from, the first value twice as often. Large eps: else tiny gradients, which are rounded, make
#: whole steps.
OPTIMIZERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {
        "lr": (0.1, 0.3),
        "momentum": (0.9, 0.0),
        "weight_decay": (0.0, 0.5),
        "dampening": (0.0, 0.5),
        "foreach": (None, True, False),
    },
    "Adam": {
        "lr": (0.05,),
        "eps": (1e-2,),
        "weight_decay": (0.0, 0.2),
        "amsgrad": (False, True),
        "fused": (None, True),
    },
    "AdamW": {"lr": (0.1,), "eps": (1e-2,), "weight_decay": (0.5, 0.0), "foreach": (None, True)},
    "RMSprop": {
        "lr": (0.02,),
        "eps": (1e-2,),
        "momentum": (0.0, 0.9),
        "centered": (False, True),
        "weight_decay": (0.0, 0.3),
    },
    "Adagrad": {"lr": (0.1,), "eps": (1e-2,), "lr_decay": (0.0, 0.1), "weight_decay": (0.0, 0.3)},
    "NAdam": {"lr": (0.02,), "eps": (1e-2,), "weight_decay": (0.0, 0.3)},
    "Adamax": {"lr": (0.02,), "eps": (1e-2,), "weight_decay": (0.0, 0.3)},
    "ASGD": {"lr": (0.05,), "t0": (2.0,), "weight_decay": (0.0, 0.3)},
    "Signed": {"lr": (0.1,)},
    "LARS": {
        "lr": (0.3,),
        "momentum": (0.9, 0.0),
        "weight_decay": (0.0, 0.3),
        "trust_coefficient": (0.2,),
        "eps": (1e-2,),
        "parallel": (False, True),
    },
    # With decay: else steps are as long as parameters, whatever the gradient, and go where its rounding errors do.
    "LAMB": {"lr": (0.1,), "eps": (1e-2,), "weight_decay": (0.3, 0.5), "parallel": (False, True)},
    "Lars": {"lr": (0.3,), "trust": (0.2,)},
    "SparseAdam": {"lr": (0.05,), "eps": (1e-2,)},
    "Adafactor": {"lr": (0.05,)},
    "LBFGS": {"lr": (0.1,)},
}
#: Parts that may be refused, and then hide whatever else is in the recipe: drawn seldom.
_REFUSABLE = (
    "extra dict",
    "extra tensor",
    "embedded sparse",
    "checkpointed shared re-entrant",
    "aliased",
    "thawed",
)
_PARTS = (*[part for part in PARTS if part not in _REFUSABLE] * 3, *_REFUSABLE, *("dense", "unused", "rare") * 3)
_USUAL = (
    "SGD",
    "SGD",
    "SGD",
    "Adam",
    "AdamW",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "NAdam",
    "Adamax",
    "ASGD",
    "Signed",
    "LARS",
    "LAMB",
)
_UNUSUAL = ("Lars", "Lars", "SparseAdam", "Adafactor", "LBFGS")


def recipes() -> st.SearchStrategy[Recipe]:
    return st.binary(min_size=8, max_size=8).map(lambda seed: draw(Random(seed)))


def draw(random: Random) -> Recipe:
    choice = random.choice
    strategy, settings, world = _strategy(random)
    rows = [0]
    while not any(rows):
        rows = random.choices((4, 0, 1, 3, 5, 8), k=world)
    name = choice(_UNUSUAL if _one_in(8, random) else _USUAL)
    options = {option: choice((values[0], *values)) for option, values in OPTIMIZERS[name].items()}
    options = {option: value for option, value in options.items() if value is not None}
    if name == "SGD" and options["momentum"] and not options["dampening"] and _one_in(3, random):
        options["nesterov"] = True
    parts = tuple(random.choices(_PARTS, k=random.randint(0, 4)))
    if name == "Adafactor":  # it divides by the number of elements
        parts = tuple(part for part in parts if part != "odd")
    sparse = name == "SparseAdam"
    if sparse:
        parts = (
            "embedded sparse",
            *(part for part in parts if part in ("unused", "constants", "tracker", "extra dict")),
        )
    precision = choice(["fp32"] * 6 + ["bf16", "fp16"])
    data = [choice(("one flagged", "none flagged"))] if _one_in(2, random) else []
    if "rooted" in parts and _one_in(2, random):
        data.append("a zero")
    if precision == "fp16":
        data += [special for special in ("a large one", "an infinity") if _one_in(2, random)]
        if not sparse and data and _one_in(2, random):
            parts = ("skip", *parts)
    loss = "temperature" if _one_in(12, random) else choice((*_PLAIN_LOSSES, *_CLASS_LOSSES))
    schedule = choice((None, None, "step", "warm", "cosine", "plateau", "one cycle"))
    if schedule == "one cycle" and not options.get("momentum"):  # it changes the momentum too
        schedule = "warm"
    last = "a zero" in data and _one_in(2, random)  # what is not finite is in the last step
    recipe = Recipe(
        strategy=strategy,
        settings=settings,
        rows=tuple(rows),
        batch=100 if last else choice((4, 1, 2, 3, 7, 100)),
        accumulation=choice((1, 1, 2, 3)),
        epochs=1 if last else choice((2, 1, 3)),
        parts=parts,
        frozen=sparse,
        given=choice(("factory", "factory", "module")),
        loss=loss,
        weights=loss != "temperature" and _one_in(3, random),
        optimizer=name,
        options=options,
        groups=choice((None, None, "by name", "by depth")),
        schedule=schedule,
        interval="epoch" if schedule == "plateau" else choice(("step", "epoch")),
        clip=choice((None, None, 0.2, 10.0)),
        precision=precision,
        data=tuple(data),
        seed=random.randrange(1000),
    )
    reentrant = any(
        part.endswith("re-entrant") for part in parts
    )  # its layers get no gradient where the stem is frozen
    thaw = choice(("on_epoch_begin", "on_train_begin")) if not sparse and not reentrant and _one_in(5, random) else None
    recipe = replace(recipe, thaw=thaw, best=_one_in(5, random))
    if recipe.steps > 1 and _one_in(4, random):
        recipe = replace(recipe, stop=random.randint(1, recipe.steps - 1), every=choice((1, 1, 2)))
    if (
        "adjacent" in recipe.parts
    ):  # torch's fused optimizers write beside such parameters on CPUs: its reference is wrong
        recipe = replace(recipe, options={name: value for name, value in recipe.options.items() if name != "fused"})
    recipe = replace(recipe, features=choice(("arrays", *COLUMNS)))
    # Draws that came later are at the end, so that a seed gives the recipe that it gave before, but for these.
    if recipe.loss in _LOSSES_OF_MAIN and _one_in(3, random):
        recipe = replace(recipe, returns=choice(RETURNS[1:]))
    if recipe.loss == "mse" and not recipe.weights and _one_in(2, random):
        recipe = replace(recipe, loss="scaled")
    return replace(recipe, counts=_one_in(3, random))


def _one_in(count: int, random: Random) -> bool:
    return random.randrange(count) == 0


def _strategy(random: Random) -> tuple[str, dict[str, str], int]:
    """A strategy, what is set for it, and for how many ranks."""
    choice = random.choice
    world = choice((1, 2, 2, 3, 3, 4))
    kind = choice(("ps", "ps", "ps", "collective", "collective", "collective", "decoupled", "rooted", "other"))
    settings: dict[str, str] = {}
    if kind == "other":
        return choice(OTHERS), settings, world
    if kind == "ps":
        settings["ps.batching"] = choice(BATCHINGS)
        if _one_in(2, random):
            settings["ps.pushBatching"] = choice([policy for policy in BATCHINGS if policy != "paper"])
        if set(settings.values()) & {"greedy1", "greedy2", "ibatch", "optimal"}:
            settings["ps.profileIterations"] = choice(("1", "3"))
        if _one_in(3, random):
            settings["compression"] = choice(COMPRESSIONS)
        return "ps", settings, world
    settings["collective.bucket"] = choice(("4B", "100B", "4MiB"))
    if _one_in(2, random):
        settings["collective.block"] = choice(("4B", "64B"))
    if kind == "rooted":
        settings["collective.loop"] = choice(("root", "root-overlap"))
        return choice(ROOTED), settings, world
    strategy = choice(DECOUPLED if kind == "decoupled" else COLLECTIVES)
    if kind == "decoupled":
        settings["collective.loop"] = "decoupled"
        if _one_in(4, random):
            settings["collective.batching"] = "ibatch"
    elif strategy in ROOTED and _one_in(2, random):
        settings["collective.resync"] = "2"
    if strategy == "hitopk" or (kind != "decoupled" and strategy in COMPRESSING and _one_in(3, random)):
        settings["compression"] = choice(COMPRESSIONS)
    if strategy in ("hierarchical", "hitopk"):
        world = max(world, 2)
        settings["topology"] = "hosts:2x2" if world == 4 and _one_in(2, random) else f"hosts:1x{world}"
    if strategy == "bml" and world == 4 and _one_in(2, random):
        settings.update({"topology": "bcube:2,2", "rails": "lo,lo"})
    return strategy, settings, world

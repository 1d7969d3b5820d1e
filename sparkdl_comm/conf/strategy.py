"""Strategy names as people write them: ``ring``, ``ring+decoupled``, ``ring+decoupled+ibatch``, ``lp+root``,
``ps+layerwise``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.conf.forms import form, policy
from sparkdl_comm.errors import nearest

#: The strategy that chooses among others during a fit, and the one that takes the cheapest collective for each bucket.
AUTO, CHEAPEST = "auto", "cheapest"
#: Hierarchical top-k, and MLfabric.
HITOPK, FABRIC = "hitopk", "fabric"
#: Name of the parameter server. The name of a batching may follow.
SERVER = "ps"
#: Strategy of fits that name none, where ps does not suit.
RING = "ring"
#: Name of the batching that iBatch's planner makes.
IBATCH = "ibatch"
#: Suffixes of a collective's name: the decoupled loop, and the decoupled loop with planned buckets.
DECOUPLED, DECOUPLED_IBATCH = "+decoupled", f"+decoupled+{IBATCH}"

#: Loops of collectives other than all-reduce. They may be a suffix of a name too.
OTHER_LOOPS = ("decoupled", "root", "root-overlap")


@dataclass(frozen=True)
class NamedStrategy:
    """Parsed name: the ``strategy`` alone, and the values of ``loop``, ``batching`` and ``ps_batching`` that its suffix
    sets.

    These are fields of :class:`~sparkdl_comm.conf.CommConf`, "" if the name does not set them.
    """

    strategy: str
    loop: str = ""
    batching: str = ""
    ps_batching: str = ""

    @classmethod
    def parse(cls, text: str) -> NamedStrategy:
        """Parse a name. Does not check that the strategy exists.

        :raises ValueError: the suffix is unknown. The message continues "must be".
        """
        name, plus, rest = text.partition("+")
        if not name:
            raise ValueError("a name, not empty")
        if not plus:
            return cls(name)
        if name == SERVER:
            try:
                return cls(name, ps_batching=policy(rest))
            except ValueError as error:
                raise ValueError(f"{SERVER}, or {SERVER}+BATCHING with {error}") from None
        if plus + rest == DECOUPLED_IBATCH:
            return cls(name, loop="decoupled", batching=IBATCH)
        if rest not in OTHER_LOOPS:
            forms = (*(f"{name}+{loop}" for loop in OTHER_LOOPS), f"{name}{DECOUPLED_IBATCH}")
            raise ValueError(f"{name}, {' or '.join(forms)}{nearest(text, forms)}")
        return cls(name, loop=rest)


def loop_name(strategy: str, loop: str, batching: str) -> str:
    """Return a collective's name with its loop, as :meth:`NamedStrategy.parse` reads it.

    :param loop: ``collective.loop``.
    :param batching: ``collective.batching``.
    """
    suffixes = ([loop] if loop in OTHER_LOOPS else []) + ([batching] if batching == IBATCH else [])
    return "+".join([strategy, *suffixes])


@form("NAME|NAME+LOOP|NAME+decoupled+ibatch|ps+BATCHING")
def strategy_name(text: str) -> str:
    """Return ``text`` after a check of its form."""
    NamedStrategy.parse(text)
    return text

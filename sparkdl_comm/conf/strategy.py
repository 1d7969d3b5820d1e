"""Names of strategies as people write them: ``ring``, ``ring+decoupled``, ``ring+decoupled+ibatch``, ``lp+root``,
``ps+layerwise``."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.conf import values
from sparkdl_comm.errors import nearest

#: The parameter server's name. The name of its batching may follow.
SERVER = "ps"
#: The batching of which iBatch's planner makes the plan.
PLANNED = "ibatch"
#: What may follow the name of a collective: its two halves are apart; and their buckets are planned, too.
DECOUPLED, BATCHED = "+decoupled", f"+decoupled+{PLANNED}"


#: Loops of collectives beside all-reduce, which may follow a name, too.
OTHER_LOOPS = ("decoupled", "root", "root-overlap")


@dataclass(frozen=True)
class NamedStrategy:
    """A name taken apart: the ``strategy`` alone, and what the rest says of ``loop``, ``batching`` and ``ps_batching``.

    These are fields of :class:`~sparkdl_comm.conf.CommConf`; "" where the name says nothing of one.
    """

    strategy: str
    loop: str = ""
    batching: str = ""
    ps_batching: str = ""

    @classmethod
    def parse(cls, text: str) -> NamedStrategy:
        """Take a name apart. Whether there is such a strategy, the strategies know.

        :raises ValueError: what follows the first + says nothing; the message follows "must be".
        """
        name, plus, rest = text.partition("+")
        if not name:
            raise ValueError("a name, not empty")
        if not plus:
            return cls(name)
        if name == SERVER:
            try:
                return cls(name, ps_batching=values.policy(rest))
            except ValueError as error:
                raise ValueError(f"{SERVER}, or {SERVER}+BATCHING with {error}") from None
        if plus + rest == BATCHED:
            return cls(name, loop="decoupled", batching=PLANNED)
        if rest not in OTHER_LOOPS:
            forms = (*(f"{name}+{loop}" for loop in OTHER_LOOPS), f"{name}{BATCHED}")
            raise ValueError(f"{name}, {' or '.join(forms)}{nearest(text, forms)}")
        return cls(name, loop=rest)


def loop_name(strategy: str, loop: str, batching: str) -> str:
    """Return a collective's name with its loop, as :meth:`NamedStrategy.parse` takes it.

    :param loop: ``collective.loop``. :param batching: ``collective.batching``.
    """
    followed = ([loop] if loop in OTHER_LOOPS else []) + ([batching] if batching == PLANNED else [])
    return "+".join([strategy, *followed])


def name(text: str) -> str:
    """Return a name of which only the form was checked."""
    NamedStrategy.parse(text)
    return text

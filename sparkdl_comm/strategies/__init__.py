"""How gradients become the parameters of the next step.

``base.py`` is the interface, with the order of its calls, and the register; ``registry.py`` finds the class that the
settings name. Every rank updates all parameters (``replicated.py``): ``all_reduce.py`` by torch.distributed,
``collective.py`` by the collectives of this package. One rank updates all: ``rooted.py``. Each updates a part:
``decoupled.py`` by collectives, ``ps/`` by servers. A server updates all, and steps are not common to the ranks
(``asynchronous.py``): ``fabric.py``. One of them at a time, which a fit chooses: ``chosen.py`` (``candidates.py``,
``choice.py``, ``step_watch.py``, ``succession.py``), ``chosen_by_epoch.py`` with the fabric among them, and ``batched.py``
between two ways to cut buckets (``bucket_planner.py``). ``exchange.py`` is what ranks do with a bucket of gradients or
parameters, ``arrivals.py`` how forward waits for the latter. ``gradients.py`` clips and unscales whatever the strategy;
``trace.py`` notes what a rank did and when.
"""

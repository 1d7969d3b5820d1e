"""One fit as a Spark job.

On the driver: ``session.py`` and ``slots.py`` check the session before anything runs; ``launch.py`` starts the ranks,
one per task of a barrier stage, ``slot_watch.py``, ``admission.py`` and ``interrupt.py`` see to it that they start, wait
for slots and end; ``restart.py`` starts them again; ``driver_listener.py`` is where they report, ``summary.py`` what is
made of their reports. On executors: ``import_check.py`` looks whether the package is there; ``task.py`` is what all
ranks do, ``rank.py`` one that trains and ``function.py`` one that runs a user's own function; ``driver_client.py``
and ``output.py`` talk to the driver. ``gpu.py`` finds a task's GPU; ``memory.py`` names the
limits that executors are killed by. ``local.py`` runs ranks as processes of the driver's machine. ``module_broadcast.py``
takes modules to executors, as ``pickling.py`` makes them bytes; ``broadcasts.py`` ends what was broadcast, and ``shipped.py``
says what executors lack. ``trained.py`` makes the driver's module. ``arrow_batches.py`` bounds the batches of rows, and
``row_sets.py`` knows which rows executors have. ``description.py`` is what the Spark UI shows.
"""

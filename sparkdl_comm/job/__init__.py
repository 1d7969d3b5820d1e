"""Runs one fit as a Spark job.

On the driver:

- ``session.py`` and ``slots.py`` check the session before anything runs. ``slots.py`` also queues fits that run at the same
  time, and cancels a stage that gets no slots.
- ``launch.py`` starts the ranks, one per task of a barrier stage. ``restart.py`` starts them again after a loss,
  and explains the memory limits that kill executors.
- ``interrupt.py`` handles Ctrl-C, and labels the jobs in the Spark UI.
- ``driver_listener.py`` receives the ranks' connections. ``summary.py`` makes the summary from their reports.
- ``arrow_batches.py`` bounds the size of Arrow batches. ``cached_rows.py`` has ranks read a named cache.
- ``broadcasts.py`` sends modules and functions to executors, pickled by ``shipping.py``, and removes broadcasts.
- ``trained_module.py`` makes the driver's module and loads the trained tensors into it.
- ``local.py`` runs ranks as processes of the driver's machine.

On executors:

- ``import_check.py`` checks that the package can be imported. ``shipping.py`` reports missing modules of the user.
- ``task.py`` has the steps that all ranks share. ``rank.py`` trains a model, and ``function.py`` runs a user's
  function.
- ``driver_client.py`` and ``output.py`` send progress, tensors and printed lines to the driver.
- ``gpu.py`` finds a task's GPU.
"""

"""The gang: the ranks of one fit, how they connect, communicate, and learn of failures.

- ``gang.py`` is a rank's interface to all of it. ``members.py`` describes the other ranks.
- ``listen.py`` chooses NIC and port, and admits peers that prove the gang's secret by ``handshake.py``. ``frames.py``
  defines the messages on these connections.
- ``control.py`` decides which failure was first; ``failure.py`` classifies and serializes failures. ``posted_work.py``
  is the work queue of the control thread and of the collectives' engine.
- ``store.py`` is a torch.distributed store on ``key_value_store.py`` at rank 0. ``exchange.py`` and
  ``process_group.py`` use it.
- ``tensors.py`` serializes tensors and Python values without pickle.
"""

"""What runs plans: ``base.py`` is the interface, ``choose.py`` takes one of the two engines.

``sockets.py``: over authenticated TCP connections, one per peer and rail (``links.py``, ``connection.py``,
``rail.py``), on tensors of the CPU as plans address them (``memory.py``). ``torch_p2p.py``: by torch.distributed's
sends and receives, NCCL's for CUDA. ``job.py``: one collective under way.
"""

"""Engines, which run plans: ``base.py`` is the interface, and ``collectives/group.py`` picks one of the two engines.

``sockets.py`` uses authenticated TCP connections, one per peer and rail (``connection.py``), for CPU tensors.
``torch_p2p.py`` uses torch.distributed's sends and receives, with NCCL for CUDA. ``job.py`` is one collective under
way, and its memory.
"""

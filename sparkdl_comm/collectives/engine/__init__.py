"""Engines, which run plans: ``base.py`` is the interface, and ``collectives/group.py`` picks one of the two engines.

``sockets.py`` uses authenticated TCP connections, one per peer and rail (``links.py``, ``connection.py``, ``rail.py``),
for CPU tensors. ``memory.py`` addresses the tensors as plans do. ``torch_p2p.py`` uses torch.distributed's sends and
receives, with NCCL for CUDA. ``job.py`` is one collective under way.
"""

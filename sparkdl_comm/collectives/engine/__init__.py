"""What runs plans: ``sockets.py`` over authenticated TCP connections, one per peer and rail, on tensors of the CPU."""

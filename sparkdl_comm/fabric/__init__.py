"""MLfabric: asynchronous training whose transfers a scheduler orders, aggregates and replicates by what the network can carry.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", VLDB 2020.

``core/`` is the scheduler as pure code: events in, decisions out.
"""

"""The ranks of one fit: how they meet, talk, and learn that one of them failed.

``gang.py`` is what a rank has of it all. ``members.py``: who the others are. ``credentials.py``: what it shows them.
``listen.py``: on which NIC and port;
``acceptor.py`` lets in whoever proves the gang's secret by the ``handshake.py``; ``frames.py``: what is said
afterwards. ``control.py`` settles which failure was first, ``failure.py`` is how it travels; its thread, as that of a
collectives' engine, runs ``posted_work.py``. ``store.py`` is
torch.distributed's store, on the ``key_value_store.py`` at rank 0, reached by ``store_messages.py``; ``exchange.py`` and
``process_group.py`` use it.
What travels is made of ``tensors.py`` and ``values.py``, without pickle; ``torch_errors.py`` reads torch's errors;
``fork.py`` keeps forked children from holding connections open.
"""

"""The executor's JVM, as its Python worker reaches it.

``bridge.py`` is the connection, a Unix socket to the plugin. ``session.py`` sends the parameter server's requests over it.
``planner.py`` runs iBatch's planner in a separate JVM, without a session.
"""

"""Parameters as ranges of flat memory, and module state outside of them.

- ``parameter_space.py`` places parameters in a flat vector, by names and shapes. ``flat.py`` binds a module to two such
  vectors, of values and of gradients, and signals that a gradient is ready.
- ``wait_on_use.py`` makes forward wait for parameters that have not arrived yet.
- ``module_state.py``, ``untrained_state.py`` and ``sync_batch_norm.py`` handle buffers, frozen parameters and extra
  state.
"""

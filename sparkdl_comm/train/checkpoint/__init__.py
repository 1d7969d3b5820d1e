"""Checkpoints of a training run.

``saver.py`` decides when to write and what. ``restore.py`` resumes from a checkpoint. ``checkpoint_directory.py``
defines the layout. The files are in a :mod:`sparkdl_comm.storage`, at a local path or a Hadoop URI.
"""

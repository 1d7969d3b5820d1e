"""Checkpoints of a training run.

``saver.py`` decides when to write and what. ``restore.py`` resumes from a checkpoint. ``checkpoint_directory.py``
defines the layout. ``storage.py`` moves files to and from the directory, a local path or a Hadoop URI.
"""

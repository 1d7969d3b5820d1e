"""Checkpoints of the training: ``saver.py`` decides when and what, ``restore.py`` goes on from one,
``checkpoint_directory.py`` is their layout, ``storage.py`` puts files into the directory, a local one or Hadoop's.
"""

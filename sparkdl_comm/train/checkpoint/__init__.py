"""Checkpoints of the training: ``saver.py`` decides when and what, ``restore.py`` goes on from one,
``checkpoint_folder.py`` is their layout on disk, ``storage.py`` the directory itself, local or Hadoop's.
"""

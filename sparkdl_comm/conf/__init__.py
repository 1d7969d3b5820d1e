"""Settings of a run: the keys ``spark.sparkdl.comm.*``, and the frozen dataclass that holds their values.

- ``keys.py`` and ``fabric.py`` have the table of keys. A row is a :class:`~sparkdl_comm.conf.key.Key`.
- ``values.py``, ``compression.py`` and ``strategy.py`` parse the values.
- ``settings.py`` has the dataclass, :class:`CommConf`.

``python -m sparkdl_comm.conf`` prints the table in the format of Spark's properties files. Its output is
``conf/sparkdl-defaults.conf``.

To add a key: add a row to the table, and a field of the same name to :class:`CommConf`.
"""

from sparkdl_comm.conf.compression import DEFAULT_COMPRESSION, Compression, Schedule
from sparkdl_comm.conf.keys import KEYS, PREFIX
from sparkdl_comm.conf.settings import CommConf, as_text
from sparkdl_comm.conf.values import seconds

__all__ = ["DEFAULT_COMPRESSION", "KEYS", "PREFIX", "CommConf", "Compression", "Schedule", "as_text", "seconds"]

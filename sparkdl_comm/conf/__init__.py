"""Settings of a run: the keys ``spark.sparkdl.comm.*`` and the frozen dataclass they are read into.

``keys.py`` is the table of keys, each a :class:`~sparkdl_comm.conf.key.Key`, with those of ``fabric.py``. ``values.py`` is
what their texts say, ``compression.py`` the same of compression, and ``settings.py`` the dataclass :class:`CommConf`.
``python -m sparkdl_comm.conf`` prints the table in Spark's properties format; that text is ``conf/sparkdl-defaults.conf``.

To add a key: add a row to the table and a field of the same name to :class:`CommConf`.
"""

from sparkdl_comm.conf.compression import DEFAULT_COMPRESSION, Compression, Schedule
from sparkdl_comm.conf.keys import KEYS, PREFIX
from sparkdl_comm.conf.settings import CommConf, as_text
from sparkdl_comm.conf.values import seconds

__all__ = ["DEFAULT_COMPRESSION", "KEYS", "PREFIX", "CommConf", "Compression", "Schedule", "as_text", "seconds"]

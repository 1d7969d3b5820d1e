"""Settings of a run: the keys ``spark.sparkdl.comm.*``, and the frozen dataclass that holds their values.

- ``settings.py`` has the dataclass, :class:`CommConf`. A field declares a key, or is a group of keys from ``groups.py``.
- ``forms.py`` has the declaration of a key, and the forms of values: their parsers and limits. ``compression.py`` and
  ``strategy.py`` have further forms.

``python/make_reference.py`` makes ``conf/sparkdl-defaults.conf`` and the table of keys in ``docs/reference`` from them.
"""

from sparkdl_comm.conf.compression import DEFAULT_COMPRESSION, Compression, CompressionSchedule
from sparkdl_comm.conf.forms import PREFIX, seconds
from sparkdl_comm.conf.settings import KEYS, CommConf, as_text

__all__ = [
    "DEFAULT_COMPRESSION",
    "KEYS",
    "PREFIX",
    "CommConf",
    "Compression",
    "CompressionSchedule",
    "as_text",
    "seconds",
]

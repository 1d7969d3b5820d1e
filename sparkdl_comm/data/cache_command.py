"""``sparkdl-comm cache``: lists and removes the caches of rows on this host."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import ConfError, PersistenceError, nearest


def add_parser(commands: Any) -> None:
    """Add the command ``cache``."""
    cache = commands.add_parser(
        "cache",
        help="list or remove the caches of rows on this host",
        description="Caches that fits with data.cacheName have left on this host. Other hosts have other parts of them.",
    )
    cache.add_argument("--dir", help="spark.sparkdl.comm.data.cacheDir of the fits. Default: that of the key")
    actions = cache.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="name, bytes, last use, and ranks with rows here, of each cache")
    listing.set_defaults(call=_run, name=None)
    removal = actions.add_parser("remove", help="remove a cache from this host")
    removal.add_argument("name", help="of the cache")
    removal.set_defaults(call=_run)


def _run(options: argparse.Namespace) -> int:
    from sparkdl_comm.conf import CommConf
    from sparkdl_comm.data.local_disk import LocalDisk, last_use, reserved_bytes

    conf = CommConf.from_mapping({}, data_cache_dir=options.dir)
    disk = LocalDisk(Path(conf.data.cache_dir).expanduser(), conf.data.cache_limit)
    caches = disk.parts()
    if options.name is None:
        print(f"{len(caches)} caches in {disk.root}")
        for name, parts in sorted(caches.items()):
            size = sum(map(reserved_bytes, parts.values())) / 1e6
            used = datetime.fromtimestamp(max(map(last_use, parts.values()))).isoformat(" ", "minutes")
            print(f"{name:<24} {size:>10.1f} MB  used {used}  ranks {', '.join(map(str, sorted(parts)))}")
        return 0
    if options.name not in caches:
        raise ConfError(f"there is no cache {options.name!r} in {disk.root}{nearest(options.name, caches)}")
    in_use = disk.remove(options.name)
    if in_use:
        raise PersistenceError(f"{options.name}: fits use the rows of ranks {in_use}. Try again when they have ended")
    return 0

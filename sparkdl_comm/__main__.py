"""``python -m sparkdl_comm``: the console script ``sparkdl-comm`` without its being installed."""

import sys

from sparkdl_comm.cli import main

sys.exit(main())

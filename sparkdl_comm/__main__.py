"""``python -m sparkdl_comm`` does the same as the console script ``sparkdl-comm``, which need not be installed."""

import sys

from sparkdl_comm.cli import main

sys.exit(main())

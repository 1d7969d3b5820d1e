"""``python -m sparkdl_comm``: runs the console script ``sparkdl-comm``, even if the script is not installed."""

import sys

from sparkdl_comm.cli import main

sys.exit(main())

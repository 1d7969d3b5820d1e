"""Run ``python python/benchmarks`` for the list of benchmarks."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from benchmarks.command import main

    sys.exit(main(sys.argv[1:]))

"""`python -m phalanx.tracing REQUEST RESULT` answers what a recipe is."""

import sys
from pathlib import Path

from phalanx.tracing.trace import run_trace

if __name__ == "__main__":
    run_trace(Path(sys.argv[1]), Path(sys.argv[2]))

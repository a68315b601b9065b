"""`python -m phalanx.exporter REQUEST RESULT` writes what a request asks for."""

from __future__ import annotations

import sys
from pathlib import Path

from phalanx.exporter.forms import run_export

if __name__ == "__main__":
    run_export(Path(sys.argv[1]), Path(sys.argv[2]))

"""Makes `tests.unit.job.wrong_jobs` importable from any folder and with any pytest import mode."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

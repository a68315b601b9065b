"""The engine's processes: `python -m phalanx.engine RUN_DIR` is a rank,
`python -m phalanx.engine trace REQUEST RESULT` answers what a recipe is."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    if argv[0] == "trace":
        from phalanx.engine.trace import run_trace

        run_trace(Path(argv[1]), Path(argv[2]))
        return 0
    from phalanx.engine.worker import run_worker

    attempt = int(os.environ.get("PHALANX_ATTEMPT", "0"))
    return 0 if run_worker(Path(argv[0]), attempt=attempt) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

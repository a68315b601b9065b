"""The engine's processes: `python -m phalanx.engine launch FD` starts ranks as forks of itself,
`python -m phalanx.engine RUN_DIR` is a rank where that is not possible,
`python -m phalanx.engine joined [RECORD]` is a rank among those that torchrun has started,
`python -m phalanx.engine benchmark REQUEST RESULT` runs a trained model in the loop,
`python -m phalanx.engine collect REQUEST RESULT` makes data for a recipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    if argv[0] == "benchmark":
        from phalanx.engine.rank.closed_loop import run_benchmark

        run_benchmark(Path(argv[1]), Path(argv[2]))
        return 0
    if argv[0] == "collect":
        from phalanx.engine.rank.collect import run_collect

        run_collect(Path(argv[1]), Path(argv[2]))
        return 0
    if argv[0] == "joined":
        from phalanx.engine.launcher.torchrun_rank import run_joined

        return run_joined(argv[1:])
    if argv[0] == "launch":
        from phalanx.engine.launcher.serve import serve

        serve(int(argv[1]))
        return 0
    from phalanx.engine.launcher.rank_process import run_rank
    from phalanx.engine.process.heartbeat import HEART

    HEART.write_where_asked()
    return run_rank(Path(argv[0]), int(os.environ.get("PHALANX_ATTEMPT", "0")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

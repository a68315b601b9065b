"""Becomes another program, as one rank of a launched script. Run by path, not imported:

python -I -S rank_process.py PARENT PYTHON -u SCRIPT.py ARGS...

Between fork and exec the command itself may run no code of its own (it may have threads), so this
stands between: twenty milliseconds, and then it is the script. Only the standard library is here.
"""

import ctypes
import os
import signal
import sys

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2); stays across exec


def become(parent: int, argv: list[str]) -> None:
    """Replace this process by `argv`; on Linux it is killed when the command dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)
    if "SLURM_JOB_ID" in os.environ:
        # Slurm sends it to all processes of a step; who listens to it is not the worse for this.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.execvp(argv[0], argv)  # noqa: S606


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])

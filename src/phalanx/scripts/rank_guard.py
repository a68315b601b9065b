"""Ends what the ranks of a killed command have left behind. Run by path, not imported:

python -I -S rank_guard.py SESSION...     standard input is a pipe that only the command holds

Linux ends the ranks with the command (rank_process.py), but not the processes that they started.
"""

import os
import signal
import sys
from contextlib import suppress


def wait_and_end(sessions: list[int]) -> None:
    """Wait until the command is gone, then end the sessions of its ranks."""
    while os.read(0, 1):
        continue
    for session in sessions:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    wait_and_end([int(word) for word in sys.argv[1:]])

"""How far a long piece of a recipe's work is, told to the command that waits for it."""

from __future__ import annotations

import os
from pathlib import Path

PROGRESS_FILE = "PHALANX_PROGRESS"
"""Names the file that the waiting command looks at."""


def report(text: str) -> None:
    """Say what is being done, in a few words: shown on a terminal until the next call. As long as
    something new is said, nobody takes the work for stuck."""
    named = os.environ.get(PROGRESS_FILE)
    if named is None:
        return
    temporary = Path(f"{named}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(named)

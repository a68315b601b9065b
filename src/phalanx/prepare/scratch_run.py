"""Where runs are written that are looked at and thrown away, by `verify` and `bench`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.errors import UserError


class RunFailedError(UserError):
    """A run failed; its Findings point into its run directory."""


@contextmanager
def run_folder(verb: str, keep: Path | None = None) -> Iterator[Path]:
    """A folder for runs; removed afterwards unless it is to be kept, or a run failed and its logs
    are wanted."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix=f"phalanx-{verb}-"))
    is_wanted = False
    try:
        yield folder
    except RunFailedError:
        is_wanted = True
        raise
    finally:
        if not is_wanted:
            shutil.rmtree(folder, ignore_errors=True)

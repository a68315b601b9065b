"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(final: Path) -> Iterator[Path]:
    """Give a temporary path in the same folder to write to, which then becomes `final` in one
    rename, in place of what was there. The folder is made where it is not there yet."""
    final.parent.mkdir(parents=True, exist_ok=True)
    making = final.with_name(f".{os.getpid()}.{secrets.token_hex(3)}.{final.name}")
    try:
        yield making
        making.replace(final)
    finally:
        making.unlink(missing_ok=True)

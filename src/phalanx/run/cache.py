"""Where things that can be found out again are kept for a user, besides the runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """A user's folder for one kind of such things, which may not be there yet."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # freedesktop.org, "XDG Base Directory": a relative path is ignored.
    root = given if given.is_absolute() else Path.home() / ".cache"
    return root / "phalanx" / kind

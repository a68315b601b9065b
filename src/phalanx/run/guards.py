"""Guards of what is not ours: names that leave a folder, and places where something is already."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from pathlib import Path, PurePosixPath

from phalanx.errors import Finding, UserError

# link(2): another file system; one without hard links, or a file of another user's under
# fs.protected_hardlinks; as many names as the file system allows.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def find_inside(folder: Path, name: str) -> Path | None:
    """Return the path that a name from a file or another machine means below `folder`. None if the
    name leaves the folder: absolute, upwards, through a link, or no possible name."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        return None
    try:
        root = folder.resolve()
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL, a loop of links
        return None
    return path if path.is_relative_to(root) and path != root else None


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where no hard link is possible. Raises FileExistsError
    if there is something already."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    else:
        return
    with source.open("rb") as old, target.open("xb") as new:
        try:
            shutil.copyfileobj(old, new, 2**20)
        except BaseException:
            target.unlink()
            raise


def rename_new(folder: Path, final: Path) -> None:
    """Rename a folder to a name that nothing has, or an empty folder; raises UserError."""
    try:
        folder.rename(final)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise UserError(
            Finding(
                slug="folder-exists",
                what=f"`{final}` already exists",
                why="it appeared while this was being written, and nothing is overwritten",
                fix=f"run it again with another folder, such as {final}_2",
            )
        ) from error


def require_link(link: Path) -> None:
    """Raise UserError if something else is where a link to the newest run is made."""
    if link.exists() and not link.is_symlink():
        raise UserError(
            Finding(
                slug="run-link",
                what=f"`{link}` is a {'folder' if link.is_dir() else 'file'}, not a link",
                why="the link to the newest run is made there, and nothing is overwritten",
                fix=f"mv {shlex.quote(str(link))} {shlex.quote(f'{link}_2')}",
            )
        )

"""What runs on the other machine: sent on stdin to its Python, never installed there.

This file comes first, then `far_look.py` or `far_runs.py`, then the request (`program.py`). Only
Python's own library, 3.11 or newer. Each answer is a line of JSON behind a mark, because a login
shell may print what it likes. What must stay secret comes in with the request, on stdin, and goes
into the environment of the run: into no file, log or command line.

PATH/                             everything of ours
  PROJECT/                        a folder that was pushed; runs/ below it
  env/ wheels/ wheelhouse/        the environment and what it was made of
  started/RUN/                    run.json pids.json exit output.log
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "phalanx-answer:"


def say(**record: Any) -> None:
    """One line of the answer."""
    sys.stdout.buffer.write(f"{MARK}{json.dumps(record)}\n".encode())
    sys.stdout.buffer.flush()


def answer(text: str, operations: dict[str, Callable[..., None]]) -> None:
    """Do what a request asks."""
    request = json.loads(text)
    operation = operations[request.pop("operation")]
    try:
        operation(**request)
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more
    except OSError as error:
        say(error=f"{error.strerror}: {error.filename}" if error.filename else str(error))
    except RuntimeError as error:  # `~nobody`
        say(error=str(error))


def there(path: str) -> Path:
    """A path of this machine: relative ones are below the home folder."""
    return Path.home() / Path(path).expanduser() if path.startswith("~") else Path.home() / path


def read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_json(path: Path, record: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(path)

"""A question to the engine that a fork of the launcher answers: torch is imported already."""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from typing import NoReturn

import torch

from phalanx.engine.launcher.fork import become_new
from phalanx.run.launching import Ask
from phalanx.run.parent_death import end_with_parent


class Question:
    """Begins to be answered when it is made."""

    def __init__(self, ask: Ask) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            _answer(ask)

    def wait(self) -> int:
        """The exit code of the fork."""
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status)


def _answer(ask: Ask) -> NoReturn:
    """Never returns: what the stack below belongs to is the launcher's."""
    code = 1
    request, result, said = ask.files
    try:
        with said.open("wb", buffering=0) as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
        end_with_parent()
        become_new(ask.environment)
        gc.freeze()
        gc.enable()
        # The launcher was loaded with one, so that it can be forked.
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or cores))
        module, *words = ask.words
        sys.argv[1:] = [*words, str(request), str(result)]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(code)

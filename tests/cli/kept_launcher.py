"""One launcher for many commands of a test: each of them would import torch anew.

Its ranks and answers are forks with the environment of the command that asks, as always; only the
folder is that of the first, so all commands of such a test run in one folder.
"""

import contextlib
import os
import runpy
import sys
import threading
from pathlib import Path

import pytest

from phalanx.prepare import engine_child
from phalanx.prepare.compile_cache import early_variables
from phalanx.prepare.launcher import Launcher

# Modules that make a launcher.
_MAKERS = ("verbs.verify", "verbs.bench", "verbs.evaluate", "verbs.train", "places.torchrun")


class KeptLauncher(Launcher):
    """Goes on when a command is done with it."""

    def __exit__(self, *error):
        if self._has_ranks or error[0] is not None:
            self.close()

    def _must_read_anew(self, environment):
        self._environment.pop("PYTEST_CURRENT_TEST", None)  # another for each test
        rest = {name: environment[name] for name in environment if name != "PYTEST_CURRENT_TEST"}
        return super()._must_read_anew(rest)


@contextlib.contextmanager
def kept_launcher(monkeypatch):
    """Within it commands share a launcher; exports are made by the test's own process."""
    from tests.fixtures.export_here import answer_here  # torch

    kept = KeptLauncher()
    # By this thread: it ends with the one that started it, and plans ask from threads of their own.
    kept.start(early_variables())
    one_at_a_time = threading.Lock()
    answer_alone = engine_child._run

    def answer(argv, env, said, reports):
        words, files = argv[2:-2], map(Path, argv[-2:])
        with one_at_a_time:
            code = kept.ask(words, (*files, said), env, reports.is_patient)
        return answer_alone(argv, env, said, reports) if code is None else code

    for module in _MAKERS:
        monkeypatch.setattr(f"phalanx.{module}.Launcher", lambda: kept, raising=False)
    monkeypatch.setattr(engine_child, "_run", answer)
    answer_here(monkeypatch)
    try:
        yield
    finally:
        kept.close()


@contextlib.contextmanager
def answers_here(monkeypatch):
    """Within it the test's own process answers, which has imported a recipe's packages already."""
    from tests.fixtures.export_here import answer_here

    def answer(argv, env, said, reports):
        said.touch()
        with pytest.MonkeyPatch.context() as patch:
            for name in env.keys() - os.environ.keys():
                patch.setenv(name, env[name])
            patch.setattr(sys, "argv", argv[2:])
            try:
                runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
            except SystemExit as end:
                return int(end.code or 0)
            return 0

    monkeypatch.setattr(engine_child, "_run", answer)
    answer_here(monkeypatch)
    yield


@contextlib.contextmanager
def answers_in(folder):
    """Within it commands run in this folder, with a cache of their own there, and are answered by
    the test's own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with answers_here(patch):
            yield folder

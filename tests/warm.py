"""Processes that have torch already: forks of one that has imported it, as ranks are of a launcher.
To import it costs two seconds of a core, and most tests would pay that again."""

import multiprocessing
import os

# The last is what the first optimizer of a process imports.
_IMPORTED = ["phalanx.engine.rank.worker", "phalanx.tracing.trace", "torch._dynamo"]


def warm_processes():
    """A `multiprocessing` context whose processes begin with it; nothing else of this process is
    theirs, and their environment is the one of the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def take_environment(environment):
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)

"""Processes that have torch already: forks of one that has imported it, as ranks are of a launcher.
To import it costs two seconds of a core, and most tests would pay that again."""

import multiprocessing
import os
import sys
from pathlib import Path

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


def answering(run):
    """`engine_child._run` with questions about recipes answered by a warm process; others, by
    `run` itself."""

    def answer(argv, env, said, reports):
        if argv[1:4] != ["-m", "phalanx.engine", "trace"]:
            return run(argv, env, said, reports)
        given = (argv[3:], env, str(Path.cwd()), str(said))
        process = warm_processes().Process(target=_trace, args=given)
        process.start()
        try:
            while reports.is_patient():
                process.join(0.005)  # a test allows an answer 10 ms, to see it run out
                if process.exitcode is not None:
                    return process.exitcode
            raise TimeoutError
        finally:
            process.kill()
            process.join()

    return answer


def _trace(words, environment, folder, said):
    for descriptor, path in ((1, os.devnull), (2, said)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    take_environment(environment)
    os.chdir(folder)
    sys.path[0] = folder  # as `-m` has it
    from phalanx.engine.__main__ import main

    sys.exit(main(words))

"""Roll-outs in several processes: simulators step beside each other, one model answers them all.

An episode is a generator function of the recipe's, at the top of a module: it yields what the model
is to see, is sent what the model answers, and returns a result. Episodes that ask nobody, such as
those of a scripted expert, are plain functions.

    def drive(episode):
        environment = open_environment(episode.task)
        seen = environment.reset(episode.seed)
        while not done:
            chunk = yield seen
            ...
        return result

    results = roll_out(drive, episodes, answer=model_answers, workers=2, together=8)
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.run.parent_death import end_with_parent

Drive = Callable[[Any], Any]
"""From an episode to its result, or to a generator that asks for answers and returns a result."""
Answer = Callable[[list[Any]], Sequence[Any]]
"""One answer for each of the things that were seen, by the model, in one batch."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Turn(NamedTuple):
    """What a process has to say after it took all its episodes one answer further."""

    seen: dict[int, Any]
    results: dict[int, Any]
    failure: UserError | str | None = None


class _Reply(NamedTuple):
    """What it does next: begin these episodes, and go on with those."""

    begin: dict[int, Any]
    answers: dict[int, Any]


def roll_out(
    drive: Drive,
    episodes: Sequence[Any],
    *,
    answer: Answer | None = None,
    workers: int = 1,
    together: int = 1,
    done: Callable[[int], None] = lambda count: None,
) -> list[Any]:
    """The results of all episodes in their order. Each of `workers` processes has up to `together`
    of them under way, so that the model is asked for many at once; `done` is told how many are
    over. Raises UserError where a process dies, and what an episode raises."""
    waiting = dict(enumerate(episodes))
    results: dict[int, Any] = {}
    with _processes(drive, min(workers, len(episodes))) as free:
        for connection in free:
            connection.send(_Reply(_take(waiting, together), {}))
        while free:
            turns: dict[Any, _Turn] = {ready: _hear(ready, free) for ready in wait(list(free))}
            for turn in turns.values():
                results |= turn.results
            if any(turn.results for turn in turns.values()):
                done(len(results))
            answers = iter(_ask(answer, [seen for t in turns.values() for seen in t.seen.values()]))
            for connection, turn in turns.items():
                given = {index: next(answers) for index in turn.seen}
                begin = _take(waiting, together - len(given))
                if begin or given:
                    connection.send(_Reply(begin, given))
                else:
                    connection.close()
                    free.pop(connection).join()
    return [results[index] for index in range(len(episodes))]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return cores or 1


def _ask(answer: Answer | None, seen: list[Any]) -> Sequence[Any]:
    if not seen:
        return []
    assert answer is not None, "an episode that yields needs somebody who answers"
    return answer(seen)


def _take(waiting: dict[int, Any], count: int) -> dict[int, Any]:
    return {index: waiting.pop(index) for index in list(waiting)[:count]}


def _hear(connection: Any, free: dict[Any, Any]) -> _Turn:
    try:
        turn: _Turn = connection.recv()
    except (EOFError, ConnectionResetError):
        process = free[connection]
        process.join()
        raise UserError(_died(process.exitcode), exit_code=ExitCode.FAILED) from None
    if isinstance(turn.failure, UserError):
        raise turn.failure
    if turn.failure is not None:
        raise RuntimeError(f"an episode failed:\n{turn.failure}")
    return turn


@contextmanager
def _processes(drive: Drive, count: int) -> Iterator[dict[Any, Any]]:
    """Connections to new processes. New ones, not forks: torch and a simulator's drawing live on
    threads that a fork would lose."""
    context = multiprocessing.get_context("spawn")
    started: dict[Any, Any] = {}
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ |= dict.fromkeys(_THREADS, "1")  # there are as many processes as cores already
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, drive, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            started[ours] = process
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    remaining = dict(started)
    try:
        yield remaining
    finally:
        for connection, process in started.items():
            connection.close()
            if connection in remaining:  # something went wrong
                process.terminate()
            process.join()
            process.close()


def _work(connection: Connection[Any, Any], drive: Drive, parent: int) -> None:
    """A process of roll-outs: as many episodes at a time as it is given."""
    end_with_parent(signal.SIGKILL, parent=parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the command's to answer
    live: dict[int, Any] = {}
    while True:
        try:
            reply: _Reply = connection.recv()
        except EOFError:  # nothing is left
            return
        try:
            connection.send(_turn(drive, live, reply))
        except UserError as error:
            connection.send(_Turn({}, {}, error))
        except Exception:
            connection.send(_Turn({}, {}, traceback.format_exc()))


def _turn(drive: Drive, live: dict[int, Any], reply: _Reply) -> _Turn:
    turn = _Turn({}, {})
    for index, episode in reply.begin.items():
        begun = drive(episode)
        if inspect.isgenerator(begun):
            live[index] = begun
            _advance(live, index, None, turn)
        else:
            turn.results[index] = begun
    for index, given in reply.answers.items():
        _advance(live, index, given, turn)
    return turn


def _advance(live: dict[int, Any], index: int, given: Any, turn: _Turn) -> None:
    try:
        turn.seen[index] = live[index].send(given)
    except StopIteration as stop:
        turn.results[index] = stop.value
        del live[index]


def _died(code: int | None) -> Finding:
    return Finding(
        slug="rollout-died",
        what=f"a process of roll-outs ended with exit code {code}",
        why="its simulator crashed, or the machine has no memory left for so many",
        fix="--workers 1",
    )

"""The memory that ranks write where they are into, and what is made of it."""

import os
import subprocess
import sys

from phalanx.codec import from_json, to_json
from phalanx.run import heartbeat
from phalanx.run.heartbeat import Beat, Board, Heart, Part, Phase


def test_a_fork_is_seen_where_it_is(monkeypatch):
    board = Board([4, 5])
    pid = os.fork()
    if pid == 0:
        heart = Heart()
        heart.write_to(board.cells(1))
        heart.begin(Phase.STEP, 40)
        heart.step_done(41)
        heart.at(Part.FORWARD)
        os._exit(0)
    os.waitpid(pid, 0)
    untouched, moved = board.read()
    assert (untouched.rank, untouched.phase, untouched.step) == (4, Phase.START, 0)
    assert (moved.rank, moved.phase, moved.part) == (5, Phase.STEP, Part.FORWARD)
    assert (moved.step, moved.first_step) == (41, 40)
    assert moved.place == "the forward of step 42"
    assert from_json(Beat, to_json(moved)) == moved


def test_a_process_of_its_own_is_seen_too():
    board = Board([0, 1])
    code = (
        "from phalanx.engine.process.heartbeat import HEART;"
        "from phalanx.run.heartbeat import Phase;"
        "HEART.write_where_asked(); HEART.begin(Phase.SAVE, 7)"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **board.environment(1)},
        pass_fds=[board.descriptor],
        check=True,
    )
    assert [(beat.phase, beat.step) for beat in board.read()] == [
        (Phase.START, 0),
        (Phase.SAVE, 7),
    ]


def test_silence_is_counted_while_somebody_looks_and_ends_with_a_beat(monkeypatch):
    now = 100.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    board, heart = Board([0]), Heart()
    heart.write_to(board.cells(0))
    silences = []
    for passed in (0.0, 0.5, 0.5, 600.0, 0.5):  # nobody looked for ten minutes: a machine slept
        now += passed
        silences.append(board.read()[0].silent_s)
    assert silences == [0.0, 0.5, 1.0, 2.0, 2.5]
    heart.beat()
    now += 0.5
    assert board.read()[0].silent_s == 0.0


def test_time_is_counted_by_part_and_a_phase_gives_the_part_back(monkeypatch):
    now = 0.0
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    board, heart = Board([0]), Heart()
    heart.write_to(board.cells(0))
    heart.begin(Phase.STEP, 0)
    for part, seconds in ((Part.DATA, 1.0), (Part.FORWARD, 2.0), (Part.DATA, 0.5)):
        heart.at(part)
        now += seconds
    with heart.during(Phase.EVALUATE):
        assert board.read()[0].phase is Phase.EVALUATE
        now += 50.0
    beat = board.read()[0]
    assert (beat.phase, beat.part) == (Phase.STEP, Part.DATA)
    assert beat.seconds[Part.DATA] == 1.5
    assert beat.seconds[Part.FORWARD] == 2.0

"""Where the steps of each rank go, from their heartbeats."""

from phalanx.run.heartbeat import Beat, Part, Phase
from phalanx.supervise.pace import PaceMeter
from tests.fixtures.plans import plan_with


def a_plan(ranks=2, device="cpu"):
    return plan_with(ranks=ranks, device=device)


def beat(rank, step, data_s, phase=Phase.STEP):
    seconds = tuple(data_s if part is Part.DATA else 0.5 for part in Part)
    return Beat(rank, 0.0, phase, Part.FORWARD, step, 0, seconds)


def beats(step, *data_s, phase=Phase.STEP):
    return {rank: beat(rank, step, s, phase) for rank, s in enumerate(data_s)}


def test_a_record_is_what_was_spent_between_two_looks():
    meter = PaceMeter(a_plan())
    assert meter.look(beats(0, 0.0, 0.0), 10.0) == []
    assert meter.look(beats(5, 1.0, 2.0), 10.5) == [], "not yet time"
    (record,) = meter.look(beats(10, 2.0, 5.0), 11.5)
    assert record.seconds == 1.5
    data = 2 + record.parts.index("data")
    assert [(row[0], row[1], row[data]) for row in record.ranks] == [(0, 10, 2.0), (1, 10, 5.0)]
    assert record.alone == ["data", "forward", "update"]
    assert meter.look(beats(20, 3.0, 6.0), 15.0) == [], "then every five seconds"
    assert meter.look(beats(20, 3.0, 6.0), 17.0)[0].ranks[0][1] == 10


def test_starting_and_standing_ranks_have_no_pace():
    meter = PaceMeter(a_plan())
    starting = beats(0, 0.0, 0.0, phase=Phase.COMPILE)
    assert meter.look(starting, 0.0) == meter.look(starting, 100.0) == []
    meter.look(beats(1, 1.0, 1.0), 101.0)
    assert meter.look(beats(1, 9.0, 9.0), 200.0) == [], "no step was made"


def test_of_very_many_ranks_there_is_less():
    meter = PaceMeter(a_plan(ranks=800, device="cuda"))
    meter.look(beats(0, 0.0), 0.0)
    (first,) = meter.look(beats(1, 1.0), 2.0)
    assert first.alone == ["data"]
    assert meter.look(beats(2, 2.0), 50.0) == []
    assert meter.look(beats(3, 2.0), 103.0)

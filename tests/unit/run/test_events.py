"""Events on disk: whole lines, whoever died while writing one."""

import json

import pytest

from phalanx.run import events
from phalanx.run.events import KINDS, Event, EventReader, EventWriter, read_events


def stop(writer, reason):
    return writer.write("stop", reason=reason)


def reasons(found):
    return [event.data["reason"] for event in found]


def line(reason, *, time_s, writer="w"):
    return Event("stop", time_s, writer, data={"reason": reason}).to_line()


def test_an_event_survives_its_line():
    event = Event("stop", 12.5, "rank-0", attempt=3, data={"reason": 'a "quoted"\nline'})
    text = event.to_line()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert Event.from_line(text) == event


def test_what_is_written_is_read(tmp_path):
    writer = EventWriter(tmp_path / "events", "rank-0", attempt=2)
    written = [stop(writer, "a"), stop(writer, "b")]
    read = read_events(tmp_path / "events")
    assert reasons(read) == ["a", "b"]
    assert [(e.writer, e.attempt, e.kind) for e in read] == [("rank-0", 2, "stop")] * 2
    assert read[0].time_s == pytest.approx(written[0].time_s, abs=1e-6)


def test_a_half_written_last_line_is_left_until_it_is_whole(tmp_path):
    path = tmp_path / "w.jsonl"
    whole, half = line("a", time_s=1), line("b", time_s=2)
    path.write_text(whole + half[:-5])
    reader = EventReader(tmp_path)
    assert reasons(reader.read()) == ["a"]
    assert reader.read() == []
    with path.open("a") as file:
        file.write(half[-5:])
    assert reasons(reader.read()) == ["b"]


@pytest.mark.parametrize("cut", [1, 10, -1])
def test_a_writer_that_died_within_a_line_costs_that_line_only(tmp_path, cut):
    path = tmp_path / "rank-0.jsonl"
    path.write_text(line("a", time_s=1) + line("lost", time_s=2)[:cut])
    writer = EventWriter(tmp_path, "rank-0", attempt=1)
    stop(writer, "c")
    stop(writer, "d")
    # Cut after its last brace the line lacks nothing but the newline, which the next writer adds.
    expected = ["a", "lost", "c", "d"] if cut == -1 else ["a", "c", "d"]
    assert reasons(read_events(tmp_path)) == expected


def test_a_second_writer_adds_no_empty_line(tmp_path):
    for _ in range(2):
        writer = EventWriter(tmp_path, "rank-0")
        stop(writer, "x")
        writer.close()
    assert len((tmp_path / "rank-0.jsonl").read_text().splitlines()) == 2


def test_bytes_that_are_no_event_are_passed_over(tmp_path):
    good = line("good", time_s=1).encode()
    junk = [b"\0" * 40, b"\xff\xfe", b"{}", b'{"v": 1}', b"[1, 2]", b"17", b"null", b'"text"']
    (tmp_path / "w.jsonl").write_bytes(b"\n".join(junk) + b"\n" + good)
    assert reasons(read_events(tmp_path)) == ["good"]


def test_writers_are_merged_by_time(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text(line("1", time_s=1) + line("4", time_s=4))
    (tmp_path / "rank-1.jsonl").write_text(line("2", time_s=2) + line("5", time_s=5))
    (tmp_path / "supervisor.jsonl").write_text(line("3", time_s=3))
    assert reasons(read_events(tmp_path)) == ["1", "2", "3", "4", "5"]


def test_a_reader_gets_only_what_is_new(tmp_path):
    reader = EventReader(tmp_path)
    assert reader.read() == []
    first = EventWriter(tmp_path, "rank-0")
    stop(first, "a")
    assert reasons(reader.read()) == ["a"]
    assert reader.read() == []
    stop(first, "b")
    stop(EventWriter(tmp_path, "rank-1"), "c")
    assert sorted(reasons(reader.read())) == ["b", "c"]
    assert reader.read() == []


def test_a_folder_that_is_not_there_has_no_events(tmp_path):
    assert read_events(tmp_path / "nowhere") == []


def test_an_undocumented_field_is_refused(tmp_path):
    writer = EventWriter(tmp_path, "rank-0")
    with pytest.raises(AssertionError, match="stop"):
        writer.write("stop", reason="a", colour="red")
    with pytest.raises(KeyError):
        writer.write("no-such-kind")
    assert read_events(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_documented_fields(kind):
    assert KINDS[kind]
    assert all(text.strip() for text in KINDS[kind].values())
    # These names belong to the line itself; a field of the same name would be lost.
    assert not set(KINDS[kind]) & {"v", "t", "kind", "writer"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_its_line(kind):
    data = {name: f"value of {name}" for name in KINDS[kind]}
    event = Event(kind, 1.0, "rank-0", attempt=2, data=data)
    assert Event.from_line(event.to_line()) == event


def test_lines_carry_the_schema_version():
    assert json.loads(line("a", time_s=1))["v"] == events.SCHEMA_VERSION

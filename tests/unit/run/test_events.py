"""Events on disk: whole lines, whoever died while writing one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.run import events
from phalanx.run.event_kinds import KINDS, Change, Death, StopAsked, Unknown, to_fields
from phalanx.run.event_kinds.fields import field_names
from phalanx.run.events import Event, EventReader, EventWriter, read_events
from scripts.make_reference import field_docs
from tests.fixtures.event_lines import line_of, make_event
from tests.fixtures.recorded import recorded


def stop(writer, reason):
    return writer.write(StopAsked(reason=reason))


def reasons(found):
    return [event.body.reason for event in found]


def line(reason, *, time_s, writer="w"):
    return Event(time_s, writer, 0, None, StopAsked(reason=reason)).to_line()


def test_an_event_survives_its_line():
    event = Event(12.5, "rank-0", 3, "run", StopAsked(reason='a "quoted"\nline'))
    text = event.to_line()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert Event.from_line(text) == event


def test_what_is_written_is_read(tmp_path):
    writer = EventWriter(tmp_path / "events", "rank-0", attempt=2)
    written = [stop(writer, "a"), stop(writer, "b")]
    read = read_events(tmp_path / "events")
    assert reasons(read) == ["a", "b"]
    assert [(e.writer, e.attempt, type(e.body)) for e in read] == [("rank-0", 2, StopAsked)] * 2
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_documented_fields(kind):
    documented = field_docs(KINDS[kind])
    assert set(documented) == field_names(KINDS[kind])
    assert all(text.strip() for text in documented.values())
    # These names belong to the line itself; a field of the same name would be lost.
    assert not set(documented) & {"v", "t", "kind", "writer", "attempt", "run"}


@pytest.mark.parametrize(("kind", "role"), recorded())
def test_every_recorded_event_survives_its_line(kind, role):
    for fields in recorded()[kind, role]:
        event = make_event(kind, 1.0, role, attempt=2, data=fields)
        assert isinstance(event.body, KINDS[kind])
        assert Event.from_line(event.to_line()) == event
        assert line_of(event).data == fields, "the same fields, and the same absent"
        assert event.extra == {}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_kind_survives_its_line(kind, data):
    event = Event(1.0, "rank-0", 2, "run", data.draw(bodies(KINDS[kind])))
    again = Event.from_line(event.to_line())
    assert again.to_line() == event.to_line()
    assert type(again.body) is KINDS[kind]


def bodies(kind):
    """Events of a kind; JSON of no type of ours is a number, a text or nothing."""
    names = [n for n, hint in get_type_hints(kind).items() if hint is Any]
    plain = st.none() | st.integers() | st.text(max_size=8)
    given_too = {"changes": st.dictionaries(st.text(max_size=8), st.builds(Change, plain, plain))}
    nested = {name: given_too[name] for name in field_names(kind) & set(given_too)}
    return st.builds(kind, **dict.fromkeys(names, plain), **nested)


def test_a_field_with_a_default_is_absent_where_it_has_that_value():
    body = Death(rank=1, exit_code=-9, was_ended=False, oom_kills=None)
    assert to_fields(body) == {"rank": 1, "exit_code": -9, "was_ended": False, "oom_kills": None}
    assert to_fields(replace(body, phase="step"))["phase"] == "step"


def test_a_run_of_the_first_version_reads_the_same():
    folder = Path(__file__).parents[2] / "golden" / "run-0.1" / "events"
    lines = [json.loads(text) for path in folder.iterdir() for text in path.open()]
    found = read_events(folder)
    assert len(found) == len(lines)
    later = {"step": {"loss_scale"}, "checkpoint": {"waited_s", "write_s"}}
    for record, event in zip(sorted(lines, key=lambda one: one["t"]), found, strict=True):
        again = json.loads(event.to_line())
        assert {name: again[name] for name in record} == record
        assert set(again) - set(record) <= later.get(record["kind"], set())


def test_a_kind_of_a_newer_version_is_kept_and_passed_on(tmp_path):
    text = '{"v":1,"t":1.0,"kind":"eclipse","writer":"rank-0","attempt":0,"step":3,"sun":[1]}\n'
    (tmp_path / "rank-0.jsonl").write_text(text)
    (event,) = read_events(tmp_path)
    assert event.body == Unknown("eclipse", {"step": 3, "sun": [1]})
    assert event.to_line() == text


def test_fields_of_a_newer_version_are_kept_and_passed_on(tmp_path):
    text = (
        '{"v":1,"t":1.0,"kind":"stop","writer":"supervisor","attempt":0,"reason":"a","tea":"now"}\n'
    )
    (tmp_path / "supervisor.jsonl").write_text(text)
    (event,) = read_events(tmp_path)
    assert (event.body, event.extra) == (StopAsked(reason="a"), {"tea": "now"})
    assert event.to_line() == text


@pytest.mark.parametrize(
    "damage",
    [
        {"reason": 7},
        {"reason": None},
        {"t": "noon"},
        {"t": None},
        {"t": 10**400},
        {"writer": 1},
        {"kind": None},
        {"kind": ["stop"]},
        {"attempt": "first"},
        {"run": 5},
    ],
)
def test_a_line_with_a_value_of_another_type_is_skipped(tmp_path, damage):
    record = {"v": 1, "t": 1, "kind": "stop", "writer": "w", "attempt": 0, "reason": "lost"}
    good = line("good", time_s=2)
    (tmp_path / "w.jsonl").write_text(json.dumps({**record, **damage}) + "\n" + good)
    assert reasons(read_events(tmp_path)) == ["good"]


@pytest.mark.parametrize("missing", ["v", "t", "kind", "writer", "reason"])
def test_a_line_that_lacks_a_value_is_skipped(tmp_path, missing):
    record = json.loads(line("lost", time_s=1))
    del record[missing]
    (tmp_path / "w.jsonl").write_text(json.dumps(record) + "\n" + line("good", time_s=2))
    assert reasons(read_events(tmp_path)) == ["good"]


def test_lines_carry_the_schema_version():
    assert json.loads(line("a", time_s=1))["v"] == events.SCHEMA_VERSION

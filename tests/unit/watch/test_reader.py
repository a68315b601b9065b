"""Reading event files: live, long, damaged, replaced; and never writing beside them."""

import os

import pytest

from phalanx.watch import reader as reader_module
from phalanx.watch.reader import RunReader
from phalanx.watch.saved_states import kept
from tests.fixtures.event_lines import make_event
from tests.fixtures.recorded import as_written
from tests.unit.watch.run_folder import Run, whole_run


def snapshot(folder):
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_follows_what_is_appended_and_waits_for_whole_lines(tmp_path):
    made = Run(tmp_path)
    made.begin()
    made.step(10)
    reader = RunReader(made.run)
    reader.read()
    assert reader.state.step == 10
    version = reader.version
    reader.read()
    assert reader.version == version
    made.append("rank-0", '{"v":1,"t":1,"kind":"st')
    reader.read()
    assert reader.state.num_damaged == 0
    made.append("rank-0", 'ep"}\n')
    made.step(20)
    reader.read()
    assert (reader.state.step, reader.state.num_damaged) == (20, 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00garbage\n",
        b"{}\n",
        b"[1,2]\n",
        b"null\n",
        b'{"v":1,"t":"x","kind":"step","writer":"rank-0","step":1}\n',
        b'{"v":1,"t":1,"kind":["step"],"writer":"rank-0"}\n',
        b'{"v":1,"t":1,"kind":"step","writer":"rank-0","loss":"<b>"}\n',
        b"[" * 100_000 + b"\n",
        b'{"v":1,"t":1e999,"kind":"attempt","writer":"supervisor","ranks":"many"}\n',
    ],
    ids=range(9),  # one of them is 100,000 characters long
)
def test_damaged_lines_are_counted_and_passed_over(tmp_path, line):
    made = whole_run(tmp_path)
    before = RunReader(made.run, is_kept=False).read_all().step
    path = made.run.events / "rank-0.jsonl"
    path.write_bytes(line + path.read_bytes() + line + b'{"v":1,"t":17')
    state = RunReader(made.run, is_kept=False).read_all()
    assert (state.step, state.num_damaged) == (before, 2)


def test_a_line_without_an_end_is_no_event(tmp_path):
    made = whole_run(tmp_path)
    with (made.run.events / "rank-1.jsonl").open("ab") as file:
        file.write(b"x" * (3 * 2**20))
    assert RunReader(made.run, is_kept=False).read_all().num_damaged == 1


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path):
    made = whole_run(tmp_path)
    reader = RunReader(made.run)
    reader.read_all()
    (made.run.events / "rank-0.jsonl").unlink()
    made.step(30)
    assert reader.read_all().step == 30


def test_the_run_directory_stays_as_it_was(tmp_path):
    made = whole_run(tmp_path)
    before = snapshot(made.run.path)
    RunReader(made.run).read_all()
    assert snapshot(made.run.path) == before


def test_a_run_without_events_is_empty(tmp_path):
    made = Run(tmp_path)
    made.run.events.rmdir()
    reader = RunReader(made.run)
    assert (reader.read_all().step, reader.share_read) == (None, 1.0)


@pytest.fixture
def long_run(tmp_path, monkeypatch):
    """What counts as long is made small: 3,000 steps and a spike in a line that is not parsed."""
    monkeypatch.setattr(reader_module, "_LONG", 2**18)
    monkeypatch.setattr(reader_module, "_WORTH_KEEPING", 2**18)
    monkeypatch.setattr(reader_module, "_PARSED_STEPS", 100)
    monkeypatch.setattr(reader_module, "_CHUNK", 2**18)
    monkeypatch.setattr(reader_module, "_PREVIEW_END", 2**15)
    monkeypatch.setattr(reader_module, "_PREVIEW_LINES", 50)
    made = Run(tmp_path)
    made.begin()
    lines = []
    for step in range(1, 3001):
        loss, terms = 99.0 if step == 1234 else 1.0, {"x" * 150: 1.0}
        data = as_written("step", "rank-0", step=step, loss=loss, terms=terms)
        lines.append(make_event("step", 1e9 + step, "rank-0", 0, data).to_line())
        if step % 500 == 0:
            data = as_written("evaluate", "rank-0", step=step, metrics={"accuracy": step / 3000})
            lines.append(make_event("evaluate", 1e9 + step, "rank-0", 0, data).to_line())
    made.append("rank-0", "".join(lines))
    return made


def test_a_long_run_is_shown_roughly_at_first_and_then_whole(long_run):
    reader = RunReader(long_run.run)
    assert reader.read(budget_s=0.0)
    assert reader.is_rough
    assert reader.state.step == 3000
    assert 10 < len(reader.state.series["train/loss"]) < 500
    assert 0 < reader.share_read < 1
    state = reader.read_all()
    assert not reader.is_rough
    assert (state.step, state.num_events) == (3000, 3000 + 6 + 3)
    assert len(state.series["test/accuracy"]) == 6, "what is not a step is never left out"
    assert len(state.series["train/loss"]) < 400
    assert max(point.high for point in state.series["train/loss"]) == 99.0, "the spike is lost"


def test_what_was_read_of_a_long_run_is_kept_and_goes_on(long_run):
    whole = RunReader(long_run.run).read_all()
    long_run.step(3010, loss=0.5)
    reader = RunReader(long_run.run)
    assert not reader.read()
    assert not reader.is_rough
    assert (reader.state.step, reader.state.num_events) == (3010, whole.num_events + 1)
    path = long_run.run.events / "rank-0.jsonl"
    data = bytearray(path.read_bytes())
    data[100:110] = b"0" * 10
    path.write_bytes(data)
    assert kept(long_run.run.path) is not None
    path.write_bytes(bytes(reversed(data)))
    assert kept(long_run.run.path) is None, "another file is taken for the one that was read"


def test_a_damaged_cache_is_not_believed(long_run):
    RunReader(long_run.run).read_all()
    for path in (long_run.run.path, *reader_module.Path(os.environ["XDG_CACHE_HOME"]).rglob("*")):
        if path.name.startswith("run-"):
            path.write_text('{"format": 1, "run": 3}')
    assert RunReader(long_run.run).read_all().step == 3000

"""What runs on the other machine, run here: following by offsets, and telling runs apart."""

import json
import os

import pytest

from phalanx.places.remote import far_runs


@pytest.fixture
def said(monkeypatch):
    records = []
    monkeypatch.setattr(far_runs, "say", lambda **record: records.append(record))
    return records


@pytest.fixture
def started(tmp_path):
    """A run that has ended, with two writers and some output."""
    folder = tmp_path / "started" / "one"
    run = tmp_path / "p" / "runs" / "one"
    (run / "events").mkdir(parents=True)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": "one", "run": str(run), "time": 1}))
    (folder / "exit").write_text('{"code": 75}')
    (folder / "output.log").write_text("hello\nhalf")
    (run / "plan.json").write_text('{"revision": 0}')
    (run / "events" / "rank-0.jsonl").write_text('{"kind":"step","step":1}\n{"kind":"st')
    return folder, run


def test_follow_gives_whole_lines_and_goes_on_from_an_offset(tmp_path, started, said):
    _, run = started
    far_runs.follow(str(tmp_path), "one", {}, 5.0)
    texts = {record["file"]: record["text"] for record in said if "file" in record}
    assert texts == {"rank-0.jsonl": '{"kind":"step","step":1}\n', "output.log": "hello\nhalf"}
    assert said[0] == {"plan": {"revision": 0}}
    assert said[-1] == {"end": 75}
    offsets = {record["file"]: record["after"] for record in said if "file" in record}
    with (run / "events" / "rank-0.jsonl").open("a") as file:
        file.write('ep","step":2}\n')
    said.clear()
    far_runs.follow(str(tmp_path), "one", offsets, 5.0)
    texts = [record["text"] for record in said if "file" in record]
    assert texts == ['{"kind":"step","step":2}\n']


def test_of_a_long_file_old_steps_are_left_out_and_nothing_else(started, monkeypatch):
    _, run = started
    monkeypatch.setattr(far_runs, "_LONG", 1000)
    monkeypatch.setattr(far_runs, "_CHUNK", 500)
    path = run / "events" / "rank-0.jsonl"
    steps = [f'{{"kind":"step","step":{n}}}' for n in range(100)]
    lines = ['{"kind":"start"}', *steps, '{"kind":"outcome"}']
    path.write_text("\n".join(lines) + "\n")
    *_, (_, after) = found = list(far_runs._news(path, 0))
    seen = "".join(text for text, _ in found).splitlines()
    assert after == path.stat().st_size
    assert seen[0] == lines[0]
    assert seen[-1] == lines[-1]
    assert seen[1:-1] == steps[len(steps) - len(seen) + 2 :]
    assert 5 < len(seen) < 60


def test_a_process_number_that_was_given_again_is_another_process(started):
    folder, _ = started
    (folder / "exit").unlink()
    mine = far_runs._identity(os.getpid())
    (folder / "pids.json").write_text(json.dumps({"run": mine}))
    assert far_runs.ended(folder) is None
    (folder / "pids.json").write_text(json.dumps({"run": [mine[0], "1"]}))
    assert far_runs.ended(folder) == "gone"


def test_a_name_that_is_taken_is_refused(tmp_path, started, said):
    far_runs.start(
        str(tmp_path), "one", "p", "runs/one", ["false"], {}, token="t", is_resumed=False
    )
    assert said == [{"taken": "there"}]

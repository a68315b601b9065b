"""Following over several connections, and what is not believed of a machine."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.codec import from_json
from phalanx.errors import Finding, UserError
from phalanx.places.remote.answers import Told
from phalanx.places.remote.far_side import MARK
from phalanx.places.remote.places import make_place
from phalanx.places.remote.request import make_request, project_of
from phalanx.places.remote.runs import Follower, Listener, list_runs
from phalanx.places.remote.ssh import Answer, Connection, LineDroppedError


class Line:
    """A connection that gives these records; an exception among them is raised."""

    place = make_place("lab", "alice@gpu")

    def __init__(self, *streams):
        self._streams = list(streams)
        self.offsets = []
        self.shown = []

    def stream(self, operation, *, offsets, shown, **request):
        self.shown.append(None if shown is None else list(shown))
        self.offsets.append(None if offsets is None else dict(offsets))
        for record in self._streams.pop(0):
            if isinstance(record, Exception):
                raise record
            yield record

    def ask(self, kind, operation, **request):
        return from_json(kind, self._streams.pop(0))

    def hang_up(self):
        pass


def event(time_s, what, writer="rank-0"):
    line = {"v": 1, "t": time_s, "kind": "preparing", "writer": writer, "what": what}
    return json.dumps(line) + "\n"


def listen():
    heard = []
    return heard, Listener(
        lambda plan: heard.append("plan"),
        lambda e: heard.append(e.body.what),
        heard.append,
        lambda text: heard.append(text.partition(";")[0]),
    )


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr("phalanx.places.remote.runs.time.sleep", lambda seconds: None)


def test_a_dropped_line_loses_nothing_and_repeats_nothing():
    refused = UserError(Finding(slug="remote-refused", what="w", why="w", fix="f"))
    line = Line(
        [
            {"plan": {}},
            # Between two looks both wrote: the supervisor, whose file comes last, was first.
            {"file": "rank-0.jsonl", "text": event(2, "start"), "after": 10},
            {"file": "supervisor.jsonl", "text": event(1, "attempt", "supervisor"), "after": 20},
            {"turn": True},
            {"file": "rank-0.jsonl", "text": event(3, "step"), "after": 30},
            LineDroppedError("gone"),
        ],
        [refused],
        [{"file": "output.log", "text": "hi", "after": 2}, {"turn": True}, {"end": 75}],
    )
    heard, listener = listen()
    assert Follower(line, "one", listener).follow() == 75
    lost = "the connection was lost"
    assert heard == ["plan", "attempt", "start", lost, "connected again", "hi", "step"]
    known = {"rank-0.jsonl": 30, "supervisor.jsonl": 20}
    assert line.offsets == [{}, known, known]


def test_pictures_come_whole_and_are_not_asked_for_twice():
    part = lambda name, data, is_whole: {  # noqa: E731
        "shown": name,
        "data": base64.b64encode(data).decode(),
        "is_whole": is_whole,
    }
    line = Line(
        [
            part("job.yaml", b"recipe: digits", True),
            part("media/step-1/a.png", b"half", False),
            LineDroppedError("gone"),
        ],
        [
            part("media/step-1/a.png", b"ha", False),
            part("media/step-1/a.png", b"lf", True),
            {"end": 0},
        ],
    )
    files = {}
    listener = replace(listen()[1], on_file=files.__setitem__)
    Follower(line, "one", listener).follow()
    assert files == {"job.yaml": b"recipe: digits", "media/step-1/a.png": b"half"}
    assert line.shown[0] == []
    assert line.shown[1] == ["job.yaml"]


def test_a_key_that_is_no_longer_taken_is_not_tried_again():
    denied = UserError(Finding(slug="remote-denied", what="w", why="w", fix="f"))
    with pytest.raises(UserError) as raised:
        Follower(Line([LineDroppedError("x")], [denied]), "one", listen()[1]).follow()
    assert raised.value.findings[0].slug == "remote-denied"


def test_patience_ends_with_the_way_back():
    line = Line(*([LineDroppedError("x")] for _ in range(3)))
    with pytest.raises(UserError) as raised:
        Follower(line, "one", listen()[1]).follow(patience_s=-1.0)
    assert raised.value.findings[0].slug == "remote-lost"
    assert raised.value.findings[0].fix == "phalanx remote attach lab one"


def test_a_name_that_leaves_the_runs_is_not_taken():
    record = {"run": "/r", "project": "/p", "ended": 0, "step": 1, "best": None, "time_s": 1.0}
    names = ["fine-1", "../../.ssh", "a/b", "", "-x", "a\nb", "..", "latest"]
    line = Line({"runs": [{**record, "name": name} for name in names]})
    assert [run.name for run in list_runs(line)] == ["fine-1"]


def test_a_home_folder_is_not_pushed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _, _, findings = make_request("digits", [])
    assert [finding.slug for finding in findings] == ["remote-folder"]


def test_a_job_outside_the_folder_is_said(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "job.yaml").write_text("recipe: digits\nepochs: 1\nglobal_batch_size: 8\n")
    monkeypatch.chdir(tmp_path / "a")
    _, _, findings = make_request("../job.yaml", [])
    assert [finding.slug for finding in findings] == ["remote-job"]


def test_two_folders_of_one_name_are_two_projects(tmp_path):
    assert project_of(Path("/a/x y")) != project_of(Path("/b/x y"))
    assert project_of(tmp_path / "$(rm) é").startswith("rm-")


def test_an_answer_that_is_none_is_a_finding(monkeypatch):
    connection = Connection(make_place("lab", "alice@gpu"))
    said = f'{MARK}{{"is_told": "perhaps"}}'
    monkeypatch.setattr(connection, "_python", lambda: "python3")
    monkeypatch.setattr(connection, "run", lambda words, text: Answer(0, said, ""))
    with pytest.raises(UserError) as raised:
        connection.ask(Told, "tell", path="p", name="one", number=15)
    assert raised.value.findings[0].slug == "remote-failed"

"""What a user may call a machine, and what is refused before any ssh is started."""

import pytest

from phalanx.errors import UserError
from phalanx.places.remote.places import (
    add_place,
    config_file,
    find_place,
    load_places,
    make_place,
    remove_place,
)
from phalanx.places.remote.ssh import far_line


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("target", "user", "host", "port"),
    [
        ("gpu", None, "gpu", None),
        ("alice@gpu.example.org", "alice", "gpu.example.org", None),
        ("alice@10.0.0.7:2222", "alice", "10.0.0.7", 2222),
        ("a.b@c.org@gpu", "a.b@c.org", "gpu", None),
        ("root@[fe80::1]:22", "root", "fe80::1", 22),
        ("[::1]", None, "::1", None),
    ],
)
def test_a_target_is_read_and_written_back(target, user, host, port):
    place = make_place("lab", target)
    assert (place.user, place.host, place.port) == (user, host, port)
    assert place.target == target


@pytest.mark.parametrize(
    "target",
    [
        "",
        "-oProxyCommand=touch pwned",
        "alice@-oProxyCommand=touch",
        "-l@gpu",
        "gpu;touch pwned",
        "$(touch pwned)",
        "`touch pwned`",
        "gpu example",
        "gpu\ntouch pwned",
        "gpu\n",
        "alice'@gpu",
        'a"b@gpu',
        "gpü",
        "alice@gpu:",
        "alice@gpu:0",
        "alice@gpu:65536",
        "alice@gpu:22;ls",
        "alice@gpu:٢٢",
        "ssh://gpu",
        "[::1",
        "@gpu",
        "gpu.",
    ],
)
def test_what_could_be_an_option_or_be_run_is_refused(target):
    with pytest.raises(UserError) as raised:
        make_place("lab", target)
    assert raised.value.findings[0].slug == "remote-target"


@pytest.mark.parametrize(
    "name", ["", "-n", "a b", "a;b", "$(x)", "a/b", "..", "a\n", "é", "x" * 41]
)
def test_names_are_plain(name):
    with pytest.raises(UserError) as raised:
        make_place(name, "gpu")
    assert [finding.slug for finding in raised.value.findings] == ["remote-name"]


@pytest.mark.parametrize("path", ["", "a\nb", "-rf", "a\0b", "a\x1b[2J", "\udcff"])
def test_paths_that_people_cannot_read_are_refused(path):
    with pytest.raises(UserError) as raised:
        make_place("lab", "gpu", path=path, python=path)
    assert [finding.slug for finding in raised.value.findings] == ["remote-path", "remote-path"]


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(UserError) as raised:
        make_place("a b", "-x", path="", python="-")
    slugs = [finding.slug for finding in raised.value.findings]
    assert slugs == ["remote-name", "remote-target", "remote-path", "remote-path"]


def test_places_are_kept_changed_and_forgotten():
    place = make_place("lab", "alice@gpu:2222", path="/scratch/it's é", python="~/env/bin/python")
    assert add_place(place) is None
    assert add_place(make_place("big", "gpu", site_packages=True)) is None
    assert load_places() == {"lab": place, "big": make_place("big", "gpu", site_packages=True)}
    other = make_place("lab", "bob@gpu")
    assert add_place(other) == place
    assert find_place("lab") == other
    remove_place("lab")
    with pytest.raises(UserError) as raised:
        find_place("bigg")
    assert "(did you mean `big`?)" in raised.value.findings[0].what


@pytest.mark.parametrize("text", ["- a", "lab: 3", "lab: {path: x}", "lab: [", "lab: !!python/x y"])
def test_a_spoilt_file_is_a_finding(text):
    config_file().parent.mkdir(parents=True)
    config_file().write_text(text)
    with pytest.raises(UserError) as raised:
        load_places()
    assert raised.value.findings[0].slug == "remotes-unreadable"


def test_a_target_changed_by_hand_is_judged_too():
    config_file().parent.mkdir(parents=True)
    config_file().write_text("lab: {target: -oProxyCommand=x}")
    with pytest.raises(UserError) as raised:
        find_place("lab")
    assert raised.value.findings[0].slug == "remote-target"


@pytest.mark.parametrize(
    "word", ["a b", "it's", '"', "$(touch x)", "`x`", ";", "a\nb", "-x", "é", ""]
)
def test_a_word_of_the_far_line_is_one_word_to_a_shell(word):
    import subprocess

    done = subprocess.run(
        ["sh", "-c", far_line(["printf", "%s|", word, "end"])], capture_output=True, text=True
    )
    assert done.stdout == f"{word}|end|"

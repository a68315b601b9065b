"""Findings and the error that carries them."""

import json
import pickle

import pytest

from phalanx.codec import from_json, to_json
from phalanx.errors import ExitCode, Finding, UserError, did_you_mean, errors_of, signal_name


def finding(slug="slug", **changes):
    return Finding(**{"slug": slug, "what": "what", "why": "why", "fix": "fix", **changes})


def test_a_finding_survives_json():
    before = finding(severity="warning")
    assert Finding.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_a_finding_is_an_error_unless_it_says_otherwise():
    assert finding().severity == "error"


def test_user_error_takes_one_finding_or_many():
    assert UserError(finding()).findings == [finding()]
    assert UserError(f for f in (finding("a"), finding("b"))).findings == [
        finding("a"),
        finding("b"),
    ]


def test_user_error_is_wrong_usage_unless_it_says_otherwise():
    assert UserError(finding()).exit_code is ExitCode.USAGE
    assert UserError(finding(), exit_code=ExitCode.MACHINE).exit_code is ExitCode.MACHINE


def test_the_text_of_a_user_error_names_every_finding():
    text = str(UserError([finding("a", what="first"), finding("b", what="second")]))
    assert text == "[a] first; [b] second"


def test_user_error_survives_pickling():
    before = UserError([finding("a"), finding("b")], exit_code=ExitCode.LAUNCH)
    after = pickle.loads(pickle.dumps(before))  # noqa: S301 our own bytes
    assert after.findings == before.findings
    assert after.exit_code is ExitCode.LAUNCH
    assert str(after) == str(before)


def test_errors_of_leaves_warnings_and_notes_out():
    every = [finding(s, severity=s) for s in ("note", "error", "warning")]
    assert errors_of(every) == [every[1]]


def test_exit_codes_are_those_of_the_design():
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "MACHINE": 3,
        "LAUNCH": 4,
        "STOPPED": 75,
        "CRASH_LOOP": 93,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("epoch", " (did you mean `epochs`?)"),
        ("sed", " (did you mean `seed`?)"),
        ("qqqq", ""),
        ("", ""),
    ],
)
def test_did_you_mean_names_the_nearest_or_nothing(word, expected):
    assert did_you_mean(word, ["epochs", "seed", "lr"]) == expected


def test_every_signal_has_a_name():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(41) == "signal 41"  # real-time signals have none of their own


def test_a_finding_of_a_recipe_that_is_not_text_still_reaches_its_reader():
    finding = Finding(slug="mine", what=3, why=None, fix="x", severity="fatal")
    assert (finding.what, finding.why, finding.severity) == ("3", "None", "error")
    assert from_json(Finding, to_json(finding)) == finding

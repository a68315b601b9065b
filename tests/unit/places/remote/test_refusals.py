"""ssh's last words, as OpenSSH 9 says them, and what is made of them."""

import pytest

from phalanx.places.remote.places import make_place
from phalanx.places.remote.refusals import refusal

SAID = {
    "remote-resolve": "ssh: Could not resolve hostname gpu: Name or service not known",
    "remote-refused": "ssh: connect to host gpu port 22: Connection refused",
    "remote-denied": "alice@gpu: Permission denied (publickey,password).",
    "remote-host-key": "No ED25519 host key is known for gpu and you have requested strict "
    "checking.\nHost key verification failed.",
    "remote-host-key-changed": "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "Host key for gpu has changed and you have requested strict checking.\n"
    "Host key verification failed.",
    "remote-ssh-config": "/home/a/.ssh/config: line 3: Bad configuration option: prot",
}
UNREACHABLE = (
    "ssh: connect to host gpu port 22: Connection timed out",
    "ssh: connect to host gpu port 22: No route to host",
    "ssh: connect to host gpu port 22: Network is unreachable",
    "ssh: connect to host gpu port 22: Operation timed out",
)


@pytest.mark.parametrize(
    ("slug", "said"), [*SAID.items(), *(("remote-unreachable", said) for said in UNREACHABLE)]
)
def test_a_refusal_says_what_why_and_fix(slug, said):
    finding = refusal(make_place("lab", "alice@gpu:22"), said)
    assert finding is not None
    assert finding.slug == slug
    assert finding.why
    assert finding.fix


@pytest.mark.parametrize(
    "said",
    [
        "",
        "client_loop: send disconnect: Broken pipe",
        "Connection to 10.0.0.7 closed by remote host.",
        "mux_client_request_session: read from master failed: Broken pipe",
        "Timeout, server gpu not responding.",
    ],
)
def test_a_line_that_drops_is_no_refusal(said):
    assert refusal(make_place("lab", "gpu"), said) is None

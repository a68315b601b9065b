"""Threads of ranks and of launched scripts wait shortly, unless the user says how they wait."""

import pytest

from phalanx.prepare.rank_environment import waiting_threads
from phalanx.scripts.environment import default_variables


@pytest.mark.parametrize(
    ("user", "given"),
    [({}, {"GOMP_SPINCOUNT": "10000"}), ({"OMP_WAIT_POLICY": "passive"}, {})],
    ids=["nothing", "a-policy"],
)
def test_a_user_s_policy_is_not_overruled(monkeypatch, user, given):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    assert waiting_threads() == given
    assert ("GOMP_SPINCOUNT" in default_variables(cores=2, ranks=1)) is bool(given)

"""What the ranks of a run get on top of the environment of the command that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from phalanx.machine.network import Setting
from phalanx.planner.schema.plan import Plan
from phalanx.prepare.compile_cache import compile_cache_variables
from phalanx.run.directory import RunDirectory

_SHORT_SPIN = {"GOMP_SPINCOUNT": "10000"}
"""Threads of OpenMP spin while they wait for each other, 300,000 rounds by libgomp's own choice
(gcc.gnu.org/onlinedocs/libgomp, GOMP_SPINCOUNT). Where other processes want the cores too, the
thread that is waited for does not get one meanwhile. 10,000 rounds cost nothing on idle cores, and
are 2 to 9 times as fast on busy ones; 1,000 cost 6 % on idle ones
(benchmarks/results/2026-11-16-waiting-threads-cpu.md). Read where torch is loaded."""


def waiting_threads() -> dict[str, str]:
    """How threads wait, unless the user says how: GOMP_SPINCOUNT would win over OMP_WAIT_POLICY."""
    return {} if "OMP_WAIT_POLICY" in os.environ else _SHORT_SPIN


def rank_environment(
    run: RunDirectory, plan: Plan, network: Sequence[Setting] = ()
) -> dict[str, str]:
    """Variables for the ranks on this node; a user's own setting wins. Without `network` there is
    one node, and nothing of ours listens on a network."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    sockets = {setting.name: setting.value for setting in network} or {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }
    defaults = {
        "OMP_NUM_THREADS": str(plan.execution.threads.value),
        **waiting_threads(),
        **sockets,
        **compile_cache_variables(run),
        **plan.devices.worker_env,
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()}

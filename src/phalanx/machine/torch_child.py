"""Runs `torch_probe.py` in child processes, so that a torch that crashes or hangs is a fact."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from phalanx.codec import from_json
from phalanx.errors import signal_name
from phalanx.machine.facts import Precision, PrecisionProbe, TorchFacts

SCRIPT = Path(__file__).with_name("torch_probe.py")
# Processors that announce AMX but cannot run it (some virtual machines) die of SIGILL in oneDNN's
# bf16 kernels; this keeps oneDNN to the AVX-512 ones.
ONEDNN_WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_ERROR_LINES = 6


@dataclass(frozen=True, kw_only=True)
class TorchAnswer:
    """What torch said, or why it did not."""

    facts: TorchFacts | None = None
    error: str | None = None
    worker_env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Report:
    """One line of a child."""

    stage: str | None = None
    facts: TorchFacts | None = None
    probes: list[str] | None = None
    """Combinations to try, as `device:precision`."""
    probe: PrecisionProbe | None = None
    done: bool = False


@dataclass(kw_only=True)
class _Child:
    """One child's reports up to its end."""

    facts: TorchFacts | None = None
    planned: list[str] = field(default_factory=list)
    probes: list[PrecisionProbe] = field(default_factory=list)
    stage: str = "starting Python"
    done: bool = False
    hung: bool = False
    failure: str | None = None
    """How it ended, in short: `kills the process (SIGILL)`."""
    error: str | None = None
    """The same with the last lines it wrote."""


def ask_torch(*, timeout_s: float = 90.0) -> TorchAnswer:
    """Ask the torch of `sys.executable`; costs one `import torch`, one more per probe that kills.

    `timeout_s` is the longest silence between two reports of the child.
    """
    child = _run([], timeout_s=timeout_s)
    if child.facts is None:
        return TorchAnswer(error=child.error or "torch did not answer")
    facts, planned = child.facts, child.planned
    done = list(child.probes)
    while not child.done and len(done) < len(planned):
        device = planned[len(done)].rpartition(":")[0]
        while len(done) < len(planned) and planned[len(done)].startswith(f"{device}:"):
            done.append(
                PrecisionProbe(
                    device=device,
                    precision=cast(Precision, planned[len(done)].rpartition(":")[2]),
                    ok=False,
                    error=child.failure,
                    compute_capability=_capability(facts, device),
                )
            )
            if not child.hung:
                break  # one that hangs would cost the timeout again for each precision left
        rest = planned[len(done) :]
        if not rest:
            break
        child = _run(rest, timeout_s=timeout_s)
        done += child.probes
    worker_env: dict[str, str] = {}
    for index, probe in enumerate(done):
        if (probe.device, probe.precision, probe.ok) == ("cpu", "bf16", False):
            retry = _run(["cpu:bf16"], timeout_s=timeout_s, env=ONEDNN_WITHOUT_AMX)
            if retry.probes and retry.probes[0].ok:
                done[index] = replace(probe, ok=True, needs_env=dict(ONEDNN_WITHOUT_AMX))
                worker_env |= ONEDNN_WITHOUT_AMX
    return TorchAnswer(facts=replace(facts, probes=tuple(done)), worker_env=worker_env)


def _capability(facts: TorchFacts, device: str) -> tuple[int, int] | None:
    capabilities = {f"cuda:{found.index}": found.compute_capability for found in facts.devices}
    return capabilities.get(device)


def _run(
    wanted: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> _Child:
    """Run one child to its end, its death, or too long a silence."""
    child = _Child()
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            # -P: the modules beside the script must not hide packages of the same name.
            [sys.executable, "-P", str(SCRIPT), *wanted],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        closed = False
        try:
            while (line := lines.get(timeout=timeout_s)) is not None:
                _take(child, line)
            closed = True
        except queue.Empty:
            pass
        finally:
            _end(process, grace_s=5 if closed else 0)
        stderr.seek(0)
        written = stderr.read().decode(errors="replace").strip().splitlines()
    child.hung = not closed
    if child.hung:
        child.failure = f"gives no answer within {timeout_s:g} s"
        written = []
    elif not child.done:
        child.failure = _say_exit(process.returncode)
    if child.failure is not None:
        head = f"{child.stage}: {child.failure}"
        child.error = "\n".join([head, *written[-_ERROR_LINES:]])
    return child


def _pump(process: subprocess.Popen[bytes], lines: queue.Queue[bytes | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _take(child: _Child, line: bytes) -> None:
    try:
        report = from_json(_Report, json.loads(line))
    except ValueError:
        return  # a sitecustomize that prints before the channel is made
    child.stage = report.stage or child.stage
    child.facts = report.facts or child.facts
    child.planned = report.probes or child.planned
    child.done = child.done or report.done
    if report.probe is not None:
        child.probes.append(report.probe)


def _end(process: subprocess.Popen[bytes], *, grace_s: float) -> None:
    """End the child and what it started; a child stuck in the driver may outlive even SIGKILL."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
        return
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)


def _say_exit(code: int | None) -> str:
    if code is None:
        return "does not end"
    if code < 0:
        return f"kills the process ({signal_name(-code)})"
    return f"ends the process with exit code {code}"

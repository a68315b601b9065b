"""The page for people who see something wrong: by what they see, from the same tables that
`phalanx doctor` reads. A name that no table has any more is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from phalanx.diagnose.causes import SUBJECTS


class Symptom(NamedTuple):
    """What is seen, what to look at first, and what it may be."""

    title: str
    first: str
    causes: Sequence[str] = ()
    """Names of causes of death."""
    findings: Sequence[str] = ()
    """Names of Findings about runs that live."""


def _names(*lines: str) -> list[str]:
    return " ".join(lines).split()


SYMPTOMS = (
    Symptom(
        "Only one GPU works",
        "`phalanx watch` has a row for each rank with the load of its GPU. A run of `phalanx "
        "train` begins with the proof that all ranks are there; of a script that is launched "
        "it is found out from outside, once a first loss is seen.",
        _names(
            "gpu-shared-by-ranks no-process-group gpu-ids-wrong",
        ),
        _names(
            "one-gpu no-process-group several-worlds visible-missing single-strategy",
        ),
    ),
    Symptom(
        "No speed-up with more GPUs",
        "`phalanx doctor` of the run says which part of a step the time goes to; `phalanx "
        "plan` says what to expect, and `phalanx bench JOB` measures it. A small model is "
        "often as fast on one.",
        (),
        _names(
            "slow-loader slow-loader-usage slow-communication slow-host slow-host-predicted",
            "slow-waiting slow-no-p2p straggler unequal-load idle-ranks few-cores p2p-missing",
            "network-slow",
        ),
    ),
    Symptom(
        "Out of memory",
        "Phalanx cuts the micro-batch and goes on, with the same global batch. `phalanx plan` "
        "shows where memory goes, also for machines that are not at hand: "
        "[memory](../concept/memory.md).",
        _names(
            "gpu-out-of-memory gpu-memory-taken host-out-of-memory-kill host-out-of-memory",
            "shared-memory-full loader-killed",
        ),
        _names(
            "does-not-fit out-of-memory micro-batch-changed gpu-busy slow-memory shm-small",
            "ram-low",
        ),
    ),
    Symptom(
        "NCCL errors and timeouts",
        "A timeout is the echo of another rank's trouble: `phalanx doctor` names the rank "
        "that was first, and `hang-N.txt` in the run's logs has where each of them stood.",
        _names(
            "collective-timeout collective-mismatch rank-missing-at-barrier peer-lost",
            "nccl-no-interface nccl-versions-differ infiniband no-peer-access nccl-cuda-error",
            "nccl-system-error nccl-internal-error watchdog-stuck",
        ),
        _names(
            "rank-hung node-lost nccl-missing",
        ),
    ),
    Symptom(
        "The ranks do not start",
        "`phalanx check` first. Several nodes say who is missing and what it was told.",
        _names(
            "port-in-use ranks-did-not-join meeting-point-unreachable stale-rendezvous",
            "module-missing cuda-unavailable driver-too-old backend-missing",
        ),
        _names(
            "nodes-missing node-unreachable rendezvous-loopback rendezvous-elsewhere",
            "cuda-unavailable torch-cpu-build driver-broken launch-ranks",
        ),
    ),
    Symptom(
        "The loss swings, rises or is no number",
        "Steps whose loss or gradients are not finite change nothing. The rate and the batch "
        "of a run are in its plan with their arithmetic: [batch and learning "
        "rate](../concept/batch-and-learning-rate.md).",
        _names(
            "not-finite fp16-collapse fp16-overflow fp16-weights",
        ),
        _names(
            "loss-oscillates loss-rises loss-flat not-finite-loss steps-skipped",
            "fp16-scale-collapsed adamw-rate long-warmup",
        ),
    ),
    Symptom(
        "A resumed run differs",
        "`determinism: resume` gives the same bits on the same number of ranks, and the same "
        "samples on another: [sameness](../concept/sameness.md). `phalanx verify JOB` finds "
        "what ties a recipe to its rank.",
        _names(
            "weights-do-not-fit file-damaged",
        ),
        _names(
            "resume-differs resume-length recipe-changed batch-frozen checkpoint-damaged",
            "verify-data-random verify-loss-by-rank verify-buffers",
        ),
    ),
    Symptom(
        "A process was killed",
        "The kernel, a scheduler or a person: `phalanx doctor` says which, where it can be known.",
        _names(
            "host-out-of-memory-kill killed ended-from-outside preempted time-limit",
            "node-failed cancelled native-crash",
        ),
        _names(
            "rank-killed crash-loop restarted",
        ),
    ),
    Symptom(
        "Data cannot be read",
        "`loader.workers=0` fetches samples in the training process, where errors have their "
        "lines.",
        _names(
            "loader-crashed loader-timeout corrupt-sample file-missing no-samples",
            "samples-differ-in-shape label-out-of-range index-out-of-range data-error",
        ),
        _names(
            "data-missing data-rows detection-labels detection-images",
        ),
    ),
    Symptom(
        "No bf16, wrong precision",
        "`phalanx check` tries each precision on each device; `precision: auto` takes what works.",
        _names(
            "bf16-unsupported dtypes-differ",
        ),
        _names(
            "bf16-emulated precision-unsupported precision-failed",
        ),
    ),
    Symptom(
        "The disk is full, nothing is saved",
        "Training goes on without a checkpoint and tries the next one; only the end must be saved.",
        _names(
            "disk-full disk-quota disk-read-only disk-failing file-not-written",
        ),
        _names(
            "checkpoint-not-saved checkpoint-lost disk-low output-not-writable",
        ),
    ),
)


def symptoms_page(said: Mapping[str, str]) -> str:
    """The page; `said` has what each Finding says, by its name."""
    known = {cause.name: cause for causes in reversed(SUBJECTS.values()) for cause in causes}
    parts = [
        "# Troubleshooting by symptom\n",
        "What people see, and what it turns out to be. `phalanx doctor` looks for all of this in "
        "the logs and events of a run and names the one that fits, with the lines that show it: "
        "[the guide](doctor.md). `{...}` stands for what it reads there.\n",
        "```bash\nphalanx doctor            # the newest run; `doctor runs/NAME` another one\n"
        "phalanx check             # the machine, before anything is started\n```\n",
    ]
    for symptom in SYMPTOMS:
        parts += [f"## {symptom.title}\n", f"{symptom.first}\n"]
        if symptom.causes:
            parts.append("| a run that died: cause | in words | fix |\n|---|---|---|")
            parts += [
                _row(f"`{name}`", known[name].words, known[name].fix)
                for name in dict.fromkeys(symptom.causes)
            ]
            parts.append("")
        if symptom.findings:
            parts.append("| a finding | what it says |\n|---|---|")
            parts += [_row(f"`{name}`", said[name]) for name in symptom.findings]
            parts.append("")
    parts.append(
        "All of them: [causes](../reference/causes.md), [findings](../reference/findings.md).\n"
    )
    return "\n".join(parts)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

"""Whether the ranks of a launched script have found each other, and where they compute: seen from
outside, by who is connected to whom and which process holds which GPU. The script is not touched.
"""

from __future__ import annotations

from typing import Any

import psutil

from phalanx.errors import Finding
from phalanx.machine.gpus import probe_gpus
from phalanx.machine.usage import ProcessMeter


def judge_ranks(pids: list[int], *, is_cpu: bool, has_loss: bool = True) -> list[Finding]:
    """What is wrong with a group that trains: call it once a loss was seen. Without one only the
    GPUs are judged: ranks may not have joined yet. Nothing when this machine does not say."""
    if len(pids) < 2:
        return []
    families = [_family(pid) for pid in pids]
    worlds = _find_worlds(families) if has_loss else None
    findings = [] if worlds is None or len(worlds) == 1 else [_not_one_world(worlds, len(pids))]
    if not is_cpu:
        findings += _judge_gpus(families)
    return findings


def _family(pid: int) -> set[int]:
    """A rank and what it started."""
    return {pid, *(process.pid for process in ProcessMeter(pid).family())}


def _find_worlds(families: list[set[int]]) -> list[list[int]] | None:
    """Ranks in groups that are connected by TCP: torch's store, gloo and the start of NCCL all keep
    connections. None when they cannot be read, or a rank has ended."""
    ends: dict[tuple[str, int, str, int], int] = {}
    try:
        for rank, family in enumerate(families):
            for pid in family:
                process = psutil.Process(pid)
                if process.status() == psutil.STATUS_ZOMBIE:
                    return None  # it has ended, and its connections with it
                for link in process.net_connections("tcp"):
                    if link.raddr:
                        ends[(*_end(link.laddr), *_end(link.raddr))] = rank
    except (psutil.Error, OSError):
        return None
    world = list(range(len(families)))
    for (host, port, peer_host, peer_port), rank in ends.items():
        peer = ends.get((peer_host, peer_port, host, port))
        if peer is not None and world[peer] != world[rank]:
            old, new = world[peer], world[rank]
            world = [new if number == old else number for number in world]
    return [[r for r, w in enumerate(world) if w == number] for number in sorted(set(world))]


def _end(address: Any) -> tuple[str, int]:
    return address.ip.removeprefix("::ffff:"), address.port


def _not_one_world(worlds: list[list[int]], ranks: int) -> Finding:
    if len(worlds) == ranks:
        return Finding(
            slug="no-process-group",
            what=f"{ranks} ranks train and none is connected to another: {ranks} trainings of "
            "their own",
            why="each was given its RANK and WORLD_SIZE and has printed a loss; no two of "
            "them hold a connection, so there is no process group",
            fix="call torch.distributed.init_process_group() and wrap the model in DDP, or use "
            "Accelerate, HF Trainer or Lightning; or ask for 1 rank: `--cpu 1`, `--gpus 1`",
            severity="warning",
        )
    listed = "; ".join(f"ranks {', '.join(map(str, world))}" for world in worlds)
    return Finding(
        slug="several-worlds",
        what=f"{ranks} ranks form {len(worlds)} groups instead of 1: {listed}",
        why="no rank of one group is connected to one of another",
        fix="init_process_group() without own ranks and addresses, which reads the environment",
        severity="warning",
    )


def _judge_gpus(families: list[set[int]]) -> list[Finding]:
    on: dict[int, set[int]] = {}
    for gpu in probe_gpus().gpus:
        for process in gpu.processes:
            for rank, family in enumerate(families):
                if process.pid in family:
                    on.setdefault(rank, set()).add(gpu.index)
    if len(on) < len(families):
        return []  # in a container the numbers of processes may be others
    used = set.union(*on.values())
    if len(used) > 1:
        return []
    return [
        Finding(
            slug="one-gpu",
            what=f"all {len(families)} ranks compute on GPU {min(used)}, 1 GPU of those asked for",
            why="the driver lists every rank's process on that GPU and on no other",
            fix="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and that device for the "
            "model and the data",
            severity="warning",
        )
    ]

"""One rank: who it is, where it computes, and how it talks to the others."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from phalanx.planner.schema.plan import Plan

_REST_S = 0.05  # a thread that is done with a reduction needs microseconds to let go of it


@dataclass(frozen=True)
class Process:
    """A rank among ranks; on one rank there is no process group."""

    rank: int
    world: int
    device: torch.device
    backend: str
    control: dist.ProcessGroup | None = None
    """A gloo group of its own for small CPU reductions: they overlap with the gradients'."""
    local_rank: int = 0
    """Its number on its machine; those of a machine follow each other."""
    timeout: timedelta = timedelta(minutes=10)
    """How long an exchange may wait for another rank."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def open_group(
        self, backend: str | None = None, *, timeout: timedelta | None = None
    ) -> dist.ProcessGroup | None:
        """A further group of all ranks, whose messages no other can get in between."""
        if self.world == 1:
            return None
        group: dist.ProcessGroup = dist.new_group(backend=backend, timeout=timeout or self.timeout)
        return group

    def reduce_control(self, tensor: torch.Tensor) -> dist.Work | None:
        """Start summing a small CPU tensor over the ranks; wait on what is returned, if any."""
        if self.world == 1:
            return None
        pending: dist.Work = dist.all_reduce(tensor, group=self.control, async_op=True)
        return pending

    def count(self, flags: Iterable[bool]) -> list[int]:
        """Return on how many ranks each flag is set."""
        counts = torch.tensor(list(flags), dtype=torch.int64)
        if pending := self.reduce_control(counts):
            pending.wait()
        return counts.tolist()

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks, in place."""
        if self.world > 1:
            # NCCL knows no tensors on the host, where offloaded gradients are.
            is_apart = self.backend == "nccl" and tensor.device.type == "cpu"
            dist.all_reduce(tensor, group=self.control if is_apart else None)
        return tensor

    def gather(self, table: torch.Tensor) -> torch.Tensor:
        """The rows of every rank's CPU table, one below the other in rank order."""
        if self.world == 1:
            return table
        tables = [torch.empty_like(table) for _ in range(self.world)]
        dist.all_gather(tables, table, group=self.control)
        return torch.cat(tables)

    def gather_rows(self, table: torch.Tensor) -> torch.Tensor:
        """The same of tables whose numbers of rows differ from rank to rank."""
        if self.world == 1:
            return table
        counts = self.gather(torch.tensor([[len(table)]])).flatten().tolist()
        padded = torch.zeros(max(counts), *table.shape[1:], dtype=table.dtype)
        padded[: len(table)] = table
        parts = self.gather(padded).reshape(self.world, max(counts), *table.shape[1:])
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def agree(self, value: int) -> int:
        """The first rank's value, on every rank."""
        if self.world == 1:
            return value
        tensor = torch.tensor([value if self.is_first else 0], dtype=torch.int64)
        dist.broadcast(tensor, src=0, group=self.control)
        return int(tensor.item())

    def agree_text(self, text: str) -> str:
        """The first rank's text, on every rank."""
        size = self.agree(len(encoded := text.encode()))
        if self.world == 1 or size == 0:
            return text if self.is_first else ""
        tensor = torch.zeros(size, dtype=torch.uint8)
        if self.is_first:
            tensor.copy_(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
        dist.broadcast(tensor, src=0, group=self.control)
        return bytes(tensor.tolist()).decode()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            dist.barrier(group=self.control)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, this process may fork: every native thread is at rest, and children do not tear
        down what is not theirs.

        A thread of gloo that lets go of a tensor makes itself known to Python under a lock of the
        interpreter; a child forked at that moment waits for the lock forever (CPython 3.11,
        _PyThreadState_DeleteExcept; later versions make the lock anew in the child). And a child
        whose garbage collector finds a process group would end threads that it does not have."""
        if self.world > 1:
            self.barrier()
            time.sleep(_REST_S)
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()

    def describe(self) -> str:
        """The device in words, for the start-up proof."""
        if self.device.type == "cuda":
            where = "" if os.environ.get("GROUP_WORLD_SIZE", "1") == "1" else socket.gethostname()
            name = f"{self.device} {torch.cuda.get_device_name(self.device)}"
            return f"{name} on {where}" if where else name
        threads = torch.get_num_threads()
        plural = "" if threads == 1 else "s"
        return f"{self.device.type} on {socket.gethostname()}, {threads} thread{plural}"


@contextmanager
def join(plan: Plan) -> Iterator[Process]:
    """Become a rank: settle device and threads, meet the others, leave in order."""
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    assert world == plan.devices.ranks.value, (
        f"{world} ranks were started, the plan says {plan.devices.ranks.value}"
    )
    device = _settle_device(plan, local_rank)
    torch.set_num_threads(plan.execution.threads.value)
    _settle_determinism(plan)
    if plan.devices.backend.value == "none":
        yield Process(rank, world, device, "none", local_rank=local_rank)
        return
    if plan.is_detail_too_much and get_debug_level() == DebugLevel.DETAIL:
        set_debug_level(DebugLevel.INFO)
    timeout = timedelta(seconds=plan.devices.comm_timeout_s.value)
    dist.init_process_group(
        plan.devices.backend.value,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    # Left as it is on an exception: destroying the group waits for reductions that were launched
    # and that this rank never completes. The process exits at once instead (engine/__main__.py).
    control = dist.new_group(backend="gloo", timeout=timeout)
    process = Process(rank, world, device, plan.devices.backend.value, control, local_rank, timeout)
    _agree_on_plan(process, plan)
    yield process
    process.barrier()  # nobody tears a connection down while another still reduces
    dist.destroy_process_group()


def _settle_device(plan: Plan, local_rank: int) -> torch.device:
    if plan.devices.device.value == "cuda":
        device = torch.device("cuda", plan.devices.gpus.value[local_rank])
        torch.cuda.set_device(device)
        return device
    return torch.device(plan.devices.device.value)


def _settle_determinism(plan: Plan) -> None:
    is_resume = plan.numerics.determinism.value in ("resume", "exact")
    # Deterministic kernels exist for CUDA only; warn_only because an operator without one must not
    # end a run that asked for the most sameness there is. CUBLAS_WORKSPACE_CONFIG is in worker_env.
    wanted = is_resume and plan.devices.device.value == "cuda"
    if wanted != torch.are_deterministic_algorithms_enabled():  # it imports inductor: a second
        torch.use_deterministic_algorithms(wanted, warn_only=True)
    torch.backends.cudnn.benchmark = plan.execution.cudnn_search.value == "on"


def _agree_on_plan(process: Process, plan: Plan) -> None:
    mine = int(plan.digest()[:15], 16)
    if process.agree(mine) != mine:
        raise RuntimeError(f"rank {process.rank} read another plan.json than rank 0")


class StopRequest:
    """Remembers SIGTERM, SIGINT or SIGUSR1: the step is finished, the state saved, then it ends."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle the signals while inside."""
        before = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.SIGNALS)  # kept back so far by a fork
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


def device_seeder(device: torch.device) -> Callable[[int], object]:
    """Return a function that seeds the device's generator, a hundred times cheaper than
    `torch.manual_seed`."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index].manual_seed
    if device.type == "mps":
        return torch.mps.manual_seed
    return lambda seed: None

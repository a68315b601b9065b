"""Where to train and in which arithmetic: devices, ranks, backend, precision, threads, workers."""

from __future__ import annotations

from collections import Counter

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.machine import Gpu, Machine
from phalanx.planner.schema.placement import Placement
from phalanx.planner.schema.plan import Decision, Plan

# bf16 tensor cores and TF32 exist from compute capability 8.0 on
# (docs.nvidia.com/cuda/cuda-c-programming-guide, "Compute Capability 8.x").
_AMPERE = (8, 0)
_DEFAULT_CPU_RANKS = 2
BACKEND_VARIABLE = "TORCH_DISTRIBUTED_BACKEND"
DEBUG_VARIABLE = "TORCH_DISTRIBUTED_DEBUG"
_MAX_GPU_THREADS = 4  # a rank that drives a GPU computes little itself


def place_ranks(job: Job, machine: Machine) -> Placement:
    """Choose the device and the number of ranks."""
    placement = _place(job, machine)
    ranks = placement.ranks.value
    if job.strategy != "single" or ranks == 1:
        return placement
    # Ranks that do not talk would each train alone; a number asked for is refused by job.rules.
    return Placement(
        placement.device,
        Decision(placement.gpus.value[:1], "strategy = single: the first one"),
        Decision(1, f"strategy = single, although {ranks} could be used"),
        placement.cards[:1],
    )


def _place(job: Job, machine: Machine) -> Placement:
    asked = job.devices
    none: Decision[list[int]] = Decision([], "no CUDA device is used")
    if asked.cpu is not None:
        return Placement(
            Decision("cpu", f"devices.cpu = {asked.cpu} asks for it"),
            none,
            _on_each_node(asked.cpu, f"devices.cpu = {asked.cpu}", machine),
            (),
            machine.nodes,
        )
    if machine.accelerator == "cuda":
        return _place_on_gpus(job, machine)
    if machine.accelerator == "mps":
        return Placement(
            Decision("mps", "no CUDA device, but Apple's MPS is there"),
            none,
            Decision(1, "MPS is one device"),
            (),
        )
    cores = machine.cpu.usable_cores
    ranks = min(_DEFAULT_CPU_RANKS, cores)
    return Placement(
        Decision("cpu", f"no usable GPU: {machine.driver_error or 'none found'}"),
        none,
        _on_each_node(
            ranks, f"{ranks} processes on {cores} CPU cores; `--cpu N` for another number", machine
        ),
        (),
        machine.nodes,
    )


def _on_each_node(ranks: int, reason: str, machine: Machine) -> Decision[int]:
    if machine.nodes == 1:
        return Decision(ranks, reason)
    return Decision(machine.nodes * ranks, f"{reason} on each of {machine.nodes} nodes")


def choose_nodes(placement: Placement, machine: Machine) -> Decision[int]:
    """The machines that the ranks are on."""
    if placement.nodes == 1:
        return Decision(1, "one machine")
    listed = "; ".join(machine.hosts) or f"as described: {machine.title}"
    return Decision(placement.nodes, listed)


def _place_on_gpus(job: Job, machine: Machine) -> Placement:
    visible = machine.visible_gpus
    asked = job.devices.gpus
    if isinstance(asked, list):
        by_id = {gpu.cuda_index: gpu for gpu in visible}
        cards = tuple(by_id[index] for index in asked)
        reason = f"devices.gpus = {','.join(map(str, asked))}"
    elif isinstance(asked, int):
        cards, reason = visible[:asked], f"devices.gpus = {asked}: the first {asked}"
    else:
        cards, reason = visible, f"all {len(visible)} visible GPUs"
    if machine.cuda_visible_devices is not None:
        reason += f"; CUDA_VISIBLE_DEVICES={machine.cuda_visible_devices}"
    ranks = _ranks_per_gpu([gpu.cuda_index for gpu in cards])
    there = f"{len(visible)} CUDA GPUs are visible"
    if machine.nodes > 1:
        there = f"{machine.nodes} nodes with {len(visible)} CUDA GPUs each"
        ranks += f": {machine.nodes} nodes x {len(cards)} GPUs"
        reason += " of each node"
    return Placement(
        Decision("cuda", there),
        Decision([gpu.cuda_index or 0 for gpu in cards], reason),
        Decision(machine.nodes * len(cards), ranks),
        cards,
        machine.nodes,
    )


def _ranks_per_gpu(ids: list[int | None]) -> str:
    shared = [f"GPU {i} carries {n}" for i, n in Counter(ids).items() if n > 1]
    return "; ".join(shared) or "one rank per GPU"


def choose_backend(
    job: Job, placement: Placement, machine: Machine, strategy: str = "ddp"
) -> Decision[str]:
    """How the ranks talk."""
    if placement.ranks.value == 1 and not facts_of(strategy).is_sharded:
        return Decision("none", "one rank talks to nobody")
    if job.devices.backend != "auto":
        return Decision(job.devices.backend, f"devices.backend = {job.devices.backend}")
    named = machine.environment.get(BACKEND_VARIABLE)
    if _fits(named, placement.device.value):
        assert named is not None
        return Decision(named, f"{BACKEND_VARIABLE}={named} in the environment")
    if placement.device.value == "cuda":
        if machine.torch is not None and machine.torch.has_nccl:
            return Decision("nccl", f"between GPUs; NCCL {machine.torch.nccl_version}")
        return Decision("gloo", "this torch has no NCCL; gradients travel through the host")
    return Decision("gloo", "between CPU processes")


def _fits(backend: str | None, device: str) -> bool:
    return backend == "gloo" or (backend == "nccl" and device == "cuda")


def backend_findings(job: Job, placement: Placement, machine: Machine) -> list[Finding]:
    """A backend in the environment that cannot be taken."""
    named, device = machine.environment.get(BACKEND_VARIABLE), placement.device.value
    if job.devices.backend != "auto" or named in (None, "auto") or _fits(named, device):
        return []
    joins = "joins GPUs only" if named == "nccl" else "is neither nccl nor gloo"
    return [
        Finding(
            slug="backend-variable",
            what=f"{BACKEND_VARIABLE}={named} is not followed: `{named}` {joins}, and ranks are on "
            f"{device}",
            why="set in the environment; devices.backend = auto",
            fix=f"unset {BACKEND_VARIABLE}",
            severity="warning",
        )
    ]


def debug_findings(plan: Plan) -> list[Finding]:
    """What is not followed of a wish to see how ranks talk."""
    if plan.devices.environment.get(DEBUG_VARIABLE) != "DETAIL" or not plan.is_detail_too_much:
        return []
    return [
        Finding(
            slug="debug-detail",
            what=f"{DEBUG_VARIABLE}=DETAIL is taken as INFO: DDP over gloo crashes with it",
            why=f"set in the environment or by --debug-comm; backend gloo: "
            f"{plan.devices.backend.reason}",
            fix="nothing to do; over nccl and with --fsdp it is DETAIL",
            severity="note",
        )
    ]


def choose_comm_timeout(job: Job) -> Decision[float]:
    """How long a rank waits for the others."""
    asked = job.devices.comm_timeout_s
    own = (
        ", as torch's own for NCCL" if "comm_timeout_s" not in job.devices.model_fields_set else ""
    )
    return Decision(asked, f"devices.comm_timeout_s = {asked:g}{own}")


def choose_precision(
    job: Job, placement: Placement, machine: Machine
) -> tuple[Decision[str], list[Finding]]:
    """The arithmetic, by compute capability; a forced choice the device cannot do is a Finding."""
    device = placement.device.value
    lowest = min(placement.cards, key=lambda g: g.compute_capability or (0, 0), default=None)
    if job.precision != "auto":
        findings = _unsupported(job.precision, device, lowest, machine)
        return Decision(job.precision, f"precision = {job.precision}"), findings
    if device == "cuda":
        assert lowest is not None
        capability = lowest.compute_capability
        if capability is None:
            return Decision("fp32", f"{lowest.name} does not tell its compute capability"), []
        text = f"{lowest.name} has compute capability {capability[0]}.{capability[1]}"
        if capability >= _AMPERE:
            return Decision("bf16", f"{text}, 8.0 or higher: bf16 tensor cores"), []
        return Decision("fp16", f"{text}, below 8.0: no bf16, fp16 with loss scaling"), []
    if device == "mps" and "bf16" in machine.precisions(device="mps"):
        return Decision("bf16", "MPS computes bf16 here (tried with a small matrix product)"), []
    return Decision("fp32", f"the default on {device}"), []


def _unsupported(precision: str, device: str, gpu: Gpu | None, machine: Machine) -> list[Finding]:
    why = None
    if device == "cuda" and gpu is not None and gpu.compute_capability is not None:
        major, minor = gpu.compute_capability
        if precision in ("bf16", "tf32") and gpu.compute_capability < _AMPERE:
            why = f"{gpu.name} has compute capability {major}.{minor}; {precision} needs 8.0"
    elif device in ("cpu", "mps") and precision in ("bf16", "fp16"):
        if machine.torch is not None and precision not in machine.precisions(device=device):
            why = f"a small {precision} matrix product failed on {device} (`phalanx check`)"
    elif device == "cpu" and precision == "tf32":
        why = "TF32 is a mode of NVIDIA GPUs"
    elif device == "mps" and precision in ("fp64", "tf32"):
        why = f"MPS has no {precision}"
    if why is None:
        return []
    other = "fp16" if device == "cuda" else "fp32"
    return [
        Finding(
            slug="precision-unsupported",
            what=f"precision {precision} is not possible on {device} here",
            why=f"precision = {precision}; {why}",
            fix=f"precision={other}, or precision=auto",
        )
    ]


def choose_determinism(job: Job, device: str) -> Decision[str]:
    """Whether a resumed run must equal the unbroken one bit for bit."""
    if job.determinism == "exact":
        return Decision(
            "exact",
            "the same bits on any number of ranks; costs a gather of all gradients per step, "
            "without overlap, and gradient memory for each level of the slot tree",
        )
    if job.determinism != "auto":
        return Decision(job.determinism, f"determinism = {job.determinism}")
    if device == "cpu":
        return Decision("resume", "the default on CPU: costs nothing")
    return Decision("fast", f"the default on {device}: deterministic kernels are slower")


def choose_threads(
    job: Job, placement: Placement, machine: Machine, previous: Plan | None
) -> Decision[int]:
    """Threads inside an operator, per rank."""
    device, ranks = placement.device.value, placement.ranks.value
    if (
        previous is not None
        and previous.devices.device.value == device
        and previous.devices.ranks.value == ranks
    ):
        return Decision(
            previous.execution.threads.value, "kept from the run: it changes the last bits"
        )
    if job.determinism == "exact" and device == "cpu":
        return Decision(1, "determinism = exact: another number would change the last bits")
    cores = machine.cpu.usable_cores
    share = max(1, cores // placement.node_ranks)
    if device != "cpu":
        share = min(share, _MAX_GPU_THREADS)
    return Decision(share, f"{cores} CPU cores over {placement.node_ranks} ranks")

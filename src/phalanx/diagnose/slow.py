"""Why a healthy run is slower than it need be, with the number: samples that are not there, a host
that cannot start kernels fast enough, exchange, one rank that lags, memory that is short.

Measured where events say it (data_wait, retries, usage); else the plan's own prediction, and called
so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from phalanx.diagnose.facts import facts_of_run
from phalanx.diagnose.scene import Scene
from phalanx.errors import Finding, format_bytes
from phalanx.run.event_kinds import FindingMade, Step, Usage
from phalanx.run.events import Event

_WORTH = 0.15  # of the time: less is not worth a change
_LEAST_STEPS = 3  # logged steps
_LEAST_SAMPLES = 3  # usage samples of each rank
_BUSY = 80.0  # per cent in which a kernel ran
_UNEQUAL = 30.0  # per cent between the least and the most busy GPU
_ONE_CORE = (70.0, 140.0)  # per cent of the CPU: Python starts kernels on one core
_FAULTS_PER_S = 100.0


@dataclass(frozen=True, kw_only=True)
class SpeedFigures:
    """Measured and predicted figures, for other programs."""

    samples_per_s: float | None
    predicted_samples_per_s: float | None
    data_wait: float | None
    """Share of the time."""
    logged_steps: int


def judge_speed(scene: Scene) -> list[Finding]:
    """Findings about speed, what was measured first; none when there is nothing to say."""
    facts = facts_of_run(scene)
    steps = _logged(scene)
    found = [
        *_lagging(scene),
        *_loader_bound(scene, steps, facts),
        *_thrash(steps, facts),
        *(_unequal(scene) or _by_usage(scene, steps)),
        *_no_peers(scene),
    ]
    if not found:
        found = _as_predicted(scene, steps, facts)
    return found


def speed_figures(scene: Scene) -> SpeedFigures:
    """Read both from a run."""
    steps = _logged(scene)
    waits = _values(steps, "data_wait")
    rates = _values(steps, "samples_per_s")
    return SpeedFigures(
        samples_per_s=median(rates) if rates else None,
        predicted_samples_per_s=scene.planned("samples_per_s"),
        data_wait=median(waits) if waits else None,
        logged_steps=len(steps),
    )


def _logged(scene: Scene) -> list[Event]:
    """Steps of the last attempt without the first, in which all begins."""
    return scene.events_of(Step, scene.last_attempt)[1:]


def _values(events: Sequence[Event], name: str) -> list[float]:
    found = (getattr(event.body, name) for event in events)
    return [float(value) for value in found if isinstance(value, int | float)]


def _lagging(scene: Scene) -> list[Finding]:
    """What the supervisor found while the run went on."""
    found = (said.finding for said in scene.of_kind(FindingMade))
    return [finding for finding in found if "straggler" in finding.slug][-1:]


def _loader_bound(scene: Scene, steps: Sequence[Event], facts: dict[str, str]) -> list[Finding]:
    waits = _values(steps, "data_wait")
    if len(waits) < _LEAST_STEPS or median(waits) < _WORTH:
        return []
    workers, ranks = scene.planned("workers"), scene.planned("ranks") or 1
    cores = (scene.machine.get("cpu") or {}).get("usable_cores")
    more = 2 * workers if isinstance(workers, int) and workers else 4
    if isinstance(cores, int):
        more = max(1, min(more, cores // ranks))
    rate = median(_values(steps, "samples_per_s") or [0.0])
    share = median(waits)
    return [
        Finding(
            slug="slow-loader",
            what=f"{share:.0%} of the time rank 0 waits for samples: loader-bound",
            why=f"median of data_wait over {len(waits)} logged steps; {workers} loader processes "
            f"for each of {ranks} ranks, {rate:,.0f} samples/s; without waiting "
            f"{rate / max(1e-9, 1 - share):,.0f}",
            fix=f"{facts['again']} loader.workers={more}; where samples fit into memory "
            "loader.cache=ram; else make a sample cheaper to fetch",
            severity="warning",
        )
    ]


def _thrash(steps: Sequence[Event], facts: dict[str, str]) -> list[Finding]:
    retries, faults = _values(steps, "alloc_retries"), _values(steps, "major_faults")
    found = []
    if len(retries) > 1 and retries[-1] - retries[0] >= max(3, len(retries) // 4):
        half = facts.get("half_micro_batch", "N")
        found.append(
            Finding(
                slug="slow-memory",
                what=f"the GPU's memory is nearly full: its allocator gave all it kept back and "
                f"asked again {retries[-1] - retries[0]:.0f} times in {len(retries)} logged steps",
                why="alloc_retries of the `step` events; each time all kernels are waited for",
                fix=f"{facts['again']} micro_batch_size={half}; or "
                "`PYTORCH_ALLOC_CONF=expandable_segments:True`",
                severity="warning",
            )
        )
    took_s = steps[-1].time_s - steps[0].time_s if len(steps) > 1 else 0.0
    if len(faults) > 1 and took_s > 1 and (faults[-1] - faults[0]) / took_s > _FAULTS_PER_S:
        found.append(
            Finding(
                slug="slow-swap",
                what=f"{(faults[-1] - faults[0]) / took_s:,.0f} pages a second are read back from "
                "disk: the host's memory is too small",
                why=f"major_faults of the `step` events over {took_s:.0f} s",
                fix=f"{facts['again']} loader.workers={facts.get('half_workers', 'N')} "
                "loader.cache=off",
                severity="warning",
            )
        )
    return found


def _by_rank(scene: Scene, name: str) -> dict[int, float]:
    """Medians of the usage of each rank, without the first sample."""
    samples: dict[int, list[float]] = {}
    for usage in scene.of_kind(Usage, scene.last_attempt):
        value = getattr(usage, name)
        if value is not None:
            samples.setdefault(usage.rank, []).append(float(value))
    return {
        rank: median(values[1:]) for rank, values in samples.items() if len(values) > _LEAST_SAMPLES
    }


def _unequal(scene: Scene) -> list[Finding]:
    busy, held = _by_rank(scene, "gpu_percent"), _by_rank(scene, "gpu_memory_bytes")
    if len(busy) < 2:
        return []
    low, high = min(busy, key=busy.__getitem__), max(busy, key=busy.__getitem__)
    if busy[high] - busy[low] < _UNEQUAL:
        return []
    memory = ""
    if low in held and high in held:
        memory = f"; they hold {format_bytes(int(held[low]))} and {format_bytes(int(held[high]))}"
    idle = busy[low] < 5
    return [
        Finding(
            slug="unequal-load",
            what=f"the GPU of rank {low} is busy {busy[low]:.0f} % of the time, that of rank "
            f"{high} {busy[high]:.0f} %",
            why=f"medians of the `usage` events{memory}; "
            + ("it does not train" if idle else "the others wait for the slower one in every step"),
            fix="let each rank take its own device: "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
            if idle
            else "equal work: samples of similar length in each batch, a DistributedSampler; the "
            "card itself: `nvidia-smi -q -d CLOCK,PERFORMANCE` (heat, power)",
            severity="warning",
        )
    ]


def _by_usage(scene: Scene, steps: Sequence[Event]) -> list[Finding]:
    """What GPUs and processes show of a run that does not say where it waits."""
    busy, used = _by_rank(scene, "gpu_percent"), _by_rank(scene, "cpu_percent")
    waits = _values(steps, "data_wait")
    if not busy or median(busy.values()) >= _BUSY or (waits and median(waits) >= _WORTH):
        return []
    gpu, cpu = median(busy.values()), median(used.values()) if used else 0.0
    seen = f"medians of the `usage` events: GPUs busy {gpu:.0f} %, {cpu:.0f} % of a core per rank"
    if _ONE_CORE[0] <= cpu <= _ONE_CORE[1]:
        return [
            Finding(
                slug="slow-host",
                what=f"the GPUs compute {gpu:.0f} % of the time: launch-bound, one core of the "
                "host starts their kernels",
                why=seen,
                fix="a larger micro-batch gives each kernel more to do; compile=on or "
                "cuda_graph=on start many at once",
                severity="warning",
            )
        ]
    if cpu > _ONE_CORE[1] and not waits:
        return [
            Finding(
                slug="slow-loader-usage",
                what=f"the GPUs compute {gpu:.0f} % of the time while each rank keeps "
                f"{cpu / 100:.1f} cores busy: loader-bound, as far as usage tells",
                why=seen,
                fix="more loader processes (num_workers 8 to 16), or samples that are cheaper to "
                "make",
                severity="warning",
            )
        ]
    return [
        Finding(
            slug="slow-waiting",
            what=f"the GPUs compute {gpu:.0f} % of the time and the host is idle too: they wait "
            "for storage or for each other",
            why=seen,
            fix="phalanx bench JOB splits a step into data, compute, communication and overhead",
            severity="note",
        )
    ]


def _no_peers(scene: Scene) -> list[Finding]:
    """What NCCL says of links, where `--debug-comm` had it say something."""
    text = "P2P is disabled between connected GPUs"  # nccl src/graph/paths.cc
    said = next((line for line in scene.other_lines if text in line.text), None)
    if said is None:
        return []
    return [
        Finding(
            slug="slow-no-p2p",
            what="GPUs of this machine cannot reach each other's memory: what they exchange goes "
            "through the host's",
            why=f"{said}: {said.text.strip()[:200]}",
            fix="phalanx check shows the links; ACS in the BIOS, `iommu=pt`, or a virtual machine "
            "may be in the way",
            severity="note",
        )
    ]


def _as_predicted(scene: Scene, steps: Sequence[Event], facts: dict[str, str]) -> list[Finding]:
    """Where nothing was seen to wait: what the plan expects to take the time."""
    forecast = scene.plan.get("forecast")
    rates = _values(steps, "samples_per_s")
    if not isinstance(forecast, dict) or len(rates) < _LEAST_STEPS:
        return []
    predicted, rate = forecast.get("samples_per_s") or 0.0, median(rates)
    step_s, spread = forecast.get("step_s") or 0.0, forecast.get("spread") or 0.0
    if predicted <= 0 or step_s <= 0:
        return []
    exposed = ((forecast.get("exposed_s") or 0.0) + (forecast.get("waiting_s") or 0.0)) / step_s
    beside = f"{rate:,.0f} samples/s measured, {predicted:,.0f} predicted"
    if exposed > _WORTH:
        return [
            Finding(
                slug="slow-communication",
                what=f"about {exposed:.0%} of a step is exchange between ranks that computing does "
                "not hide: communication-bound, by the plan",
                why=f"exposed_s and waiting_s of the plan's forecast; {beside}",
                fix=f"{facts['again']} with twice the gradient_accumulation exchanges half as "
                "often",
                severity="note",
            )
        ]
    host, device = forecast.get("host_s") or 0.0, forecast.get("device_s") or 0.0
    is_launched = scene.planned("device") == "cuda"  # a CPU is its own host
    if is_launched and forecast.get("bottleneck") == "host" and host > (1 + _WORTH) * device:
        return [
            Finding(
                slug="slow-host-predicted",
                what=f"the host takes {host / device if device else 0:.1f} times as long to start "
                "the kernels of a step as the GPU to run them: launch-bound, by the plan",
                why=f"host_s and device_s of the plan's forecast; {beside}",
                fix=f"{facts['again']} compile=on or cuda_graph=on; or a larger micro-batch",
                severity="note",
            )
        ]
    if rate < predicted / (1 + 2 * spread):
        return [
            Finding(
                slug="slow-unknown",
                what=f"{rate / predicted:.0%} of the predicted speed, and the events do not say "
                "why",
                why=f"{beside}, give or take {spread:.0%}",
                fix="phalanx bench JOB splits a step into its parts",
                severity="note",
            )
        ]
    return []

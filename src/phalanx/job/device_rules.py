"""Rules about devices: which GPUs, how many ranks, what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from phalanx.errors import Finding
from phalanx.job.load import LoadedJob
from phalanx.job.schema import Job
from phalanx.job.source.origin import format_value


def ranks_asked(job: Job) -> int | None:
    """How many ranks the job asks for; None when that is left to the machine."""
    gpus = job.devices.gpus
    if isinstance(gpus, list):
        return len(gpus)
    return gpus if isinstance(gpus, int) else job.devices.cpu


def gpu_findings(
    loaded: LoadedJob,
    gpu_ids: Sequence[int],
    *,
    cuda_visible_devices: str | None,
    where: str = "this machine",
) -> list[Finding]:
    """Whether the GPUs a job asks for are among those of the machine."""
    gpus = loaded.job.devices.gpus
    if gpus is None or gpus == 0:
        return []
    there = f"{len(gpu_ids)} GPUs here: {list(gpu_ids)}" if gpu_ids else "no GPU here"
    visible = "not set" if cuda_visible_devices is None else f'"{cuda_visible_devices}"'
    why = f"{loaded.said('devices.gpus')}; {there}; CUDA_VISIBLE_DEVICES is {visible}"
    if not gpu_ids:
        return [
            Finding(
                slug="no-gpu",
                what=f"the job asks for GPUs ({format_value(gpus)}), {where} has 0",
                why=why,
                fix="--cpu 2",
            )
        ]
    origin = loaded.origin("devices.gpus")
    if isinstance(gpus, int) and gpus > len(gpu_ids):
        return [
            Finding(
                slug="too-few-gpus",
                what=f"the job asks for {gpus} GPUs, {where} has {len(gpu_ids)}",
                why=why,
                fix=origin.line_for("devices.gpus", len(gpu_ids)),
            )
        ]
    missing = [i for i in gpus if i >= 0 and i not in gpu_ids] if isinstance(gpus, list) else []
    if not missing or not isinstance(gpus, list):
        return []
    left = list(dict.fromkeys(i for i in gpus if i in gpu_ids)) or list(gpu_ids)
    return [
        Finding(
            slug="no-such-gpu",
            what=f"GPU {', '.join(map(str, missing))} is not there, "
            f"{where} has {', '.join(map(str, gpu_ids))}",
            why=why,
            fix=origin.line_for("devices.gpus", left),
        )
    ]


def check_devices(loaded: LoadedJob) -> Iterator[Finding]:
    """Where to train, and how the ranks share it."""
    devices = loaded.job.devices
    gpus, ranks = devices.gpus, ranks_asked(loaded.job)
    if gpus is not None and devices.cpu is not None:
        yield Finding(
            slug="gpus-and-cpu",
            what=f"the job asks for GPUs ({format_value(gpus)}) and for {devices.cpu} CPU "
            "processes, it trains on one kind",
            why=loaded.said("devices.gpus", "devices.cpu"),
            fix=loaded.keep_one("devices.gpus", "devices.cpu"),
        )
    if isinstance(gpus, int) and gpus < 1:
        yield Finding(
            slug="gpu-count",
            what=f"the job asks for {gpus} GPUs, the least is 1",
            why=f"{loaded.said('devices.gpus')}; a plain number is how many, not which",
            fix="--gpus 0, for GPU number 0 (devices.gpus: [0]), or --cpu 2 for none",
        )
    if isinstance(gpus, list):
        twice = [i for i, times in Counter(gpus).items() if times > 1]
        if twice and devices.backend != "gloo":
            yield Finding(
                slug="gpu-twice",
                what=f"GPU {', '.join(map(str, twice))} is given to more than one rank",
                why=f"{loaded.said('devices.gpus', 'devices.backend')}; NCCL joins different GPUs",
                fix=f"{loaded.line_for('devices.gpus', list(dict.fromkeys(gpus)))}, or let ranks "
                "share a GPU, which is slower: devices.backend=gloo",
            )
        negative = [i for i in gpus if i < 0]
        if negative or not gpus:
            wrong = [f"{i} is below 0" for i in dict.fromkeys(negative)]
            good = [i for i in dict.fromkeys(gpus) if i >= 0] or [0]
            yield Finding(
                slug="gpu-ids",
                what=f"the GPU ids {gpus} are wrong: {', '.join(wrong) or 'the list is empty'}",
                why=loaded.said("devices.gpus"),
                fix=loaded.line_for("devices.gpus", good),
            )
    if loaded.job.strategy == "single" and ranks is not None and ranks > 1:
        key = "devices.cpu" if gpus is None else "devices.gpus"
        yield Finding(
            slug="single-strategy",
            what=f"the strategy `single` trains on 1 rank, the job asks for {ranks}",
            why=loaded.said("strategy", key),
            fix=loaded.line_for("strategy", "ddp"),
        )
    if loaded.job.strategy == "fsdp" and loaded.job.determinism == "exact":
        yield Finding(
            slug="exact-sharded",
            what="`determinism: exact` adds up whole gradients, `fsdp` never holds one",
            why=loaded.said("determinism", "strategy"),
            fix=loaded.line_for("strategy", "ddp"),
        )
    if loaded.job.sync_batchnorm and loaded.job.determinism == "exact":
        yield Finding(
            slug="exact-synced",
            what="`determinism: exact` takes BatchNorm's statistics over one micro-batch, "
            "`sync_batchnorm` over those of all ranks",
            why=f"{loaded.said('determinism', 'sync_batchnorm')}; the bits would depend on the "
            "number of ranks",
            fix=loaded.line_for("sync_batchnorm", False),
        )
    if loaded.job.compile == "on" and loaded.job.determinism == "exact":
        yield Finding(
            slug="exact-compiled",
            what="`determinism: exact` wants the same bits for every micro-batch wherever it runs, "
            "`compile: on` makes other kernels for other sizes of micro-batches",
            why=f"{loaded.said('determinism', 'compile')}; which kernel a size gets depends on the "
            "sizes that a rank has seen before",
            fix=loaded.line_for("compile", "off"),
        )
    if devices.backend == "nccl" and devices.cpu is not None and gpus is None:
        yield Finding(
            slug="nccl-on-cpu",
            what=f"`nccl` joins GPUs only, the job asks for {devices.cpu} CPU processes",
            why=loaded.said("devices.backend", "devices.cpu"),
            fix=loaded.line_for("devices.backend", "gloo"),
        )

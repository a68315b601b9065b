"""The rules of a job that trains with DeepSpeed, and of one that only mentions it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from phalanx.errors import Finding
from phalanx.job.load import LoadedJob

INSTALL = 'pip install "phalanx[deepspeed]"'


def check_deepspeed(loaded: LoadedJob) -> Iterator[Finding]:
    """Every problem with DeepSpeed that can be seen without a machine."""
    if loaded.job.strategy != "deepspeed":
        yield from _mentioned(loaded)
        return
    if find_spec("deepspeed") is None:  # asked without importing it: that takes seconds
        yield Finding(
            slug="deepspeed-missing",
            what="the job trains with DeepSpeed, which is not installed",
            why=loaded.said("strategy"),
            fix=INSTALL,
        )
    settings = loaded.job.deepspeed
    if settings.offload_parameters and settings.stage != 3:
        yield Finding(
            slug="deepspeed-offload",
            what=f"weights can be offloaded at ZeRO stage 3, the job has stage {settings.stage}",
            why=loaded.said("deepspeed.offload_parameters", "deepspeed.stage"),
            fix=loaded.line_for("deepspeed.stage", 3),
        )
    if loaded.job.determinism == "exact":
        yield Finding(
            slug="deepspeed-exact",
            what="`determinism: exact` is not possible with DeepSpeed",
            why=f"{loaded.said('determinism', 'strategy')}; ZeRO adds gradients in an order that "
            "depends on the number of ranks",
            fix=loaded.line_for("determinism", "resume"),
        )
    if loaded.job.precision == "fp64":
        yield Finding(
            slug="deepspeed-fp64",
            what="DeepSpeed keeps weights in fp32, the job asks for fp64",
            why=loaded.said("precision", "strategy"),
            fix="precision=fp32, or strategy=fsdp, which has fp64",
        )


def _mentioned(loaded: LoadedJob) -> Iterator[Finding]:
    """A file is a wish that cannot be passed over; a setting may stay in the job unused."""
    strategy = loaded.job.strategy
    if loaded.job.deepspeed.config is not None:
        yield Finding(
            slug="deepspeed-strategy",
            what=f"the job names a file of DeepSpeed's and the strategy `{strategy}`",
            why=f"deepspeed.config ({loaded.origin('deepspeed.config')}), "
            f"{loaded.said('strategy')}",
            fix=loaded.line_for("strategy", "deepspeed"),
        )
    for key in ("deepspeed.stage", "deepspeed.offload_optimizer", "deepspeed.offload_parameters"):
        if loaded.origin(key).kind not in ("default", "deepspeed"):
            yield loaded.ignored(key, f"the strategy is `{strategy}`", "strategy", "deepspeed")

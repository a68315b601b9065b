"""DeepSpeed's part of a plan: the ZeRO stage, what is offloaded, and what DeepSpeed is told."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from phalanx.errors import Finding
from phalanx.job.schema import Job
from phalanx.job.strategies import facts_of
from phalanx.planner.schema.plan import Decision, Plan

_SPREAD = {
    1: "optimizer state is spread over the ranks",
    2: "optimizer state and gradients are spread over the ranks",
    3: "optimizer state, gradients and weights are spread over the ranks",
}

BUCKET = 500_000_000  # elements reduced at a time, DeepSpeed's default


def choose_zero_stage(job: Job, strategy: str) -> Decision[int | None]:
    """How much ZeRO spreads."""
    if not facts_of(strategy).has_zero_stages:
        return Decision(None, "no DeepSpeed")
    stage = job.deepspeed.stage
    return Decision(stage, f"deepspeed.stage = {stage}: {_SPREAD[stage]}")


def choose_zero_offload(job: Job) -> Decision[str | None]:
    """What DeepSpeed keeps in host memory."""
    settings = job.deepspeed
    kept = kept_by_zero(job)
    if kept is None:
        return Decision(None, "nothing is kept in host memory")
    keys = [key for key in ("offload_optimizer", "offload_parameters") if getattr(settings, key)]
    asked = ", ".join(f"deepspeed.{key} = true" for key in keys)
    return Decision(kept, f"{asked}: less device memory, slower steps")


def kept_by_zero(job: Job) -> str | None:
    """The same as the plan says it."""
    settings = job.deepspeed
    kept = ["optimizer"] * settings.offload_optimizer + ["weights"] * settings.offload_parameters
    return " and ".join(kept) or None


def deepspeed_findings(job: Job, *, device: str, precision: str) -> list[Finding]:
    """What speaks against DeepSpeed on this device and in this precision."""
    findings = []
    if device == "mps":
        findings.append(
            Finding(
                slug="deepspeed-on-mps",
                what="DeepSpeed does not train on Apple's MPS here",
                why=f"strategy = {job.strategy}; one device has nothing to share, and torch has no "
                "collectives for it",
                fix="strategy=single",
            )
        )
    given = job.deepspeed.config
    types = given.get("data_types", {}) if isinstance(given, dict) else {}
    is_offloaded = job.deepspeed.offload_optimizer
    if (
        (job.deepspeed.stage, precision, types.get("grad_accum_dtype")) == (1, "bf16", "fp32")
        # DeepSpeed then takes BF16_Optimizer, which keeps its weights in another way.
        and not is_offloaded
    ):
        findings.append(
            Finding(
                slug="deepspeed-gradients",
                what="bf16 with gradients added up in fp32 needs ZeRO stage 2 or 3, here it is 1",
                why="deepspeed.stage = 1, precision bf16, data_types.grad_accum_dtype = fp32",
                fix="deepspeed.stage=2",
            )
        )
    return findings


def deepspeed_settings(job: Job, plan: Plan) -> dict[str, Any]:
    """What DeepSpeed is told: the job's file without what the plan decides, and the plan."""
    given = job.deepspeed.config
    settings: dict[str, Any] = deepcopy(given) if isinstance(given, dict) else {}
    zero = settings.setdefault("zero_optimization", {})
    zero["stage"] = plan.parallel.zero_stage.value
    # DeepSpeed allocates the whole bucket, 2 GB by default: more than the model has is waste.
    zero.setdefault("reduce_bucket_size", min(BUCKET, plan.predicted.parameters.value))
    offloaded = {
        "offload_optimizer": job.deepspeed.offload_optimizer,
        "offload_param": job.deepspeed.offload_parameters,
    }
    for key, is_asked in offloaded.items():
        if is_asked:
            zero[key] = {**zero.get(key, {}), "device": "cpu"}
        else:
            zero.pop(key, None)
    for name in ("bf16", "fp16"):
        settings[name] = {
            **settings.get(name, {}),
            "enabled": plan.numerics.precision.value == name,
        }
    return {
        # Progress is in the events; DeepSpeed's meter would wait for the device after each step.
        "steps_per_print": None,
        "timers": {"throughput": {"enabled": False}},
        **settings,
        "train_micro_batch_size_per_gpu": plan.batch.micro_batch_size.value,
        # Slots may be unequal: the strategy says which pass of a step is the last.
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": not _adds_up_in_host_memory(job, plan),
        "gradient_clipping": job.optimizer.clip_norm or 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _adds_up_in_host_memory(job: Job, plan: Plan) -> bool:
    """Whether gradients of several passes meet in host memory. There DeepSpeed 0.19.8 hands over
    what it has added up in the last pass, and loses the gradients of a parameter that this pass
    does not reach; left to the update, it hands over everything."""
    settings = job.deepspeed
    return settings.offload_optimizer and settings.stage > 1 and plan.batch.accumulation.value > 1

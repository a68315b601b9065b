"""A job that cannot run says so, with the smallest change that would make it."""

from dataclasses import replace

import pytest

from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.trace import Weight
from phalanx.planner.solve import solve_plan

GIB = 2**30


def sizes(gib, *, per_sample=0, checkpointed=0):
    """A model of so many GiB of fp32 weights in 16 blocks and as much outside as in one."""
    weights = [Weight((1024, gib * 2**28 // 1024 // 17), 4, block=n) for n in range(17)]
    total = sum(4 * w.elements for w in weights)
    return {
        "weights": weights,
        "parameters": total // 4,
        "trainable_parameters": total // 4,
        "parameter_bytes": total,
        "trainable_bytes": total,
        "num_blocks": 16,
        "largest_block_bytes": total // 17,
        "outside_bytes": total // 17,
        "activation_bytes": {"fp32": [Line(0, 2 * per_sample)], "bf16": [Line(0, per_sample)]},
        "checkpointed_bytes": {"fp32": [Line(0, checkpointed)], "bf16": [Line(0, checkpointed)]},
    }


def case(name, model, keys, fix):
    return pytest.param(model, keys, fix, id=name)


OFF = {"activation_checkpointing": "off"}
OFFLOAD = "deepspeed.offload_optimizer=true deepspeed.offload_parameters=true"


@pytest.mark.parametrize(
    ("model", "keys", "fix"),
    [
        # 4 GiB of state; one sample takes 24 GiB in fp32 and 12 in bf16. A 4090 has 24 GiB, of
        # which tensors may take 16.4: the process then holds up to all that the driver leaves.
        case(
            "bf16",
            sizes(1, per_sample=12 * GIB),
            {"precision": "fp32", **OFF},
            "precision=bf16, which needs 16.0 GiB of 24.0 GiB",
        ),
        # 15 in bf16: 19 GiB, with which a process may hold up to 26.2.
        case(
            "may-not-fit",
            sizes(1, per_sample=15 * GIB),
            {"precision": "fp32", **OFF},
            "activation_checkpointing=on, which needs 4.0 GiB of 24.0 GiB",
        ),
        case(
            "checkpointing",
            sizes(1, per_sample=30 * GIB, checkpointed=GIB),
            {"precision": "bf16", **OFF},
            "activation_checkpointing=on, which needs 5.0 GiB of 24.0 GiB",
        ),
        # 4 x 7 GiB of state; half of that, and 3/17 of 7 GiB that are gathered or wait.
        case("fsdp", sizes(7), {"strategy": "ddp"}, "strategy=fsdp, which needs 15.3 GiB"),
        case(
            "offload",
            sizes(30),
            {"fsdp": {"offload": False}},
            "strategy=fsdp fsdp.offload=true, which needs 5.3 GiB",
        ),
        # The host has 125.5 GiB: 4 x 60 GiB of state have to be spread further.
        case("gpus", sizes(60), {}, "the same job on 64 GPUs, which needs 14.4 GiB"),
        case("one-gpu", sizes(60), {"devices": {"gpus": 1}}, "strategy=fsdp on 64 GPUs, which"),
        case(
            "zero",
            sizes(30),
            {"strategy": "deepspeed", "deepspeed": {"stage": 1}},
            f"deepspeed.stage=3 {OFFLOAD}, which needs 11.1 GiB",
        ),
        # Already with all that the job can say: what one rank gathers is too much for any 4090.
        case(
            "card",
            sizes(200),
            {"strategy": "fsdp", "fsdp": {"offload": True}},
            "the same job on H100 SXM, which needs 35.3 GiB of 79.6 GiB",
        ),
        # 31 GiB gathered: no number of 4090s would do, and 2 of no other card.
        case("cards", sizes(170), {}, "the same job on 8 x B200, which needs "),
        case("nothing", sizes(30000), {}, "a smaller model"),
    ],
)
def test_what_does_not_fit_says_what_would(solve, model, keys, fix):
    plan, findings = solve("2x4090", trace=model, global_batch_size=8, **keys)
    (finding,) = [f for f in findings if f.slug == "does-not-fit"]
    assert finding.severity == "error"
    assert finding.fix.startswith(fix)
    assert "NVIDIA GeForce RTX 4090 has 24.0 GiB" in finding.what
    assert f"predicted for {plan.parallel.strategy.value} on " in finding.why


def test_a_micro_batch_that_is_too_large_is_a_warning(solve):
    keys = {"global_batch_size": 64, "micro_batch_size": 32, "precision": "bf16", **OFF}
    _, (finding,) = solve("2x4090", trace=sizes(1, per_sample=GIB), **keys)
    assert (finding.slug, finding.severity) == ("micro-batch-too-large", "warning")
    assert "micro-batches of 32 a process may hold 36.4 GiB to 48.1 GiB" in finding.what
    assert "the smallest GPU has 24.0 GiB" in finding.what
    assert finding.fix == "micro_batch_size=8"
    _, findings = solve("cpu", trace=sizes(1, per_sample=GIB), **keys)
    assert findings == [], "host memory is not watched"


def test_a_micro_batch_that_is_asked_for_is_kept_though_it_may_be_too_large(solve):
    # 12 GiB and 4 of state: up to 22.9 GiB in the process. 14 GiB: up to 25.4.
    keys = {"global_batch_size": 24, "precision": "bf16", "devices": {"gpus": 1}, **OFF}
    plan, findings = solve("2x4090", trace=sizes(1, per_sample=GIB), micro_batch_size=12, **keys)
    assert (plan.batch.micro_batch_size.value, findings) == (12, [])
    keys["global_batch_size"] = 30
    plan, (finding,) = solve("2x4090", trace=sizes(1, per_sample=GIB), micro_batch_size=15, **keys)
    assert plan.predicted.memory_bytes.value < plan.devices.device_bytes
    assert plan.batch.micro_batch_size.value == 15
    assert (finding.slug, finding.severity) == ("micro-batch-too-large", "warning")
    assert finding.fix == "micro_batch_size=7"


def test_where_nothing_smaller_is_left_the_plan_warns_with_both_numbers(solve):
    keys = {"global_batch_size": 2, "precision": "bf16", "strategy": "ddp", **OFF}
    plan, (finding,) = solve("2x4090", trace=sizes(1, per_sample=15 * GIB), **keys)
    assert plan.batch.micro_batch_size.value == 1
    assert (finding.slug, finding.severity) == ("memory-tight", "warning")
    assert "may hold 20.1 GiB to 26.6 GiB" in finding.what
    assert "NVIDIA GeForce RTX 4090 has 24.0 GiB" in finding.what
    assert finding.fix.startswith("activation_checkpointing=on, which needs 4.0 GiB of 24.0 GiB")


def test_what_others_hold_and_ranks_that_share_a_card_leave_less(
    solve, make_job, make_trace, load_machine
):
    trace = sizes(1, per_sample=GIB)
    keys = {"global_batch_size": 16, "precision": "bf16", "trace": trace, **OFF}
    alone, _ = solve("2x4090", devices={"gpus": [0]}, **keys)
    shared, _ = solve("2x4090", devices={"gpus": [0, 0]}, **keys)
    assert shared.devices.device_bytes == alone.devices.device_bytes // 2

    machine = load_machine("2x4090")
    half = [replace(g, memory_free_bytes=g.memory_total_bytes // 2) for g in machine.gpus]
    job = make_job(devices={"gpus": [0]}, **{k: v for k, v in keys.items() if k != "trace"})
    busy, _ = solve_plan(job, replace(machine, gpus=half), make_trace(**trace))
    assert busy.devices.device_bytes == alone.devices.device_bytes // 2
    for plan in (alone, shared, busy):
        assert 1.15 * plan.predicted.process_bytes.value <= plan.devices.device_bytes
    assert busy.batch.micro_batch_size.value < alone.batch.micro_batch_size.value


def test_a_loss_that_cannot_be_traced_is_said(solve):
    trace = {"activations_unknown": "RuntimeError: sizes do not match"}
    _, (finding,) = solve("2x4090", trace=trace)
    assert (finding.slug, finding.severity) == ("activations-unknown", "warning")
    assert "RuntimeError: sizes do not match" in finding.why
    assert solve("cpu", trace=trace)[1] == []

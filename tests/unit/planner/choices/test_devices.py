"""Device, ranks and arithmetic on the machines of the fixtures."""

from dataclasses import replace

import pytest

from phalanx.machine.environment import communication_variables, show_variables
from phalanx.planner.choices import devices
from phalanx.planner.solve import solve_plan

DEFAULTS = {
    # machine: device, ranks, precision, backend, strategy, determinism, workers, threads, pinned
    "cpu": ("cpu", 2, "fp32", "gloo", "ddp", "resume", 0, 16, False),
    "1xt4": ("cuda", 1, "fp16", "none", "single", "fast", 4, 4, True),
    "2x4090": ("cuda", 2, "bf16", "nccl", "ddp", "fast", 4, 4, True),
    "8xa100": ("cuda", 8, "bf16", "nccl", "ddp", "fast", 4, 4, True),
    "16x2080": ("cuda", 16, "fp16", "nccl", "ddp", "fast", 4, 4, True),
    "mps": ("mps", 1, "bf16", "none", "single", "fast", 0, 4, False),
}


@pytest.mark.parametrize("machine", DEFAULTS)
def test_a_bare_job_takes_all_there_is(solve, machine):
    plan, findings = solve(machine)
    chosen = (
        plan.devices.device.value,
        plan.devices.ranks.value,
        plan.numerics.precision.value,
        plan.devices.backend.value,
        plan.parallel.strategy.value,
        plan.numerics.determinism.value,
        plan.loading.workers.value,
        plan.execution.threads.value,
        plan.loading.pin_memory.value,
    )
    assert chosen == DEFAULTS[machine]
    assert findings == []


@pytest.mark.parametrize("machine", DEFAULTS)
def test_gpu_ids_are_one_per_rank_on_cuda_only(solve, machine):
    plan, _ = solve(machine)
    expected = list(range(plan.devices.ranks.value)) if plan.devices.device.value == "cuda" else []
    assert plan.devices.gpus.value == expected


@pytest.mark.parametrize(
    ("asked", "ids"), [("all", list(range(8))), (3, [0, 1, 2]), ([5, 2], [5, 2]), ([0], [0])]
)
def test_gpus_as_asked_in_the_order_asked(solve, asked, ids):
    plan, _ = solve("8xa100", devices={"gpus": asked})
    assert plan.devices.gpus.value == ids
    assert plan.devices.ranks.value == len(ids)


def test_cpu_as_asked_also_beside_gpus(solve):
    plan, _ = solve("2x4090", devices={"cpu": 3})
    assert (plan.devices.device.value, plan.devices.ranks.value, plan.devices.gpus.value) == (
        "cpu",
        3,
        [],
    )
    assert plan.devices.backend.value == "gloo"
    assert plan.numerics.precision.value == "fp32"
    assert plan.loading.pin_memory.value is False


def test_cuda_visible_devices_is_named(make_job, load_machine):
    machine = replace(load_machine("2x4090"), cuda_visible_devices="1,0")
    placement = devices.place_ranks(make_job(), machine)
    assert "CUDA_VISIBLE_DEVICES=1,0" in placement.gpus.reason


def test_one_core_gets_one_cpu_rank(make_job, load_machine):
    machine = load_machine("cpu")
    machine = replace(machine, cpu=replace(machine.cpu, usable_cores=1))
    assert devices.place_ranks(make_job(), machine).ranks.value == 1


def test_the_weakest_of_mixed_gpus_decides_the_precision(make_job, load_machine):
    machine = load_machine("2x4090")
    old = replace(machine.gpus[1], compute_capability=(7, 5), name="Old")
    machine = replace(machine, gpus=(machine.gpus[0], old))
    placement = devices.place_ranks(make_job(), machine)
    precision, findings = devices.choose_precision(make_job(), placement, machine)
    assert precision.value == "fp16"
    assert "Old has compute capability 7.5" in precision.reason
    assert findings == []


@pytest.mark.parametrize(
    ("machine", "precision"),
    [
        ("16x2080", "bf16"),
        ("16x2080", "tf32"),
        ("1xt4", "bf16"),
        ("cpu", "tf32"),
        ("mps", "fp64"),
        ("mps", "tf32"),
    ],
)
def test_a_forced_precision_the_device_lacks_is_a_finding(solve, machine, precision):
    _, findings = solve(machine, precision=precision)
    (finding,) = findings
    assert finding.slug == "precision-unsupported"
    assert finding.severity == "error"
    assert precision in finding.what
    assert f"precision = {precision}" in finding.why


def test_the_finding_about_bf16_names_the_capability_and_a_way_out(solve):
    _, (finding,) = solve("16x2080", precision="bf16")
    assert "compute capability 7.5" in finding.why
    assert "8.0" in finding.why
    assert "fp16" in finding.fix


def test_a_precision_whose_probe_failed_is_a_finding_on_cpu(make_job, load_machine):
    machine = load_machine("cpu")
    probes = tuple(
        replace(probe, ok=probe.precision != "bf16", native=None) for probe in machine.torch.probes
    )
    machine = replace(machine, torch=replace(machine.torch, probes=probes))
    job = make_job(precision="bf16")
    _, findings = devices.choose_precision(job, devices.place_ranks(job, machine), machine)
    assert [f.slug for f in findings] == ["precision-unsupported"]


def test_a_precision_whose_probe_failed_is_a_finding_on_mps(make_job, load_machine):
    machine = load_machine("mps")
    probes = tuple(
        replace(probe, ok=probe.precision != "bf16", native=None) for probe in machine.torch.probes
    )
    machine = replace(machine, torch=replace(machine.torch, probes=probes))
    job = make_job(precision="bf16")
    placement = devices.place_ranks(job, machine)
    assert placement.device.value == "mps"
    _, findings = devices.choose_precision(job, placement, machine)
    assert [f.slug for f in findings] == ["precision-unsupported"]


@pytest.mark.parametrize(
    ("machine", "precision"),
    [
        ("2x4090", "bf16"),
        ("2x4090", "tf32"),
        ("2x4090", "fp16"),
        ("16x2080", "fp16"),
        ("16x2080", "fp32"),
        ("cpu", "fp64"),
        ("cpu", "bf16"),
        ("mps", "fp16"),
    ],
)
def test_a_forced_precision_the_device_has_is_taken(solve, machine, precision):
    plan, findings = solve(machine, precision=precision)
    assert plan.numerics.precision.value == precision
    assert findings == []


@pytest.mark.parametrize("machine", ["cpu", "2x4090"])
def test_workers_as_asked(solve, machine):
    plan, _ = solve(machine, loader={"workers": 7})
    assert plan.loading.workers.value == 7


def test_pinned_memory_that_is_ignored_says_so(solve):
    plan, _ = solve("mps", loader={"pin_memory": True})
    assert plan.loading.pin_memory.value is False
    assert "ignored" in plan.loading.pin_memory.reason
    plan, _ = solve("2x4090", loader={"pin_memory": False})
    assert plan.loading.pin_memory.value is False


def test_cpu_threads_share_the_cores(solve):
    for ranks, threads in ((1, 32), (2, 16), (3, 10), (64, 1)):
        plan, _ = solve("cpu", devices={"cpu": ranks})
        assert plan.execution.threads.value == threads


def test_threads_are_kept_on_resume_with_the_same_ranks_only(solve, make_job, load_machine):
    before, _ = solve("cpu", devices={"cpu": 2})
    machine = load_machine("cpu")
    smaller = replace(machine, cpu=replace(machine.cpu, usable_cores=4))
    same = devices.place_ranks(make_job(devices={"cpu": 2}), smaller)
    other = devices.place_ranks(make_job(devices={"cpu": 4}), smaller)
    assert devices.choose_threads(make_job(), same, smaller, before).value == 16
    assert devices.choose_threads(make_job(), other, smaller, before).value == 1


def test_backend_without_nccl_is_gloo(make_job, load_machine):
    machine = load_machine("2x4090")
    machine = replace(machine, torch=replace(machine.torch, has_nccl=False))
    placement = devices.place_ranks(make_job(), machine)
    assert devices.choose_backend(make_job(), placement, machine).value == "gloo"


def test_backend_as_asked(solve):
    plan, _ = solve("2x4090", devices={"backend": "gloo"})
    assert plan.devices.backend.value == "gloo"


def test_determinism_as_asked_and_what_cublas_needs_for_it(solve):
    plan, _ = solve("2x4090", determinism="resume")
    assert plan.numerics.determinism.value == "resume"
    assert plan.devices.worker_env["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    plan, _ = solve("2x4090")
    assert "CUBLAS_WORKSPACE_CONFIG" not in plan.devices.worker_env
    plan, _ = solve("cpu")
    assert "CUBLAS_WORKSPACE_CONFIG" not in plan.devices.worker_env


def test_single_on_several_ranks_never_happens(solve):
    # Ranks that do not talk would each train alone and write into the same run.
    plan, findings = solve("2x4090", strategy="single")
    assert plan.devices.ranks.value == 1 or [f for f in findings if f.severity == "error"]


def test_ddp_on_one_rank_never_happens(solve):
    # One rank has no process group, which DDP needs.
    plan, findings = solve("1xt4", strategy="ddp")
    assert plan.parallel.strategy.value == "single" or [
        f for f in findings if f.severity == "error"
    ]


@pytest.mark.parametrize(
    ("machine", "named", "asked", "backend", "slugs"),
    [
        ("2x4090", "gloo", "auto", "gloo", []),
        ("2x4090", "gloo", "nccl", "nccl", []),
        ("2x4090", "mpi", "auto", "nccl", ["backend-variable"]),
        ("cpu", "nccl", "auto", "gloo", ["backend-variable"]),
        ("cpu", "auto", "auto", "gloo", []),
    ],
)
def test_the_backend_of_the_environment_is_taken_where_it_fits(
    load_machine, make_job, make_trace, machine, named, asked, backend, slugs
):
    there = replace(load_machine(machine), environment={"TORCH_DISTRIBUTED_BACKEND": named})
    plan, findings = solve_plan(make_job(devices={"backend": asked}), there, make_trace())
    assert plan.devices.backend.value == backend
    assert [finding.slug for finding in findings] == slugs
    assert ("TORCH_DISTRIBUTED_BACKEND=gloo" in plan.devices.backend.reason) == (
        (named, asked) == ("gloo", "auto")
    )


def test_only_variables_of_communication_are_shown_and_no_secret():
    given = {"NCCL_DEBUG": "INFO", "TORCH_HUB_TOKEN": "x", "PATH": "/bin", "GLOO_LOG": "a\nb"}
    found = communication_variables(given)
    assert found == {"GLOO_LOG": "a\nb", "NCCL_DEBUG": "INFO"}
    assert show_variables(found) == "GLOO_LOG=a?b, NCCL_DEBUG=INFO"

"""The plan of an evaluation computes as training did, where it can."""

import pytest

from phalanx.job.schema import Devices
from phalanx.planner.evaluation_plan import devices_here, plan_evaluation
from phalanx.planner.schema.plan import Decision
from phalanx.planner.solve import solve_plan


@pytest.fixture
def plan_on(make_job, make_trace, load_machine):
    def make(machine, **keys):
        job = make_job(**keys)
        return job, solve_plan(job, load_machine(machine), make_trace())[0]

    return make


def adapted(plan, job, trained, trained_job):
    return plan_evaluation(plan, job, trained=trained, trained_job=trained_job)


def test_what_decides_about_bits_is_as_in_training(plan_on):
    job, plan = plan_on("cpu", devices={"cpu": 2})
    trained = plan.replace(
        evaluate_batch_size=Decision(7, "then"),
        compile=Decision("on", "then"),
        precision=Decision("bf16", "then"),
        threads=Decision(3, "then"),
        cuda_graph=Decision("on", "then"),
    )
    made = adapted(plan, job, trained, job)
    assert (made.evaluation.evaluate_batch_size.value, made.execution.compile.value) == (7, "on")
    assert (made.numerics.precision.value, made.execution.threads.value) == ("bf16", 3)
    assert made.execution.cuda_graph.value == "off"
    assert made.numerics.precision.reason == "as in training"


def test_another_device_plans_for_itself_but_keeps_the_batch(plan_on):
    trained_job, trained = plan_on("8xa100")
    trained = trained.replace(evaluate_batch_size=Decision(999, "then"))
    job, plan = plan_on("cpu", devices={"cpu": 1})
    made = adapted(plan, job, trained, trained_job)
    assert made.evaluation.evaluate_batch_size.value == 999
    assert made.numerics.precision == plan.numerics.precision
    assert made.execution.threads == plan.execution.threads


def test_what_is_asked_for_now_wins(plan_on):
    trained_job, trained = plan_on("cpu", devices={"cpu": 1})
    trained = trained.replace(evaluate_batch_size=Decision(7, "then"))
    job, plan = plan_on("cpu", devices={"cpu": 1}, precision="fp64", evaluate={"batch_size": 5})
    made = adapted(plan, job, trained, trained_job)
    assert (made.numerics.precision.value, made.evaluation.evaluate_batch_size.value) == ("fp64", 5)


def test_threads_of_a_larger_machine_are_not_taken(plan_on):
    job, plan = plan_on("cpu", devices={"cpu": 2})
    cores = plan.devices.ranks.value * plan.execution.threads.value
    for threads, expected in ((cores, cores), (cores + 1, plan.execution.threads.value)):
        trained = plan.replace(threads=Decision(threads, "then"))
        assert adapted(plan, job, trained, job).execution.threads.value == expected


@pytest.mark.parametrize(
    ("machine", "asked", "expected"),
    [
        ("8xa100", {"gpus": "all"}, None),
        ("8xa100", {"gpus": [7, 3]}, None),
        ("2x4090", {"gpus": [7, 3]}, Devices(backend="auto")),
        ("2x4090", {"gpus": 8}, Devices(backend="auto")),
        ("cpu", {"gpus": "all", "backend": "nccl"}, Devices(cpu=1)),
        ("cpu", {}, None),
        ("8xa100", {"cpu": 3}, None),
    ],
)
def test_devices_of_another_machine_become_those_here(
    make_job, load_machine, machine, asked, expected
):
    job = make_job(devices=asked)
    devices, note = devices_here(job, load_machine(machine))
    assert devices == (expected or job.devices)
    assert (note is not None) == (expected is not None)

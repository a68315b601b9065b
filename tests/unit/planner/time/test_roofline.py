"""The roofline of one device."""

import pytest

from phalanx.machine import parse_machine
from phalanx.planner.schema.footprint import Line
from phalanx.planner.schema.operators import Operator, Shape
from phalanx.planner.time.rates import HOST_VIEW_S, device_rates
from phalanx.planner.time.roofline import time_operators, time_update


def rates_of(words):
    machine = parse_machine(words)
    found, findings = device_rates(machine, machine.accelerator, machine.visible_gpus, threads=1)
    assert findings == []
    return found


H200 = rates_of("H200")


def product(m, n, k, dtype="half", name="aten.mm"):
    """A product whose rows are those of the samples."""
    return Operator(
        "product",
        "forward",
        dtype,
        1,
        Line(0, 2 * m * n * k),
        Line(2 * n * k, 2 * m * (n + k)),
        Shape(Line(1, 0), Line(0, m), Line(n, 0), Line(k, 0)),
        name,
    )


def seconds(operator, samples=1, rates=H200, precision="bf16"):
    return time_operators([operator], samples, rates, precision).forward_s


def test_no_product_is_faster_than_the_peak():
    large = product(8192, 8192, 8192)
    assert 2 * 8192**3 / seconds(large) < 989e12
    assert 2 * 8192**3 / seconds(large) > 0.5 * 989e12


def test_small_products_do_not_fill_the_device():
    rate = [2 * m * 768 * 768 / seconds(product(m, 768, 768)) for m in (64, 512, 4096, 65536)]
    assert rate == sorted(rate)
    assert rate[0] < 0.1 * rate[-1]


def test_nothing_is_faster_than_a_kernel_or_than_memory():
    tiny = Operator("memory", "forward", "half", 10, Line(0, 0), Line(0, 4))
    assert seconds(tiny) == pytest.approx(10 * H200.kernel_s)
    large = Operator("memory", "forward", "half", 1, Line(0, 0), Line(0, 4_800_000_000))
    assert 0.001 < seconds(large) < 0.002  # 4.8 GB at 4.8 TB/s


def test_views_cost_the_host_alone():
    found = time_operators(
        [Operator("view", "forward", "half", 7, Line(0, 0), Line(0, 0))], 8, H200, "bf16"
    )
    assert found.device_s == 0
    assert found.host_s == pytest.approx(7 * HOST_VIEW_S)


def test_the_precision_decides_the_unit():
    fp32, tf32 = (seconds(product(8192, 8192, 8192, "fp32"), precision=p) for p in ("fp32", "tf32"))
    assert fp32 > 5 * tf32 > 5 * seconds(product(8192, 8192, 8192))


def test_cards_rank_as_their_figures_do():
    work = product(4096, 4096, 4096)
    times = [
        seconds(work, rates=rates_of(name)) for name in ("RTX 2080", "A100-80", "H100", "B200")
    ]
    assert times == sorted(times, reverse=True)


def test_an_unknown_card_is_taken_for_the_nearest_with_a_warning():
    from dataclasses import replace

    machine = parse_machine("A100-80")
    card = replace(machine.gpus[0], name="NVIDIA A800-SXM4-80GB")
    found, (finding,) = device_rates(machine, "cuda", (card,), threads=1)
    assert found.name.startswith("A100-80")
    assert finding.slug == "gpu-not-in-catalogue"
    assert finding.severity == "warning"


def test_adamw_moves_28_bytes_for_each_parameter():
    plain = {"state_copies": 2, "has_clip": False, "has_average": False, "is_scaled": False}
    adamw = time_update(4 * 10**9, rates=H200, **plain)
    sgd = time_update(4 * 10**9, rates=H200, **{**plain, "state_copies": 0})
    assert adamw / sgd == pytest.approx(7 / 3)
    assert adamw > 28e9 / 4800e9

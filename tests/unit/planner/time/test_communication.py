"""Collectives by topology, and what computing hides of them."""

from itertools import pairwise

import pytest

from phalanx.machine import parse_machine
from phalanx.machine.calibration import Calibration, MeasuredLink
from phalanx.planner.time.communication import Ring, exchange_ddp, exchange_sharded, make_ring

GRADIENTS = 4 * 340_000_000


def ring_of(words, ranks, backend="nccl", calibration=None):
    machine = parse_machine(words)
    return make_ring(
        machine,
        machine.visible_gpus,
        ranks=ranks,
        nodes=machine.nodes,
        backend=backend,
        calibration=calibration,
    )


def test_one_rank_exchanges_nothing():
    ring = ring_of("A100-80", 1)
    assert ring.all_reduce(GRADIENTS) == 0
    assert exchange_ddp(ring, GRADIENTS, 25 * 2**20, 1.0).exposed_s == 0


def test_a_ring_moves_twice_what_a_gather_moves():
    ring = Ring(4, 100.0, 0.0, "")
    assert ring.all_reduce(1e9) == pytest.approx(2 * 3 / 4 / 100)
    assert ring.all_reduce(1e9) == pytest.approx(2 * ring.all_gather(1e9))


@pytest.mark.parametrize(
    ("words", "ranks", "low", "high"),
    [
        ("8x V100-32", 8, 110, 130),  # torch's comm_analysis.py: 120
        ("8x A100-80", 8, 230, 250),  # 240
        ("8x H100", 8, 350, 380),  # 370
        ("2x A100-80 PCIe", 2, 20, 26),  # 24
        ("2 nodes x 8x A100-80, 200 Gb/s", 16, 18, 25),  # 25 GB/s of network
    ],
)
def test_bandwidth_reached_is_as_others_have_measured(words, ranks, low, high):
    assert low <= ring_of(words, ranks).gb_per_s <= high


def test_slower_links_take_longer():
    times = [
        ring_of(words, 8).all_reduce(GRADIENTS)
        for words in ("8x H100", "8x A100-80", "8x A100-80 PCIe", "8x RTX 3090")
    ]
    assert all(fast < slow for fast, slow in pairwise(times))


def test_geforce_cards_talk_through_host_memory():
    assert "through host memory" in ring_of("2x RTX 4090", 2).text
    assert "through host memory" not in ring_of("2x L40S", 2).text


def test_a_long_backward_hides_all_but_the_last_bucket():
    ring = ring_of("8x A100-80", 8)
    bucket = 25 * 2**20
    short, long = (exchange_ddp(ring, GRADIENTS, bucket, s) for s in (0.001, 10.0))
    assert long.total_s == short.total_s
    assert long.exposed_s == pytest.approx(long.total_s / round(GRADIENTS / bucket), rel=0.01)
    assert short.exposed_s > 0.9 * short.total_s - 0.001


def test_sharding_moves_weights_twice_and_gradients_once():
    ring = Ring(8, 100.0, 0.0, "")
    found = exchange_sharded(
        ring,
        weight_bytes=10**9,
        gradient_bytes=2 * 10**9,
        blocks=10,
        passes=1,
        forward_s=0.0,
        backward_s=0.0,
        is_kept=False,
    )
    assert found.total_s == pytest.approx((1 + 1 + 2) * 7 / 8 / 100)
    assert found.exposed_s == found.total_s


def test_what_was_measured_goes_before_the_catalogue():
    link = MeasuredLink(ranks=2, backend="nccl", latency_us=20.0, gb_per_s=18.0)
    measured = Calibration(
        device="NVIDIA GeForce RTX 4090", measured_at="2026-11-15", torch_version="2", links=(link,)
    )
    ring = ring_of("2x RTX 4090", 2, calibration=measured)
    assert (ring.gb_per_s, ring.latency_s) == (18.0, pytest.approx(20e-6))
    assert ring_of("4x RTX 4090", 4, calibration=measured).gb_per_s != 18.0

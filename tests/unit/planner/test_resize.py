"""The same job on another number of ranks: fewer cards, more like them, whole nodes."""

from dataclasses import replace

import pytest

from phalanx.machine import parse_machine
from phalanx.planner.choices.devices import place_ranks
from phalanx.planner.resize import on_ranks


def ranks_of(scaled):
    return place_ranks(scaled.job, scaled.machine).ranks.value


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("machine", ["cpu", "2x4090", "8xa100"])
def test_any_number_of_ranks_can_be_had(make_job, load_machine, machine, ranks):
    assert ranks_of(on_ranks(make_job(), load_machine(machine), ranks)) == ranks


def test_fewer_cards_are_the_first_ones_and_share_all_cores(make_job, load_machine):
    machine = load_machine("8xa100")
    scaled = on_ranks(make_job(), machine, 2)
    assert scaled.machine.gpus == machine.visible_gpus[:2]
    assert scaled.machine.cpu == machine.cpu


def test_more_cards_are_joined_as_those_that_are_there_with_cores_for_each(make_job, load_machine):
    machine = load_machine("2x4090")
    grown = on_ranks(make_job(), machine, 8).machine
    assert {gpu.name for gpu in grown.gpus} == {machine.gpus[0].name}
    assert len({gpu.cuda_index for gpu in grown.gpus}) == 8
    assert grown.cpu.usable_cores == 4 * machine.cpu.usable_cores
    assert len(grown.links) == 8 * 7 // 2
    assert {link.path for link in grown.links} == {link.path for link in machine.links}
    unknown = on_ranks(make_job(), replace(machine, links=()), 4).machine
    assert {link.path for link in unknown.links} == {"?"}


def test_nodes_are_taken_whole(make_job):
    machine = parse_machine("2 nodes x 8x A100-80, 200 Gb/s")
    for ranks, nodes, cards in ((4, 1, 4), (8, 1, 8), (16, 2, 8), (32, 4, 8)):
        scaled = on_ranks(make_job(), machine, ranks).machine
        assert (scaled.nodes, len(scaled.gpus)) == (nodes, cards)
        assert scaled.node_link_gbps == 200


def test_a_choice_of_devices_is_lifted_and_single_becomes_open(make_job, load_machine):
    job = make_job(strategy="single", devices={"gpus": [1]})
    scaled = on_ranks(job, load_machine("2x4090"), 2)
    assert (scaled.job.strategy, scaled.job.devices.gpus) == ("auto", None)
    assert on_ranks(job, load_machine("2x4090"), 1).job.strategy == "single"

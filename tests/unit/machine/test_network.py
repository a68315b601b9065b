"""The network of a node, and several nodes as one machine."""

from dataclasses import replace

import pytest

from phalanx.machine import parse_machine
from phalanx.machine.combined import combine_machines
from phalanx.machine.network import Interface, choose_interface, network_settings, own_addresses

NAMES = ("node 0: a, 10.0.0.1 on eth0", "node 1: b, 10.0.0.2 on eth0")


def test_the_interface_is_the_one_that_leads_there_unless_the_user_has_named_one():
    loopback = own_addresses()["127.0.0.1"]
    assert choose_interface("127.0.0.1", {}).name == loopback
    named = choose_interface("127.0.0.1", {"NCCL_SOCKET_IFNAME": f"={loopback},eth9"})
    assert (named.name, named.address) == (loopback, "127.0.0.1")
    assert named.reason == f"NCCL_SOCKET_IFNAME=={loopback},eth9"


def test_settings_say_why_and_leave_the_users_own_alone(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    way = Interface("eth0", "10.0.0.2", "it leads to 10.0.0.1")
    on_cpu = network_settings(way, has_cuda=False)
    assert [str(s) for s in on_cpu] == ["GLOO_SOCKET_IFNAME=eth0: it leads to 10.0.0.1"]
    plain = {s.name: s.value for s in network_settings(way, has_cuda=True, rdma=[])}
    assert plain["NCCL_IB_DISABLE"] == "1"
    assert "NCCL_IB_DISABLE" not in {
        s.name for s in network_settings(way, has_cuda=True, rdma=["mlx5_0"])
    }
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    mine = {s.name: s for s in network_settings(way, has_cuda=True, rdma=[])}
    assert str(mine["NCCL_SOCKET_IFNAME"]) == "NCCL_SOCKET_IFNAME=ib0: set by you"


def test_nodes_are_planned_for_by_the_least_of_each():
    large, small = parse_machine("4x A100-80"), parse_machine("2x A100-40, 16 cores")
    machine, findings = combine_machines([large, small], NAMES, [100.0, 25.0], on_cpu=False)
    assert (machine.nodes, machine.node_link_gbps, machine.hosts) == (2, 25.0, NAMES)
    assert len(machine.visible_gpus) == 2
    assert machine.visible_gpus[0].memory_total_bytes == small.gpus[0].memory_total_bytes
    assert machine.cpu.usable_cores == 16
    assert {f.slug: f.severity for f in findings} == {
        "nodes-gpus": "warning",
        "nodes-cards": "warning",
    }
    assert "2 of each are used and 2 idle" in findings[0].what
    same, findings = combine_machines([large, large], NAMES, [100.0, None], on_cpu=False)
    assert findings == []
    assert same.node_link_gbps is None


@pytest.mark.parametrize("on_cpu", [False, True])
def test_different_devices_are_refused_unless_none_is_asked_for(on_cpu):
    gpus = parse_machine("4x A100-80")
    bare = replace(gpus, gpus=(), torch=None)
    _, findings = combine_machines([gpus, bare], NAMES, [None, None], on_cpu=on_cpu)
    assert [f.slug for f in findings] == ([] if on_cpu else ["nodes-devices"])

"""What there is on this machine, and what is wrong with it."""

from phalanx.machine.checks import cannot_train, check_machine
from phalanx.machine.facts import Gpu, Link, Machine, PrecisionProbe, TorchFacts
from phalanx.machine.inventory import probe_machine
from phalanx.machine.spec import parse_machine
from phalanx.machine.topology import link_matrix

__all__ = [
    "Gpu",
    "Link",
    "Machine",
    "PrecisionProbe",
    "TorchFacts",
    "cannot_train",
    "check_machine",
    "link_matrix",
    "parse_machine",
    "probe_machine",
]

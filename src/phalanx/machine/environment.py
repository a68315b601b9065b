"""Variables of the environment that steer how ranks talk, and names that look like secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEBUG_COMMUNICATION = {
    "NCCL_DEBUG": "INFO",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO",
}
"""What has NCCL and torch.distributed say what they do, for `--debug-comm`."""

_PREFIXES = ("NCCL_", "GLOO_", "TORCH_")
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """Whether the value behind a name is better not shown."""
    return _SECRET.search(name) is not None


def communication_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL_*, GLOO_* and TORCH_* as they are set: all of them reach the ranks."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES) and not looks_secret(name)
    }


def show_variables(variables: Mapping[str, str]) -> str:
    """On one line, without what a terminal would obey."""
    shown = (f"{name}={value}" for name, value in variables.items())
    return ", ".join("".join(c if c.isprintable() else "?" for c in text) for text in shown)

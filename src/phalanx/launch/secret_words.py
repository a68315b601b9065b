"""Which values of the environment are secret: none of them may stand in a command line, a script or
a log."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL")


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Each secret value with the name of its variable; short ones stand in words by chance."""
    return {
        value: name
        for name, value in environment.items()
        if _SECRET.search(name.upper()) and len(value) >= 8
    }

"""Python's garbage collector, kept from stopping a rank in the middle of a step.

Left alone it runs whenever some hundred objects more were made than freed, and now and then over
all objects there are: torch and a model are some hundred thousand of them, a tenth of a second,
during which one rank launches nothing and the others wait for it. Here what is there before the
first step is not looked at again, and the rest is collected between steps: as soon as it has grown
as much as Python's own rule allows, so that memory is bounded as ever, and wholly where training
stands still anyway, to evaluate or to save.
"""

from __future__ import annotations

import gc


class Garbage:
    """Inside, nothing is collected but here."""

    def __enter__(self) -> Garbage:
        self._was_enabled = gc.isenabled()
        self._limit = gc.get_threshold()[0] or 700  # 0: somebody turned it off
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *raised: object) -> None:
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def after_step(self) -> None:
        """Collect what is young, if there is much of it. Python goes on counting."""
        if gc.get_count()[0] > self._limit:
            gc.collect(1)

    def collect(self) -> None:
        """Collect all that came after the beginning."""
        gc.collect()

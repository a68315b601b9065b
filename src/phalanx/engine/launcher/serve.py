"""The launcher: imports torch once, then starts ranks on request, all of them forked from it.

`python -m phalanx.engine launch FD`; the socket FD leads to the command (run/channel.py):

    {"ask", "files", "environment"}            -> {"answered"}: a fork has run `python -m ASK FILES`
    {"run", "ranks", "attempt", "environment"} -> {"started"}, then {"failures"} or {"error"}
    the same with {"node", "nodes", "address", "port"}, one of several nodes: node 0 first says
                                                  {"store"}, the port at which all ranks meet
    {"signal"}                                 -> sent to the ranks
    meanwhile                                     {"beats"}: where each rank is, twice a second
    {"stacks"}                                 -> {"stacks"}: where each is stuck
    {"peers"}                                  -> those of other nodes are over: the store may go

Imports only: no operator of torch runs here and CUDA is not touched, so that a fork is a rank as
good as new. It ends with the command, and ends its ranks first.
"""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path
from typing import Any

from phalanx.run.channel import Channel
from phalanx.run.parent_death import end_with_parent


def serve(descriptor: int) -> None:
    """Answer requests until the command is gone."""
    end_with_parent()
    channel = Channel(socket.socket(fileno=descriptor))
    gc.disable()  # imports make no garbage worth looking for: a tenth of their time
    import phalanx.engine.rank.worker  # noqa: F401 - torch, before the first question
    from phalanx.engine.launcher.question import Question

    try:
        first = channel.receive(0)  # what a recipe is, as a rule: answered while the rest imports
    except EOFError:
        return
    question = Question(first) if first is not None and "ask" in first else None
    import_for_ranks()
    gc.freeze()  # what was imported is never looked at again, so its pages stay shared
    gc.enable()
    from phalanx.engine.launcher.agent import RankAgent
    from phalanx.engine.launcher.rendezvous import PLACE, RankRequest

    while True:
        try:
            if question is not None:
                channel.send({"answered": question.wait()})
                first = question = None
            record, first = first or channel.receive(None), None
            if record is not None and "ask" in record:
                question = Question(record)
            if record is None or "run" not in record:
                continue  # a question, or a signal for ranks that are gone
            request = RankRequest(
                Path(record["run"]),
                record["ranks"],
                record["attempt"],
                record["environment"],
                **{name: record[name] for name in PLACE if name in record},
            )
            channel.send(_answer(lambda request=request: RankAgent(request, channel).watch()))
        except EOFError:
            return


def import_for_ranks() -> None:
    """Import what every rank needs. The first optimizer imports torch._dynamo, which takes a second
    and makes the folder for compiled code: not before one is named that is the user's own."""
    import phalanx.engine.rank.worker  # noqa: F401

    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        import torch._dynamo  # noqa: F401


def _answer(watch: Any) -> dict[str, Any]:
    try:
        return {"failures": watch()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}

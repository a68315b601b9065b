"""The launcher: imports torch once, then starts ranks on request, all of them forked from it.

`python -m phalanx.engine launch FD`; the socket FD leads to the command (run/launching.py):

    Ask          -> Answered
    StartRanks   -> StoreOpened on node 0 of several; RanksStarted; Beats, twice a second; then
                    RanksEnded or RanksFailed
    SendSignal   -> sent to the ranks
    AskStacks    -> Stacks
    PeersOver    -> the store may go

Imports only: no operator of torch runs here and CUDA is not touched, so that a fork is a rank as
good as new. It ends with the command, and ends its ranks first.
"""

from __future__ import annotations

import gc
import os
import socket

from phalanx.run.channel import Channel
from phalanx.run.launching import Answered, Ask, RanksEnded, RanksFailed, StartRanks
from phalanx.run.parent_death import end_with_parent


def serve(descriptor: int) -> None:
    """Answer requests until the command is gone."""
    end_with_parent()
    channel = Channel(socket.socket(fileno=descriptor))
    gc.disable()  # imports make no garbage worth looking for: a tenth of their time
    import phalanx.engine.rank.worker
    from phalanx.engine.launcher.question import Question

    try:
        first = channel.receive(0)  # what a recipe is, as a rule: answered while the rest imports
    except EOFError:
        return
    question = Question(first) if isinstance(first, Ask) else None
    import_for_ranks()
    gc.freeze()  # what was imported is never looked at again, so its pages stay shared
    gc.enable()
    import phalanx.engine.launcher.agent  # noqa: F401 - before ranks are asked for

    while True:
        try:
            if question is not None:
                channel.send(Answered(question.wait()))
                first = question = None
            message, first = first or channel.receive(None), None
            if isinstance(message, Ask):
                question = Question(message)
            elif isinstance(message, StartRanks):
                channel.send(_watch(message, channel))
            # Else a signal for ranks that are gone.
        except EOFError:
            return


def import_for_ranks() -> None:
    """Import what every rank needs. The first optimizer imports torch._dynamo, which takes a second
    and makes the folder for compiled code: not before one is named that is the user's own."""
    import phalanx.engine.rank.worker  # noqa: F401

    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        import torch._dynamo  # noqa: F401


def _watch(start: StartRanks, channel: Channel) -> RanksEnded | RanksFailed:
    from phalanx.engine.launcher.agent import RankAgent

    try:
        return RanksEnded(RankAgent(start, channel).watch())
    except Exception as error:
        return RanksFailed(f"{type(error).__name__}: {error}")

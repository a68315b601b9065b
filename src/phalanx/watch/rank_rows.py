"""A row for each rank: what its device does, what its steps go to, whether the others wait for
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.errors import format_seconds, printable
from phalanx.watch.ranks import Rank
from phalanx.watch.watched_run import WatchedRun

if TYPE_CHECKING:
    from rich.table import Table


def rank_cells(watched: WatchedRun, number: int, rank: Rank) -> dict[str, str]:
    """What is known of a rank, in words by column; what is not is empty."""
    usage, shares = rank.usage, rank.shares
    is_gpu = "gpu_percent" in usage or "gpu_memory_bytes" in usage
    busy = usage.get("gpu_percent") if is_gpu else usage.get("cpu_percent")
    used = usage.get("gpu_memory_bytes") if is_gpu else usage.get("memory_bytes")
    if used is None and number == 0:
        memory = watched.state.series.get("system/memory_gib")
        last = memory.last if memory is not None else None
        used = last.value * 2**30 if last is not None else None
    # On a CPU the plan counts what the model takes, the system all of the process.
    planned = watched.planned_number("process_bytes") if is_gpu or watched.has_gpus else None
    mark = "SLOW" if rank.is_straggler else ""
    if rank.exit_code:
        mark = f"died ({rank.exit_code})"
    return {
        "rank": str(number),
        "device": printable(rank.device),
        "busy": f"{busy:.0f} %" if busy is not None else "",
        "memory": f"{used / 2**30:.1f}" if used is not None else "",
        "of": f"{planned / 2**30:.1f}" if planned else "",
        "temp": f"{usage['gpu_temperature_c']:.0f} C" if "gpu_temperature_c" in usage else "",
        "power": f"{usage['gpu_power_w']:.0f} W" if "gpu_power_w" in usage else "",
        "data": f"{shares['data']:.0%}" if shares else "",
        "compute": f"{shares['compute']:.0%}" if shares else "",
        "comm": f"{shares['communication']:.0%}" if shares else "",
        "step": format_seconds(rank.step_s) if rank.step_s else "",
        "mark": mark,
    }


HEADERS = {
    "rank": "rank",
    "device": "device",
    "busy": "busy",
    "memory": "GiB",
    "of": "plan",
    "temp": "temp",
    "power": "power",
    "data": "data",
    "compute": "comp",
    "comm": "comm",
    "step": "step",
    "mark": "",
}


def shown_ranks(watched: WatchedRun, limit: int) -> tuple[list[tuple[int, Rank]], int]:
    """The first ranks, slow and dead ones in any case; and how many are left out."""
    ranks = sorted(watched.state.ranks.by_number.items())
    if len(ranks) <= limit:
        return ranks, 0
    odd = [pair for pair in ranks if pair[1].is_straggler or pair[1].exit_code][: limit // 2]
    plain = [pair for pair in ranks if pair not in odd][: limit - len(odd)]
    return sorted([*odd, *plain]), len(ranks) - limit


def rank_table(watched: WatchedRun, width: int, limit: int) -> Table | None:
    """The rows as a table; columns of which nothing is known are left out."""
    from rich.table import Table
    from rich.text import Text

    ranks, left_out = shown_ranks(watched, limit)
    if not ranks:
        return None
    rows = [rank_cells(watched, number, rank) for number, rank in ranks]
    names = [name for name in HEADERS if any(row[name] for row in rows)]
    others = sum(max(len(r[n]) for r in [*rows, HEADERS]) + 2 for n in names if n != "device")
    room = max(6, width - others - 2)
    for row in rows:
        if len(row["device"]) > room:  # `cuda:0` says more than the beginning of a long name
            row["device"] = row["device"].partition(" ")[0]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(
            HEADERS[name],
            justify="left" if name in ("device", "mark") else "right",
            max_width=room if name == "device" else None,
            no_wrap=True,
        )
    for row in rows:
        style = "bold red" if row["mark"] else ""
        table.add_row(*(Text(row[name], style=style) for name in names))
    if left_out:
        table.caption = f"{left_out} more ranks"
        table.caption_justify = "left"
    return table

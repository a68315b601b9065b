"""How a process ended, where nothing says more: signals, exceptions, exits. They come last."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

_LAST = "read its last lines: `tail -n 50 {log}`"

CAUSES = (
    Cause(
        name="native-crash",
        exit_codes=(-11, -7, -8),
        grade="generic",
        words="native code crashed ({signal}): a library or an extension, as a rule; {native}; "
        "{crash_frame}",
        fix="PYTHONFAULTHANDLER=1 {again} names the Python line; " + _LAST,
        text="",
        source="SIGSEGV, SIGBUS, SIGFPE",
    ),
    Cause(
        name="aborted",
        exit_codes=(-6,),
        grade="generic",
        words="the process ended itself (SIGABRT): native code met what it cannot go on from; "
        "{native}; {crash_frame}",
        fix="PYTHONFAULTHANDLER=1 {again} names the Python line; " + _LAST,
        text="",
        source="SIGABRT",
    ),
    Cause(
        name="killed",
        exit_codes=(-9,),
        grade="generic",
        words="rank {rank} was killed (SIGKILL) from outside: a scheduler, or somebody's `kill -9`"
        "; {memory_said}",
        fix="see whether it was the kernel: `dmesg -T | grep -i 'killed process'`; then `{again}`",
        text="",
        source="SIGKILL",
    ),
    Cause(
        name="ended-from-outside",
        exit_codes=(-15, -1, -2, -12, -10, -3),
        grade="generic",
        words="rank {rank} was ended by {signal}, from outside: a scheduler, a person, a terminal "
        "that was closed",
        fix="{again}; `--detach` keeps a run without its terminal",
        script_fix="{again}; `phalanx launch --detach ...` keeps a run without its terminal",
        text="",
        source="SIGTERM, SIGHUP, SIGINT, SIGUSR1, SIGUSR2; asked about: long runs survive logout",
    ),
    Cause(
        name="rank-left",
        grade="generic",
        facts=("left_silently",),
        words="rank {rank} left with exit code {exit_code} before the end, without an exception: "
        "sys.exit or os._exit in the recipe or in a library",
        fix="look for `exit(` in the recipe; " + _LAST,
        text="",
        source="no outcome in its events, no traceback in its log",
    ),
    Cause(
        name="exception",
        facts=("last_error",),
        grade="generic",
        words="the code, or a library it calls, raised an exception: {last_error}; {frame}",
        fix="read that line; the whole traceback: `less +G {log}`",
        text="KeyError: 'image'",
        source="the last traceback of the rank",
    ),
)

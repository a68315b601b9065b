"""Disks: full, over quota, read-only, failing, not ours to write to; files that are not whole."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

CAUSES = (
    Cause(
        name="disk-full",
        any_of=(
            r"\[Errno 28\] No space left on device(: (?P<file>.+))?",
            r"No space left on device",
            r"not enough (free )?(disk )?space",
        ),
        none_of=(r"dev/shm|</torch_|shared memory",),
        words="the disk is full: {file}",
        fix="df -h {run}; make room there, or write elsewhere: `--output /larger/disk`; then "
        "`{again}`",
        script_fix="df -h .; make room there, or let the script write elsewhere; then `{again}`",
        text="OSError: [Errno 28] No space left on device: 'runs/a/checkpoints'",
        source="failure 37; errno(3)",
    ),
    Cause(
        name="disk-quota",
        any_of=(r"\[Errno 122\] Disk quota exceeded(: (?P<file>.+))?", r"Disk quota exceeded"),
        words="your share of this disk is used up: {file}",
        fix="quota -s; remove old runs, or write elsewhere: `--output FOLDER`; then `{again}`",
        text="OSError: [Errno 122] Disk quota exceeded",
        source="failure 37; errno(3)",
    ),
    Cause(
        name="disk-read-only",
        any_of=(
            r"\[Errno 30\] Read-only file system(: (?P<file>.+))?",
            r"\[Errno 13\] Permission denied(: (?P<file>.+))?",
            r"\[Errno 1\] Operation not permitted(: (?P<file>.+))?",
        ),
        words="this may not be read or written here: {file}",
        fix="ls -ld {file}; name a folder of your own: `--output FOLDER`",
        text="PermissionError: [Errno 13] Permission denied: '/data/out'",
        source="errno(3); asked about: output writable?",
    ),
    Cause(
        name="disk-failing",
        any_of=(
            r"\[Errno 5\] Input/output error(: (?P<file>.+))?",
            r"\[Errno 116\] Stale file handle(: (?P<file>.+))?",
            r"\[Errno 121\] Remote I/O error",
            r"Transport endpoint is not connected",
        ),
        words="the disk, or the way to a disk in the network, failed: {file}",
        fix="dmesg -T | tail; `mount | grep nfs`; copy the data to a local disk; then `{again}`",
        text="OSError: [Errno 5] Input/output error: '/mnt/data/a.tar'",
        source="errno(3)",
    ),
    Cause(
        name="file-not-written",
        any_of=(
            r"PytorchStreamWriter failed writing file (?P<file>\S+)",
            r"unexpected pos \d+ vs \d+",
            r"file write failed",
        ),
        grade="symptom",
        words="a file could not be written whole ({file}): a full disk or a quota, as a rule",
        fix="df -h {run}; quota -s; then `{again}`",
        script_fix="df -h .; quota -s; then `{again}`",
        text="RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed "
        "writing file data/322: file write failed",
        source="failure 37; h2o#214, so-vits-svc#46",
    ),
    Cause(
        name="file-damaged",
        any_of=(
            r"PytorchStreamReader failed (reading|finding|locating)",
            r"invalid header or archive is corrupted",
            r"SafetensorError: (?P<said>.{0,120})",
            r"incomplete metadata, file not fully covered",
        ),
        words="a file of weights is damaged or was not written whole",
        fix="use the one before it: `ls -t checkpoints/`; Phalanx passes over its own",
        text="RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
        source="caffe2/serialize/inline_container.cc; safetensors",
    ),
    Cause(
        name="file-damaged",
        any_of=(r"OSError: \[Errno 22\] Invalid argument",),
        all_of=(r"PyTorchFileReader",),
        words="a file of weights was not written whole",
        fix="use the one before it: `ls -t checkpoints/`; Phalanx passes over its own",
        text="OSError: [Errno 22] Invalid argument  # raised by PyTorchFileReader(name_or_buffer)",
        source="torch 2.13, torch.load of a file that was cut off",
    ),
)

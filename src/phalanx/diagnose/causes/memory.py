"""Memory: of the GPU, of the host, shared memory, and what else a process can run out of."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

_SMALLER = "{again} micro_batch_size={half_micro_batch}"
_SCRIPT_SMALLER = (
    "a smaller batch per device, with `phalanx launch --gradient-accumulation 2 ...` for the same "
    "global batch; or `PYTORCH_ALLOC_CONF=expandable_segments:True {again}`"
)
_SHARED = (
    "in a container: `docker run --shm-size=16g ...` or `--ipc=host`; on a host: "
    "`mount -o remount,size=16g /dev/shm`; until then `{again} loader.workers=0`"
)
_SCRIPT_SHARED = (
    "in a container: `docker run --shm-size=16g ...` or `--ipc=host`; in the script: "
    'num_workers=0, or torch.multiprocessing.set_sharing_strategy("file_system")'
)
_FEWER_LOADERS = "{again} loader.workers={half_workers} loader.prefetch=1"
_SCRIPT_FEWER_LOADERS = "num_workers and prefetch_factor of its DataLoader halved; or more memory"

_GPU = (
    r"CUDA out of memory(\. Tried to allocate (?P<tried>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total "
    r"capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free)?",
    r"CUDA error: out of memory",
    r"Cuda failure 2 'out of memory'",
    r"MPS backend out of memory",
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_(STATUS_)?ALLOC_FAILED",
    r"OutOfMemoryError: ",
)

CAUSES = (
    Cause(
        name="gpu-memory-taken",
        any_of=(r"Process (?P<other>\d+) has (?P<used>[\d.]+ \w+) memory in use",),
        all_of=(r"CUDA out of memory",),
        words="the GPU ran out of memory, and another process ({other}) holds {used} of it",
        fix="see who that is: `ps -fp {other}`; when it may go, `kill {other}`, then `{again}`",
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a "
        "total capacity of 14.57 GiB of which 12.00 MiB is free. Process 4711 has 9.31 GiB memory "
        "in use. Including non-PyTorch memory, this process has 5.20 GiB memory in use.",
        source="failure 17; c10/cuda/CUDACachingAllocator.cpp",
    ),
    Cause(
        name="gpu-out-of-memory",
        any_of=_GPU,
        none_of=(r"DefaultCPUAllocator", r"SQL|database"),
        words="the GPU's memory is too small for this micro-batch: {tried} were asked for, {free} "
        "of {total} were free",
        fix=f"{_SMALLER}; or activation_checkpointing=on",
        script_fix=_SCRIPT_SMALLER,
        text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a "
        "total capacity of 14.57 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this "
        "process has 13.54 GiB memory in use.",
        source="failure 17; asked about: out of memory",
    ),
    Cause(
        name="host-out-of-memory-kill",
        any_of=(
            r"slurmstepd: error: .*[Dd]etected (?P<kills>\d+) oom[-_]kill event",
            r"Some of (your processes|the step tasks) (may )?have been OOM Killed",
            r"Out of memory: Killed process (?P<pid>\d+)",
            r"[Mm]emory cgroup out of memory",
            r"oom-kill:constraint=",
            r"\bOOMKilled\b",
        ),
        is_said_before=True,
        words="the host ran out of memory, and the kernel ended a process of this run",
        fix=f"{_FEWER_LOADERS}; under Slurm ask for more: `--mem=0` is all of the node",
        script_fix=f"{_SCRIPT_FEWER_LOADERS}; under Slurm `--mem=0` asks for all of the node",
        text="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4242.0. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
        source="failure 39; slurmstepd source; kernel mm/oom_kill.c",
    ),
    Cause(
        name="host-out-of-memory-kill",
        exit_codes=(-9,),
        facts=("oom_kills",),
        words="the host ran out of memory: the kernel ended rank {rank} (it counted {oom_kills} "
        "such kills during the attempt)",
        fix=f"{_FEWER_LOADERS}; see what it was: `dmesg -T | grep -i 'killed process'`",
        script_fix=f"{_SCRIPT_FEWER_LOADERS}; see: `dmesg -T | grep -i 'killed process'`",
        text="",
        source="oom_kill of memory.events or /proc/vmstat, counted by the supervisor",
    ),
    Cause(
        name="host-out-of-memory-kill",
        exit_codes=(-9,),
        facts=("memory_full",),
        words="rank {rank} was killed while the ranks held {memory_full} of the host's memory: "
        "most likely the kernel ended it because memory ran out",
        fix=f"{_FEWER_LOADERS}; see what it was: `dmesg -T | grep -i 'killed process'`",
        script_fix=f"{_SCRIPT_FEWER_LOADERS}; see: `dmesg -T | grep -i 'killed process'`",
        text="",
        source="memory_bytes of step and usage events beside machine.json",
    ),
    Cause(
        name="loader-killed",
        any_of=(r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: Killed",),
        words="a loader process ({pid}) was killed: as a rule by the kernel, because the host ran "
        "out of memory; or by somebody's `kill -9`",
        fix=f"{_FEWER_LOADERS}; see what it was: `dmesg -T | grep -i 'killed process'`",
        script_fix=f"{_SCRIPT_FEWER_LOADERS}; see: `dmesg -T | grep -i 'killed process'`",
        text="RuntimeError: DataLoader worker (pid 3183) is killed by signal: Killed. ",
        source="failure 21; libtorch_python DataLoader.cpp",
    ),
    Cause(
        name="shared-memory-full",
        any_of=(
            r"insufficient shared memory \(shm\)",
            r"DataLoader worker \(pid \d+\) is killed by signal: Bus error",
            r"unable to (allocate shared memory\(shm\)|(write to|resize|mmap \d+ bytes from) file "
            r"<)[^>]*.*(No space left|Cannot allocate)",
            r"Error while (creating|attaching to) shared memory segment (?P<file>/dev/shm/\S+)",
            r"No space left on device.*['\"]/dev/shm/",
        ),
        is_said_before=True,
        words="the memory that processes share (/dev/shm) is full: loader processes and NCCL hand "
        "data over in it",
        fix=_SHARED,
        script_fix=_SCRIPT_SHARED,
        text="ERROR: Unexpected bus error encountered in worker. This might be caused by "
        "insufficient shared memory (shm).",
        source="failure 10 and 22; nccl src/os/linux.cc; libtorch_python DataLoader.cpp",
    ),
    Cause(
        name="host-out-of-memory",
        any_of=(
            r"^(numpy\.\S*)?_?(Array)?MemoryError\b(: (?P<said>.{0,200}))?",
            r"DefaultCPUAllocator: (can't allocate|not enough) memory: you tried to allocate "
            r"(?P<tried>\d+ bytes)",
            r"Unable to allocate (?P<tried>[\d.]+ \w+) for an array",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"cudaHostAlloc.*(out of memory|failed)",
        ),
        words="the host would give no more memory: {tried} were asked for",
        fix=f"{_FEWER_LOADERS}; or a smaller micro-batch on CPU: "
        "micro_batch_size={half_micro_batch}; `ulimit -v` shows a limit of the shell's own",
        script_fix=f"{_SCRIPT_FEWER_LOADERS}; `ulimit -v` shows a limit of the shell's own",
        text="RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 8000000000 bytes. Error code 12 (Cannot "
        "allocate memory)",
        source="c10/core/impl/alloc_cpu.cpp; numpy",
    ),
    Cause(
        name="too-many-open-files",
        any_of=(
            r"Too many open files",
            r"received 0 items of ancdata",
        ),
        words="the process may not open more files, and every tensor that a loader process hands "
        "over is one",
        fix="ulimit -n 65536 && {again}",
        script_fix="ulimit -n 65536 && {again}; or, in the script: "
        'torch.multiprocessing.set_sharing_strategy("file_system")',
        text="RuntimeError: Too many open files. Communication with the workers is no longer "
        "possible. Please increase the limit using `ulimit -n` in the shell or change the sharing "
        "strategy by calling `torch.multiprocessing.set_sharing_strategy('file_system')`",
        source="failure 24; torch/utils/data/dataloader.py; xtuner#1859",
    ),
    Cause(
        name="process-limit",
        any_of=(
            r"can't start new thread",
            r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
            r"pthread_create failed|libgomp: Thread creation failed",
            r"OpenBLAS blas_thread_init: pthread_create failed",
        ),
        is_said_before=True,
        words="the user, or the container, may not start more processes and threads",
        fix="ulimit -u 65536 && {again}; in a container `--pids-limit -1`; or fewer: "
        "loader.workers={half_workers}",
        script_fix="ulimit -u 65536 && OMP_NUM_THREADS=1 {again}; in a container `--pids-limit -1`",
        text="RuntimeError: can't start new thread",
        source="CPython Modules/_threadmodule.c; libgomp",
    ),
)

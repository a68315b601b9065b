"""What libraries print when they fail: (text, exit code, cause); and logs that say nothing known.

The first forty are those of the notes on failures, by their numbers, as torch, NCCL, gloo,
DeepSpeed, Slurm and the driver write them. The others have their source beside them."""

_NCCL = "[rank0]:[E1116 02:11:01.123 ProcessGroupNCCL.cpp:683] [Rank 0] "
_GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "

TEXTS = [
    (  # 1
        f"{_NCCL}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 "
        "milliseconds before timing out.",
        -6,
        "collective-timeout",
    ),
    (  # 2
        f"{_NCCL}Exception (either an error or timeout) detected by watchdog at work: 1580, last "
        "enqueued NCCL work: 1582, last completed NCCL work: 1579.",
        -6,
        "collective-timeout",
    ),
    (  # 3
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
        "monitoring enqueued collectives.",
        -6,
        "watchdog-stuck",
    ),
    (  # 4
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA "
        "kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        -6,
        "data-after-timeout",
    ),
    (  # 5
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled "
        "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
        1,
        "nccl-system-error",
    ),
    (  # 6
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled "
        "cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
        1,
        "nccl-cuda-error",
    ),
    (  # 7
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a "
        "network error, NCCL version 2.27.3",
        1,
        "peer-lost",
    ),
    (  # 8
        "torch.distributed.DistBackendError: internal error - please report this issue to the NCCL "
        "developers, NCCL version 2.27.3",
        1,
        "nccl-internal-error",
    ),
    (  # 9
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid "
        "usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3",
        1,
        "gpu-shared-by-ranks",
    ),
    (  # 10
        "node1:1:9 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-3Vq2aM (size 9637888), error: No space left on device (28)\n"
        + "Traceback (most recent call last):\n"
        "RuntimeError: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        1,
        "shared-memory-full",
    ),
    ("node1:1:9 [0] NCCL WARN Bootstrap : no socket interface found", 1, "nccl-no-interface"),  # 11
    (  # 12
        "NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 8 version 22605 ",
        1,
        "nccl-versions-differ",
    ),
    (  # 13
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<41234> with status=12 opcode=0 len=0 "
        "vendor err 129 (Send)",
        -6,
        "infiniband",
    ),
    ("NCCL WARN Call to ibv_reg_mr_iova2 failed: Invalid argument", 1, "infiniband"),  # 14
    (  # 15
        "NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these "
        "two devices",
        1,
        "no-peer-access",
    ),
    # 16 `P2P is disabled between connected GPUs 0 and 1.` is said of healthy runs too.
    (  # 17
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total "
        "capacity of 14.57 GiB of which 1.02 GiB is free.",
        1,
        "gpu-out-of-memory",
    ),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", 1, "gpu-memory-fault"),  # 18
    (  # 19
        "[12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
        -6,
        "gpu-lost",
    ),
    (  # 20
        "NVRM: Xid (PCI:0000:65:00): 63, pid=993, Row Remapper: New row marked for remapping, "
        "reset gpu to activate.",
        -6,
        "gpu-memory-fault",
    ),
    ("RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed. ", 1, "loader-killed"),
    (  # 22
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory.",
        1,
        "shared-memory-full",
    ),
    (  # 23
        "RuntimeError: DataLoader worker (pid(s) 99, 100) exited unexpectedly",
        1,
        "loader-exited",
    ),
    ("RuntimeError: received 0 items of ancdata", 1, "too-many-open-files"),  # 24
    (  # 25
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        1,
        "port-in-use",
    ),
    (  # 26
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while "
        "trying to connect to (node0, 29500).",
        1,
        "meeting-point-unreachable",
    ),
    (  # 27
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
        "clients joined.",
        1,
        "ranks-did-not-join",
    ),
    (  # 28
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//1",
        1,
        "peer-lost",
    ),
    (  # 29
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
        "C10d store has failed. See inner exception for details.",
        1,
        "meeting-point-unreachable",
    ),
    (  # 30
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/"
        "tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused",
        1,
        "stale-rendezvous",
    ),
    (  # 31
        f"{_GLOO}Read error [127.0.0.1]:41544: Connection reset by peer. This is typically caused "
        "by a remote worker hanging or bugs in the application.",
        1,
        "peer-lost",
    ),
    (f"{_GLOO}Connection closed by peer [127.0.0.1]:41544", 1, "peer-lost"),  # 31, older
    (  # 32
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed "
        "out waiting 5000ms for recv operation to complete",
        1,
        "collective-timeout",
    ),
    (  # 33
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
        1,
        "rank-missing-at-barrier",
    ),
    (  # 34, without DETAIL
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:453] "
        "op.preamble.length <= op.nbytes. Received data size doesn't match expected size. Is there "
        "a distributed collective mismatch in your code?",
        1,
        "collective-mismatch",
    ),
    (  # 35
        "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of",
        1,
        "parameter-used-twice",
    ),
    (  # 36
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1\n"
        "Traceback (most recent call last):\n"
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting "
        "run.",
        1,
        "fp16-collapse",
    ),
    (  # 37
        "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed "
        "writing file data/322: file write failed",
        1,
        "file-not-written",
    ),
    ("RuntimeError: [enforce fail] . unexpected pos 64 vs 0", 1, "file-not-written"),  # 37
    ("OSError: [Errno 122] Disk quota exceeded", 1, "disk-quota"),  # 37
    (  # 38
        "Root Cause (first observed failure):\n[0]:\n  exitcode  : -9 (pid: 10245)\n  traceback : "
        "Signal 9 (SIGKILL) received by PID 10245",
        1,
        "child-killed",
    ),
    (  # 39
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may "
        "have been killed by the cgroup out-of-memory handler.",
        -9,
        "host-out-of-memory-kill",
    ),
    (  # 39
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T12:00:00 DUE TO TIME LIMIT ***",
        -15,
        "time-limit",
    ),
    (  # 40
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do "
        "so you have two options, do those steps only if you trust the source of the checkpoint.",
        1,
        "unsafe-weights-file",
    ),
    # numpy/core/multiarray
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array with "
        "shape (2000000000,) and data type float64",
        1,
        "host-out-of-memory",
    ),
    # What people ask about, as PyTorch and transformers say it
    ("ModuleNotFoundError: No module named 'torch'", 1, "module-missing"),
    ("RuntimeError: Found no NVIDIA driver on your system.", 1, "cuda-unavailable"),
    ("RuntimeError: No CUDA GPUs are available", 1, "cuda-unavailable"),
    (
        "ValueError: Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",
        1,
        "bf16-unsupported",
    ),
    ("PermissionError: [Errno 13] Permission denied: '/data/out'", 1, "disk-read-only"),
    # torch/_utils.py: an exception of a loader process carries its own traceback
    (
        "ValueError: Caught ValueError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/home/u/data.py", line 3, in __getitem__\n    raise ValueError("no boxes")\n'
        "ValueError: no boxes\nphalanx: while fetching sample 17",
        1,
        "data-error",
    ),
    # aten/src/ATen/native/cuda/Loss.cu, printed by the kernel long before Python notices
    (
        "../aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: "
        "[0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: CUDA error: device-side assert triggered",
        1,
        "label-out-of-range",
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", 1, "device-assert"),
    # CPython: the first of two joined exceptions is the cause
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'a.npy'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/u/train.py", line 9, in main\n    fall_back()\n'
        "ValueError: no fall-back",
        1,
        "file-missing",
    ),
]

UNKNOWN_LOGS = [
    "epoch 1 of 3\nepoch 2 of 3\nfatal: widget 7 is not aligned",
    "loading weights\nready",
    "",
    "step 10 loss 0.31\nstep 20 loss 0.29\nstopping: invariant violated (code 12)",
    "E0001 scheduler.cc:77] queue drained\nW0002 scheduler.cc:91] giving up",
    "INFO: connected to tracker\nINFO: 128 tiles\nERROR: projection unknown: EPSG:9999",
    "usage is at 12 %\nall good\nbye",
    "simulation: energy drift 1e-3 exceeds 1e-4, aborting as configured",
    "license server says no\nexit",
    "panic: runtime gate closed\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:12 +0x1d",
    "Segment 4 of 9 was rejected by the validator\nsee report.html\n",
]

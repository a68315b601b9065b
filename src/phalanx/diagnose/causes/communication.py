"""Ranks that do not hear of each other: NCCL, gloo, the store they meet at, and torch's elastic
agent. Who is gone and who only noticed is the question here: the latter are echoes."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

_SAY = "NCCL_DEBUG=INFO {again}"
_PEER = "read what the silent rank did last: `tail -n 50 {logs}/rank-*.log`"

CAUSES = (
    Cause(
        name="collective-mismatch",
        any_of=(
            r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d+) is running "
            r"collective: (?P<first>CollectiveFingerPrint\(.*?\)), but Rank (?P<other>\d+) is "
            r"running( inconsistent)? collective: (?P<second>CollectiveFingerPrint\(.*)",
            r"Detected mismatch between collectives on ranks",
            r"Received data size doesn't match expected size",
            r"op\.preamble\.length <= op\.nbytes",
            r"(Collective|tensor) shape mismatch|collective mismatch",
        ),
        is_said_before=True,
        words="the ranks did not do the same: rank {one} was in {first_call}, rank {other} in "
        "{second_call}; a branch that depends on the rank or on its data is in the way",
        fix="let every rank make the same calls in the same order: see the two lines below; to "
        "have torch name them, `phalanx train --debug-comm ...`",
        script_fix="let every rank make the same calls in the same order: see the two lines below; "
        "to have torch name them, `TORCH_DISTRIBUTED_DEBUG=DETAIL {again}`",
        text="RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        "collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[4], "
        "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float, device=cpu)), but Rank 1 "
        "is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BARRIER).",
        source="failure 34; torch 2.13, ProcessGroupWrapper.cpp; gloo/transport/tcp/pair.cc",
    ),
    Cause(
        name="rank-missing-at-barrier",
        any_of=(
            r"Rank(s)? (?P<missing>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
        ),
        words="rank {missing} did not come to a barrier within {ms} ms",
        fix="read what it did meanwhile: `tail -n 50 {logs}/rank-{missing}.log`",
        text="[Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
        source="failure 33; ProcessGroupGloo.cpp",
    ),
    Cause(
        name="gpu-shared-by-ranks",
        any_of=(
            r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+) both on CUDA "
            r"device (?P<bus>\w+)",
            r"invalid usage \(run with NCCL_DEBUG=WARN for details\)",
            r"ncclInvalidUsage",
        ),
        is_said_before=True,
        words="NCCL refuses what it was asked: as a rule two ranks use the same GPU",
        fix="{again} devices.gpus=all; several ranks on one GPU need devices.backend=gloo",
        script_fix="in the script, before anything else: "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        text="Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
        source="failure 9; nccl src/init.cc; asked about: only one GPU works",
    ),
    Cause(
        name="nccl-no-interface",
        any_of=(r"Bootstrap ?: no socket interface found", r"No (usable )?interface found"),
        is_said_before=True,
        words="NCCL found no network interface: NCCL_SOCKET_IFNAME names one that is not here",
        fix="unset NCCL_SOCKET_IFNAME; {again}; `ip -br addr` lists the interfaces there are",
        text="NCCL WARN Bootstrap : no socket interface found",
        source="failure 11; nccl src/bootstrap.cc; asked about: NCCL errors",
    ),
    Cause(
        name="nccl-versions-differ",
        any_of=(
            r"Mismatched NCCL version detected ?: rank (?P<one>\d+) version (?P<first>\S+) rank "
            r"(?P<other>\d+) version (?P<second>\S+)",
            r"Mismatched NCCL version detected",
        ),
        is_said_before=True,
        words="the nodes have different versions of NCCL: {first} on rank {one}, {second} on rank "
        "{other}",
        fix="the same environment on every node: `pip install -r` one lock file, or one image",
        text="NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 8 version "
        "22605",
        source="failure 12; nccl src/init.cc",
    ),
    Cause(
        name="infiniband",
        any_of=(
            r"NET/IB ?: Got completion from peer (?P<peer>\S+) with (status=|error )\d+",
            r"ibv_reg_mr\w* failed|ibv_\w+ failed with error",
            r"vendor err (129|249)",
        ),
        is_said_before=True,
        words="InfiniBand or RoCE gave up: no path to the peer, a link that flaps, a wrong GID, or "
        "memory that may not be locked",
        fix="try the link itself: `ib_write_bw HOST`; then `NCCL_IB_GID_INDEX=3 {again}`, or over "
        "TCP, slower: `NCCL_IB_DISABLE=1 {again}`; `ulimit -l` must say unlimited",
        text="NCCL WARN NET/IB : Got completion from peer 10.0.0.7<41234> with status=12 "
        "opcode=129 len=0 vendor err 129 (Recv)",
        source="failure 13 and 14; nccl#902, #1664, #1405; asked about: NCCL_IB_DISABLE",
    ),
    Cause(
        name="no-peer-access",
        any_of=(
            r"failed to open CUDA IPC handle ?: \d+ peer access is not supported",
            r"peer access is not supported between these two devices",
        ),
        is_said_before=True,
        words="these GPUs cannot read each other's memory, and NCCL tried to",
        fix="NCCL_P2P_DISABLE=1 {again}",
        text="NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between "
        "these two devices",
        source="failure 15; nccl#631; asked about: NCCL_P2P_DISABLE",
    ),
    Cause(
        name="port-in-use",
        any_of=(
            r"server socket has failed to (listen|bind).*port: (?P<port>\d+).*EADDRINUSE",
            r"(?i)EADDRINUSE|address already in use",
        ),
        words="port {port} is taken: by another run, or by a rank that was left behind",
        fix="see who has it: `ss -ltnp 'sport = :{port}'`; then `{again}`, which takes a free one",
        script_fix="see who has it: `ss -ltnp 'sport = :{port}'`; let the script use MASTER_PORT, "
        "which is a free one, instead of a number of its own",
        text="RuntimeError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        source="failure 25; torch 2.13, TCPStoreLibUvBackend.cpp",
    ),
    Cause(
        name="ranks-did-not-join",
        any_of=(
            r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. "
            r"(?P<joined>\d+)/(?P<world>\d+) clients joined",
            r"RendezvousTimeoutError",
        ),
        words="too few ranks came to the meeting point in time: {joined} of {world} in {seconds} s",
        fix="read the log of the node that is missing; the same words and ports on each: "
        "`phalanx train JOB --nodes N --rendezvous HOST:PORT`",
        text="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. "
        "1/2 clients joined.",
        source="failure 27 and 29; torch 2.13, TCPStore.cpp",
    ),
    Cause(
        name="meeting-point-unreachable",
        any_of=(
            r"client socket has (timed out after (?P<ms>\d+)ms|failed to connect).*?"
            r"\(?(?P<host>[\w.:\[\]-]+), (?P<port>\d+)\)?",
            r"RendezvousConnectionError|RendezvousClosedError",
            r"The hostname of the (client|server) socket cannot be retrieved",
        ),
        words="the place where the ranks meet ({host} port {port}) does not answer: a firewall, a "
        "wrong MASTER_ADDR, or rank 0 was gone",
        fix="from this node: `nc -zv {host} {port}`; the address must be one that node 0 has: "
        "`hostname -I` there",
        text="torch.distributed.DistNetworkError: The client socket has timed out after 60000ms "
        "while trying to connect to (node0, 29500).",
        source="failure 26 and 29; torch 2.13, socket.cpp",
    ),
    Cause(
        name="stale-rendezvous",
        any_of=(r"Gloo connectFullMesh failed",),
        grade="symptom",
        words="gloo could not connect the ranks to each other: as a rule keys of an earlier "
        "attempt are still in the store, or a rank was gone before it joined",
        fix="{again}",
        script_fix="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {again}",
        text="RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/"
        "transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused",
        source="failure 30; torch 2.13 over gloo",
    ),
    Cause(
        name="collective-timeout",
        any_of=(
            r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), "
            r"OpType=(?P<operation>\w+),.*Timeout\(ms\)=(?P<ms>\d+)",
            r"Exception \(either an error or timeout\) detected by watchdog at work: "
            r"(?P<number>\d+), last enqueued NCCL work: (?P<enqueued>\d+)",
            r"Timed out waiting (?P<ms>\d+)ms for (recv|send) operation to complete",
            r"Application timeout caused pair closure",
            r"Collective (?P<operation>\w+) timed out after",
        ),
        grade="echo",
        is_said_before=True,
        words="an exchange ({operation}) was not over in time: the others waited for {silent}; a "
        "rank is stuck, late, or took another way",
        fix=f"{_PEER}; a longer wait only helps a rank that is slow by design: "
        "devices.comm_timeout_s={double_timeout}",
        script_fix=f"{_PEER}; a longer wait only helps a rank that is slow by design: "
        "init_process_group(timeout=...)",
        text="[rank0]:[E1116 02:11:01.123 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4194304, "
        "NumelOut=4194304, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
        source="failure 1, 2 and 32; ProcessGroupNCCL.cpp; asked about: NCCL timeout",
    ),
    Cause(
        name="watchdog-stuck",
        any_of=(
            r"watchdog got stuck for (?P<seconds>\d+) seconds without making progress",
            r"Received a dump signal due to a collective timeout from rank (?P<other>\d+)",
        ),
        grade="echo",
        is_said_before=True,
        words="NCCL's watchdog itself could not go on ({seconds} s): a call of CUDA does not "
        "return, or Python's lock is held in one",
        fix="see where it stands, while it does: `py-spy dump -p PID`; " + _PEER,
        text="ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in "
        "monitoring enqueued collectives.",
        source="failure 3; ProcessGroupNCCL.cpp",
    ),
    Cause(
        name="data-after-timeout",
        any_of=(r"Some NCCL operations have failed or timed out", r"corrupted/incomplete data"),
        grade="echo",
        is_said_before=True,
        words="after a failed exchange NCCL ended the rank, because what it holds may be wrong",
        fix=f"{{again}}; {_PEER}",
        text="Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
        "CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        source="failure 4; ProcessGroupNCCL.cpp",
    ),
    Cause(
        name="peer-lost",
        any_of=(
            r"remote process exited or there was a network error|ncclRemoteError",
            r"Connection (reset|closed) by peer",
            r"recvValue failed|Connection was likely closed\. Did the remote server shutdown",
            r"[Ff]ailed to recv, got 0 bytes",
            r"wait timeout after (?P<ms>\d+)ms, keys: (?P<key>\S+)",
            r"(Socket Timeout|Broken pipe)$",
            r"Writing data to socket.*Broken pipe|sendBytes failed.*Broken pipe",
            r"SignalException: Process \d+ got signal: 15",
            r"(?i)NCCL communicator was aborted|ncclCommAbort|process group .* (was )?aborted",
            r"is killed by signal: Terminated",
        ),
        none_of=(r"ConnectionResetError|requests\.exceptions|urllib3|aiohttp|huggingface",),
        grade="echo",
        is_said_before=True,
        words="another rank was gone: {silent}",
        fix=_PEER,
        text="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error "
        "[127.0.0.1]:41544: Connection reset by peer. This is typically caused by a remote worker "
        "hanging or bugs in the application.",
        source="failure 7, 28 and 31; nccl src/init.cc; gloo",
    ),
    Cause(
        name="nccl-cuda-error",
        any_of=(r"unhandled cuda error \(run with NCCL_DEBUG=INFO for details\)",),
        grade="symptom",
        words="a call of CUDA failed inside NCCL: a GPU fault, memory, or peer access",
        fix=f"{_SAY}, then the lines with WARN; and `dmesg -T | grep -i xid`",
        text="ncclUnhandledCudaError: Call to CUDA function failed. unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details)",
        source="failure 6; nccl src/init.cc",
    ),
    Cause(
        name="nccl-system-error",
        any_of=(r"unhandled system error \(run with NCCL_DEBUG=INFO for details\)",),
        grade="symptom",
        words="a system call failed inside NCCL: shared memory, sockets, InfiniBand, or a limit of "
        "the container",
        fix=f"{_SAY}, then the lines with WARN; in a container: "
        "`--shm-size=16g --ulimit memlock=-1`",
        text="ncclSystemError: System call (e.g. socket, malloc) or external library call failed. "
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        source="failure 5; nccl src/init.cc; asked about: NCCL errors",
    ),
    Cause(
        name="nccl-internal-error",
        any_of=(r"internal error - please report this issue to the NCCL developers",),
        grade="symptom",
        words="NCCL failed inside: as a rule a fault of a GPU, of a link, or of the topology that "
        "a virtual machine shows",
        fix=f"{_SAY}, then the lines with WARN; over gloo it runs anywhere: {{again}} "
        "devices.backend=gloo",
        script_fix=f"{_SAY}, then the lines with WARN",
        text="ncclInternalError: Internal check failed. internal error - please report this issue "
        "to the NCCL developers",
        source="failure 8; nccl src/init.cc; asked about: gloo instead of NCCL",
    ),
    Cause(
        name="backend-missing",
        any_of=(
            r"Distributed package doesn't have (?P<backend>NCCL|MPI|UCC)( built in)?",
            r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            r"No backend type associated with device type (?P<device>\w+)",
        ),
        words="the ranks cannot talk over this backend here: {backend} is not in this build of "
        "torch, or there is no GPU for it",
        fix="{again} devices.backend=gloo",
        script_fix='TORCH_DISTRIBUTED_BACKEND=gloo, or init_process_group("gloo") in the script',
        text="RuntimeError: Distributed package doesn't have NCCL built in",
        source="torch/distributed/distributed_c10d.py; asked about: ranks out of step, gloo",
    ),
    Cause(
        name="no-process-group",
        any_of=(
            r"Default process group has not been initialized",
            r"environment variable (?P<variable>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, "
            r"but not set",
        ),
        words="the code talks to other ranks before the group of ranks is there",
        fix="`if torch.distributed.is_initialized():` around it; a Term needs no all_reduce",
        script_fix="torch.distributed.init_process_group() first; start it with `phalanx launch`",
        text="ValueError: Default process group has not been initialized, please make sure to call "
        "init_process_group.",
        source="torch/distributed/distributed_c10d.py; asked about: multi-GPU start fails",
    ),
)

"""Ways to die, each for real: what is run, which rank dies first, and what it must be called."""

from dataclasses import dataclass
from pathlib import Path

FAULTS = Path(__file__).parents[1] / "fixtures" / "recipes" / "deadly.py"

_GROUP = """
import os, time, datetime, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
"""
_LOADER = """
import os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return fetch(i)
def train():
    for batch in DataLoader(Data(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
        pass
"""
# A name space of its own with a tiny disk: nothing of this machine is filled.
_TINY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tiny(path):
    user = 0 if os.geteuid() == 0 else 0x10000000  # CLONE_NEWUSER
    assert libc.unshare(0x00020000 | user) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
    os.makedirs(path, exist_ok=True)
    assert libc.mount(b"none", path.encode(), b"tmpfs", 0, b"size=64k") == 0
"""
# A group of processes that may have 64 MiB: the kernel ends who asks for more, for real.
GROUP = "phalanx-doctor-test"
_SMALL = f"""
import os
root = "/sys/fs/cgroup"
old = os.path.isdir(root + "/memory")
group = root + ("/memory" if old else "") + "/{GROUP}"
os.makedirs(group, exist_ok=True)
limit = "memory.limit_in_bytes" if old else "memory.max"
open(group + "/" + limit, "w").write(str(2**26))
open(group + "/cgroup.procs", "w").write(str(os.getpid()))
"""


@dataclass(frozen=True)
class Death:
    """One way."""

    name: str
    cause: str
    """What the doctor must call it."""
    script: str = ""
    """Launched on CPU ranks; empty: a job with the fault of that name."""
    ranks: int = 1
    rank: int | None = 0
    """Which one dies first; None: any may."""
    says: str = ""
    """What words or evidence must name."""
    is_quick: bool = False
    """Whether it is among those that always run."""
    env: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    """What the script is given."""


DEATHS = (
    Death(
        "exception",
        "exception",
        "def load(row):\n    return row['image']\nload({})\n",
        says="in load",
        is_quick=True,
    ),
    Death("import", "module-missing", "import frobnicate_nets\n", says="frobnicate_nets"),
    Death(
        "usage",
        "wrong-arguments",
        "import argparse\n"
        "p = argparse.ArgumentParser()\np.add_argument('--epochs')\np.parse_args()\n",
        says="--rate 1",
        words=("--rate", "1"),
    ),
    Death("file-missing", "file-missing", "open('data/train/17.npy')\n", says="17.npy"),
    Death(
        "recursion",
        "endless-recursion",
        "class Net:\n    def __getattr__(self, name):\n        return getattr(self, '_' + name)\n"
        "Net().width\n",
    ),
    Death(
        "host-memory",
        "host-out-of-memory",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "rows = [bytearray(2**28) for _ in range(8)]\n",
    ),
    Death(
        "kernel-out-of-memory",
        "host-out-of-memory-kill",
        _SMALL + "rows = [bytearray(b'x' * 2**24) for _ in range(32)]\n",
    ),
    Death(
        "segfault",
        "native-crash",
        "import ctypes\nctypes.string_at(0)\n",
        says="SIGSEGV",
        is_quick=True,
    ),
    Death("abort", "aborted", "import os\nos.abort()\n", says="SIGABRT"),
    Death(
        "kill-9",
        "killed",
        "import os, signal, time\nif os.environ['RANK'] == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(30)\n",
        ranks=2,
        rank=1,
        is_quick=True,
    ),
    Death(
        "disk-full",
        "disk-full",
        _TINY
        + "try:\n    tiny('out')\nexcept AssertionError:\n    os.symlink('/dev/full', 'out')\n"
        "path = 'out/weights.bin' if os.path.isdir('out') else 'out'\n"
        "for _ in range(2):\n    open(path, 'ab').write(b'0' * 2**16)\n",
        is_quick=True,
    ),
    Death(
        "port",
        "port-in-use",
        "import torch.distributed as dist\n"
        "first = dist.TCPStore('127.0.0.1', 0, 1, True, wait_for_workers=False)\n"
        "dist.TCPStore('127.0.0.1', first.port, 1, True, wait_for_workers=False)\n",
    ),
    Death(
        "shared-memory",
        "shared-memory-full",
        _TINY + _LOADER + "def fetch(i):\n    return torch.zeros(2**20)\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')\ntiny('/dev/shm')\ntrain()\n",
    ),
    Death(
        "loader-killed",
        "loader-killed",
        _LOADER + "def fetch(i):\n    os.kill(os.getpid(), signal.SIGKILL)\ntrain()\n",
    ),
    Death(
        "loader-segfault",
        "loader-crashed",
        _LOADER + "import ctypes\ndef fetch(i):\n    ctypes.string_at(0)\ntrain()\n",
    ),
    Death(
        "sample-broken",
        "corrupt-sample",
        _LOADER + "import json\ndef fetch(i):\n    return json.loads('{' if i == 5 else '1')\n"
        "train()\n",
        says="JSONDecodeError",
    ),
    Death(
        "mismatch",
        "collective-mismatch",
        _GROUP + "x = torch.ones(4)\nif rank == 0:\n    dist.all_reduce(x)  # one way\n"
        "else:\n    dist.broadcast(x, 0)  # the other\n",
        ranks=2,
        rank=None,
        says="BROADCAST",
        is_quick=True,
        env=(("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),),
    ),
    Death(
        "unused",
        "unused-parameters",
        _GROUP + "from torch.nn.parallel import DistributedDataParallel\n"
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.a(x)\n"
        "net = DistributedDataParallel(Net())\n"
        "for _ in range(2):\n    net(torch.ones(1, 2)).sum().backward()\n",
        ranks=2,
        rank=None,
        says="2 3",
    ),
    Death(
        "missed-collective",
        "collective-timeout",
        _GROUP + "if rank == 0:\n    dist.all_reduce(torch.ones(1))\nelse:\n    time.sleep(60)\n",
        ranks=2,
        says="rank 1",
    ),
    Death(
        "weights",
        "weights-do-not-fit",
        "from torch import nn\nstate = nn.Linear(4, 3).state_dict()\n"
        "nn.Linear(4, 2).load_state_dict(state)\n",
        says="weight",
    ),
    Death(
        "dtype",
        "dtypes-differ",
        "import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.float64))\n",
        says="ouble",
    ),
    Death(
        "meta",
        "no-values",
        "import torch\nwith torch.device('meta'):\n    net = torch.nn.Linear(2, 2)\n"
        "net.to('cpu')\n",
    ),
    Death(
        "nan",
        "not-finite",
        "import torch\ntorch.autograd.set_detect_anomaly(True)\n"
        "x = torch.zeros(1, requires_grad=True)\n(torch.sqrt(x) * 0).sum().backward()\n",
        says="SqrtBackward0",
    ),
    Death(
        "label",
        "label-out-of-range",
        "import torch\ntorch.nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([7]))\n",
        says="7",
    ),
    Death("job-sample", "data-error", ranks=1, says="sample 17", is_quick=True),
    Death("job-exception", "exception", ranks=2, rank=1, says="in loss"),
    Death("job-import", "module-missing", ranks=1, says="frobnicate_nets"),
    Death("job-exit", "rank-left", ranks=1, says="exit code 3"),
    Death("job-killed", "killed", ranks=2, rank=1),
)

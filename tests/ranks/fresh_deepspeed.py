"""DeepSpeed is made for one training per process and keeps counters and groups for good. The ranks
of the pool train many times, and not always together: after each run everything starts from 0."""

import sys

import torch


def forget():
    """Take back what a run with DeepSpeed leaves in the process."""
    if "deepspeed" not in sys.modules:
        return
    from deepspeed.comm import comm
    from deepspeed.runtime.zero import parameter_offload, partition_parameters
    from deepspeed.utils import groups

    comm.cdb = None
    groups._WORLD_GROUP = None
    partition_parameters.Init.param_id = 0
    parameter_offload.FWD_MODULE_STACK.clear()
    count = parameter_offload.DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0]
    count[0] = 0
    linear = getattr(partition_parameters.InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    if linear is not None:
        torch.nn.functional.linear = linear

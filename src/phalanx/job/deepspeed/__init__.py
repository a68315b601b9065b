"""DeepSpeed's own file: what it says becomes keys of the job, the rest is kept for DeepSpeed.

`"auto"`, the Hugging Face word for "as the trainer has it", leaves a key to the job.
"""

from phalanx.job.deepspeed.absorb import absorb_deepspeed

__all__ = ["absorb_deepspeed"]

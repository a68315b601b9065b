"""How ranks hold the model and combine gradients: single, ddp, fsdp, deepspeed, exact."""

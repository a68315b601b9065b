"""The fast path: torch.compile, CUDA graphs, validation against eager."""

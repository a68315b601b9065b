"""Where ranks run: under torchrun, on several nodes, in Slurm, over ssh."""

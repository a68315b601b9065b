"""A diffusion-transformer robot policy."""

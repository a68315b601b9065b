"""Parts of a model: blocks, buffers, shards, tensor files, recomputation."""

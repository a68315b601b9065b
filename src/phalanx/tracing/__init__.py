"""What one step of a model does, found on fake tensors: operators, bytes, kernels."""

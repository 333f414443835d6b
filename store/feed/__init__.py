"""Rows for training: their order, batches of them, read ahead: tensors, or NumPy arrays."""

"""Rows for training: their order, batches of them, read ahead; for torch."""

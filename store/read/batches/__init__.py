"""What a read gives: packed batches of tensors or NumPy arrays, and tables made of them."""

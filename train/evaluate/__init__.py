"""What scores are worth. NumPy arrays in, plain numbers out."""

"""Arrays in files of others (NumPy, safetensors, Arrow, JSON lines), mapped to columns."""

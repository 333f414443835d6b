"""The commands of `python -m store`."""

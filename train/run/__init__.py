"""A run from its settings to its results, and the directory that holds them."""

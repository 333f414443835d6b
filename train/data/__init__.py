"""Which rows a run reads, how they are split, and what a store must have for it."""

"""The rows that a filter means: its grammar, and the values that it compares."""

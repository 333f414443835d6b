"""Several stores, read as one where they lie."""

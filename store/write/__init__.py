"""The only code that changes a store."""

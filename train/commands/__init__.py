"""`python -m train` and its commands."""

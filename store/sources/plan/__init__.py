"""What an extraction will need, from its schema and a few measured traces, and how to read a store
in a training.
"""

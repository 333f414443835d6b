"""Stores copied to a server and back: push, pull, and what a push commits."""

"""Traces that a language model makes here, from questions or given answers."""

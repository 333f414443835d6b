"""Traces of any causal language model of Hugging Face's."""

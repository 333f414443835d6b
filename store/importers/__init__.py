"""Traces that were recorded elsewhere: arrays, older formats, files of serving engines."""

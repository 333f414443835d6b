"""Detectors fitted, kept and used in Python; the command line is this and printing."""

"""Training and judging detectors on a trace store: `python -m train`."""

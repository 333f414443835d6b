"""Training of detectors and fitting of probes, on any device."""

"""Training of detectors and fitting of probes, on whatever device."""

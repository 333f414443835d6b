"""What a trace of a language model is, whatever recorded it."""

"""The older formats: files of pickled traces and of preprocessed ones."""

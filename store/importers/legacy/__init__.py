"""The older formats: raw traces of six generations, and preprocessed ones."""

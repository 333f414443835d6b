"""Stores on S3, GCS and Azure: how they are pushed and pulled; needs the extra remote."""

"""What a job will need, before it runs: bytes, files, memory and time. `machine` alone reads."""

"""What a job will need, before it runs: bytes, files, memory and time.

Two modules read: `machine` and `memory_limits`.
"""

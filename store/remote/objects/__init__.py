"""Objects of a server: the client, its faults, what is tried again, addresses."""

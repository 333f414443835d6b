"""Reading a store: opens files, never writes one."""

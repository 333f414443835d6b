"""A store on a server read in place, through a cache on this machine's disk."""

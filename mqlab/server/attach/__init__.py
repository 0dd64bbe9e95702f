"""The private socket of a front process, for clients in other processes."""

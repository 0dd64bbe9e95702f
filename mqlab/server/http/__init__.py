"""Between the socket and the routes: connections, limits, keys, TLS."""

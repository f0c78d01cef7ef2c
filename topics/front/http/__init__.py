"""HTTP/1.1: sockets, the two lanes, bodies."""

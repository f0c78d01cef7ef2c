"""HTTP/1.1 on sockets: accepting, connections, heads, bodies, the requests of a connection."""

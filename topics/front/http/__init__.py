"""HTTP/1.1 on sockets: accepting, connections, heads, bodies, the fast and the cold lane."""

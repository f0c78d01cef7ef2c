"""HTTP/1.1 on sockets: accepts clients, reads heads and bodies, and serves the requests of each
connection.
"""

"""Listening sockets. They are made before the first fork and outlive every front: while a front
restarts, clients wait and nobody is refused.
"""

from __future__ import annotations

import socket

# Connections that wait while a front restarts. The kernel's net.core.somaxconn (4,096 by default)
# bounds it.
BACKLOG = 65_535


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """``count`` sockets on one address; the kernel spreads connections over them. Port 0 takes a
    free one.

    Raises ``OSError`` when the address is unknown or taken.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Of a name's addresses, the IPv4 one.
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    shared = count > 1
    if shared and port:
        # SO_REUSEPORT would let a second server of the same user take half of the connections
        # without an error.
        _bind(family, address, shared=False).close()
    listeners = [_bind(family, address, shared=shared)]
    chosen = (address[0], listeners[0].getsockname()[1], *address[2:])
    listeners += [_bind(family, chosen, shared=shared) for _ in range(count - 1)]
    for listener in listeners:
        listener.listen(BACKLOG)
    return listeners


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener

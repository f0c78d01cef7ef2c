"""The front: HTTP, SSE and WebSocket for clients, calls to the shards behind it.

    server        builds all parts, accepts, drains
    routes/       one module per resource: rows and operations; the table that matches them
    live/         feeds, event streams, WebSockets
    http/         sockets, heads, bodies, the two lanes
    guard, ...    one module per rule that every request passes

Imports go down in this list. The front knows nothing of the disk layout.
"""

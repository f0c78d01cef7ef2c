"""The front: HTTP, SSE and WebSocket for clients, calls to the shards behind it.

    server        builds all parts, accepts, drains
    table         all routes, and the one matcher for them
    admin/        views of the admin plane, under Quart-Trio and Hypercorn
    data/         operations of the data plane, one module per resource
    live/         feeds, event streams, WebSockets
    http/         sockets, heads, bodies, the requests of a connection
    guard, ...    one module per rule that every request passes

Imports go down in this list. The front knows nothing of the disk layout.
"""

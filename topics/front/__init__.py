"""The front: the process that serves HTTP, SSE and WebSocket clients, and calls the shards.

    server        builds all parts, accepts clients, drains
    table         all routes, and the only function that matches them
    admin/        views of the admin plane, with Quart-Trio and Hypercorn
    data/         operations of the data plane, one module per resource
    live/         feeds, event streams, WebSockets
    http/         sockets, heads, bodies, the requests of a connection
    guard, ...    one module per rule that applies to every request
    pressure/     refusals and pauses while the server is overloaded

Imports point downwards in this list. The front must not depend on the on-disk layout. A
restart loses all its state, so it must not keep the only copy of any data.
"""

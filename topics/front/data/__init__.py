"""The data plane: routes and operations, with one module per resource.

It contains the routes that producers, consumers and workers call in a loop, all streams, and all
routes that need no key. Operations are plain functions (`topics.front.dispatch`).
"""

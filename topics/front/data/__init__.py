"""The data plane: rows and operations, one module per resource.

Here is what producers, consumers and workers call in a loop, every stream, and every route that
needs no key. Operations are plain functions (`topics.front.dispatch`).
"""

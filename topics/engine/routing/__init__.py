"""Routing: the rules of routers: graph, cursors, picking and lag."""

"""The rules of routers (§6): their graph, and what they copy."""

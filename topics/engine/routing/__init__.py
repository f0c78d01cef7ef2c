"""The rules of routers (§6): their graph, what they copy, how far they have come."""

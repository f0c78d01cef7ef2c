"""The rules of routers (§6): their graph, the selection of records to copy, and their progress."""

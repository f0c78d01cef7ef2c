"""The processes of a server, each in a module of its own.

    supervisor.py     the parent: makes what they share, forks them, restarts what dies, stops them in order
    children.py       making a child by fork, so that it never outlives its parent
    front.py          speaks HTTP
    shard_writer.py   owns the topics of one shard

The parent imports a child's module in the child alone, so it never loads a server.
"""

"""The processes of a server, in the order of a start: `boot` reads settings and keys, `serve` makes
what the processes share, `supervisor` is the parent's loop, over its `family` of children and their
`health`; `front` and `shard_writer` are what the children run.
"""

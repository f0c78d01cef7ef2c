"""The processes of a server. In the order of a start:

    boot.py           reads settings and keys
    serve.py          checks, listens, makes what the processes share
    supervisor.py     the parent's loop: forks, restarts, stops in phases
      family.py       all children: births, links, signs of life, back-off, ends
      health.py       the watchdog of the children; what systemd hears
    children.py       a fork that never outlives its parent
    front.py          the process that speaks HTTP
    shard_writer.py   the process that owns the topics of one shard
    measure.py        what both store about themselves for the metrics
    logs.py, log_sink.py, notify.py

The parent runs nothing of a server. It imports what shards run before it forks them; what a front
runs is imported in the child alone.
"""

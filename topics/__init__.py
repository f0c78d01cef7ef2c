"""A persistent event engine for one machine.

The layers, from the lowest up. Modules import only from lower layers (tests/test_layers.py):

    formats, errors, config   bytes and values
    engine                    rules: seqs, cursors, idempotency; no clocks, files or tasks
    storage                   files, fsync, recovery
    actors                    rings between processes, mailboxes, the shard loop
    front                     HTTP: data plane and admin plane, streams
"""

__version__ = "0.1.0"

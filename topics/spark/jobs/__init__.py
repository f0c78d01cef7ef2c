"""Jobs: what users run between files and topics, each as a function and as a subcommand.

    cli.py        the command line ``topics-spark JOB ...``
    arguments.py  what the subcommands share: servers, types of arguments, the result of a job
    streams.py    what they share with Spark: options, streaming queries
    appending.py  rows to a topic by the sender of the sink, and the table at the end
    backfill.py   Parquet, CSV or JSON files into a topic
    replay.py     an archive back into topics, in order
    archive.py    a topic, or all that match a pattern, into a table by date
    compact.py    the last record of each key into another topic

Below the archive:

    archive_table.py  batches as commits of a Delta table
    archive_check.py  the archive against the server
    checkpoint.py     whose a checkpoint is

The module of a job has the name of its subcommand. It has two functions: ``add(commands)`` makes
the subcommand's parser, ``run(options)`` does the job and returns an ``Outcome``. It imports
PySpark and pyarrow only within functions, so that ``topics-spark --help`` loads neither.
"""

"""Jobs that copy records between files and topics. Each job is a module and a subcommand.

    cli.py            the command line ``topics-spark JOB ...``
    arguments.py      arguments that several subcommands share, and the options that they set
    streams.py        reads topics, and runs streaming queries
    appending.py      appends rows to a topic with the sink's sender, and reports the counts
    backfill.py       appends Parquet, CSV or JSON files to a topic
    replay.py         appends the records of an archive to topics, in order
    archive.py        copies topics to a table that is partitioned by date
    archive_table.py  writes the batches of an archive as commits of a Delta table
    archive_check.py  compares an archive with the server
    checkpoint.py     the checkpoint of an archive, which belongs to one job
    compact.py        appends the last record of each key to another topic

A job's module has the name of its subcommand. ``add(commands)`` adds the parser for the subcommand.
``run(options)`` runs the job and returns its report, which has ``text()`` for the user, and
``agrees``, which is true if the server and the archive have all records. PySpark and pyarrow are
imported only within functions, so that ``topics-spark --help`` loads neither.
"""

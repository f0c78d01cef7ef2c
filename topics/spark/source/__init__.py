"""The Spark source ``format("topics")``: topics as batch and streaming DataFrames.

    data_source.py  the class that Spark instantiates, for reads and writes
    connection.py   options of reads and writes: servers, API key, certificates, retries
    options.py      options of reads
    offsets.py      offsets in options and in checkpoints
    columns.py      converts records to Arrow batches
    plan.py         the ranges of seqs of a batch or micro-batch
    survey.py       the heads and epochs of topics on the servers
    reading.py      batch reads; reads the ranges of a task on an executor
    stream.py       streaming reads
    lag.py          the lag of a query

As in Kafka, an offset is inclusive at the start and exclusive at the end for users. Everywhere else
a range is (after, last], as ``from_seq`` is (§3). Only offsets.py converts between them.
"""

"""The Spark sink ``format("topics")``: appends the rows of a batch or a stream to topics.

    options.py    options for writes
    columns.py    the columns from which a record is built
    encoding.py   converts Arrow batches to JSON records
    opening.py    opens and creates topics
    sending.py    sends the rows of a task on an executor
    writer.py     the writers that Spark calls, and their summaries

Each record is appended exactly once. Appends cannot be undone and cannot wait for Spark's commit,
so a record can be read as soon as a task has sent it. Instead, the server executes only one append
for each idempotency key. A request's key is built from the write, the partition, the topic, the
number of the request within the partition, and its bytes. So rows in the same partitions and order
have the same keys in every attempt, whether a task is retried or speculative, a micro-batch is
repeated, or the driver is restarted. The write is identified as follows:

    df.write         the option jobId; if it is absent, only the tasks of one write may be repeated
    df.writeStream   the id of the query in its checkpoint, and the number of the micro-batch
    foreachBatch     a batch write with .option("jobId", f"{query_name}:{batch_id}")

Rows may be appended twice if they differ between attempts or if the topic has lost the keys. The
section "Write" of topics/docs/spark.md lists these cases. No record is ever lost.
"""

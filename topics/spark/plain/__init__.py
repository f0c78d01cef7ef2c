"""Files to records without a JVM, as the Spark producer makes them.

    files.py    which file is loaded here; a file to checked rows
    lines.py    JSON lines
    table.py    CSV, by pyarrow's reader
    columns.py  Parquet, by pyarrow's reader
    to_json.py  Arrow columns as the JSON text of Spark's ``to_json``
    rows.py     checked rows, and the refusal `NotPlain`
    send.py     rows into a topic, in their order

What this package cannot make exactly as Spark does, it leaves to Spark by raising `NotPlain`, and
always before the first record is sent. One process does everything, so the records keep the order
of the file.
"""

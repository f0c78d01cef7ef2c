"""JSON texts that a field of a request must not have, by what the field is: stated once for all
requests that have such a field. ``TOPIC`` stands for the name of a topic.
"""

from __future__ import annotations

from collections.abc import Iterable

UNSIGNED = ("-1", '"5"', "1.5", "true", "[]")
SEQ = ("-1", '"1"', "1.5", "1.0", "true", "null", "[]", str(2**64))
EPOCH = ("{}", "[]", "true", "1.5")
FLAG = ("0", "1", '"true"', '"false"', '"yes"', "null", "[]", "{}")
NODE = ("5", "true", "{}", "[1]", "[null]", '["a",5]', '[["a"]]')
CONSISTENCY = ("5", "true", '"weak"', '"STRONG"', '""', "[]")
TOPIC_NAMES = ("", "-x", "a b", "a/b", "é", "x" * 256, "a\\n")


def rows(texts: Iterable[str], *fields: str) -> list[tuple[str, str]]:
    """Each field with each text."""
    return [(field, text) for field in fields for text in texts]


# What decides how records look: of diff, watch and subscribe.
VIEW = [
    *rows(UNSIGNED, "limit", "max_batch_bytes"),
    *rows(FLAG, "include_meta", "include_tags"),
    *rows(NODE, "node"),
]
# Of watch and subscribe.
LIVE_VIEW = [*VIEW, *rows(FLAG, "include_data"), *rows(CONSISTENCY, "consistency")]
# Where a reader begins in one topic.
START = [*rows(SEQ, "from_seq"), *rows(FLAG, "tail"), *rows(EPOCH, "epoch")]
# A map of topics with their starts.
TOPICS = [
    *("{}", "[]", '"TOPIC"', "5", "true", '["TOPIC"]'),
    *(f'{{"TOPIC":{text}}}' for text in ("5", "[]", '"x"', "true")),
    *(f'{{"TOPIC":{{"{field}":{text}}}}}' for field, text in START),
    *(f'{{"{name}":{{}}}}' for name in TOPIC_NAMES),
]
# Of routers.
GUARANTEE = ("5", "true", "null", "[]", '""', '"exactly-once"', '"AT_LEAST_ONCE"', '"at_most_once"')
# Of calls to queues. A node there is one name.
TEXT = ("5", "true", "null", "{}", "[]", '["a"]')
SEQS = (
    *("null", "5", '"1"', "true", "{}", "[]", "[[1]]"),
    *(f"[{text}]" for text in SEQ),
    *(f"[1,{text}]" for text in SEQ),
)
# Beside one seq.
MATCH = (
    *("5", "true", "{}", "[]", '["tag"]'),
    *('["tag","Eq",5]', '["node","Eq","a"]', '["tag","Glob","a"]'),
)

"""The smallest program: the count of each word.

coopstreams dev
coopstreams run examples/word_count.py --bootstrap-servers localhost:9092 --processes 3
"""

from coopstreams import StreamsBuilder, serdes

builder = StreamsBuilder("word-count")
(
    builder.stream("lines", key=serdes.raw, value=serdes.text)
    .flat_map_values(str.split)
    .group_by(lambda _, word: word.lower(), key=serdes.text)
    .count(store="counts")
    .to_stream()
    .to("word-counts")
)
topology = builder.build()

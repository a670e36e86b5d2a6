"""Readings of machines are judged by a small model, hundreds at a time; those that look
like a failure are counted.

A model called for one reading at a time spends most of its time on the call.

coopstreams dev
coopstreams run examples/machines.py --bootstrap-servers localhost:9092
"""

from typing import TypedDict

import numpy as np
from sklearn.linear_model import LogisticRegression

from coopstreams import StreamsBuilder, serdes


class Reading(TypedDict):
    """The measurements of a machine."""

    temperature: float
    vibration: float


class Judgement(TypedDict):
    """The probability of a machine's failure soon, from 0 to 1."""

    failing: float


def trained() -> LogisticRegression:
    """Return the model; a real one would be loaded from a file."""
    chance = np.random.default_rng(1)
    sound = chance.normal((60.0, 1.0), (8.0, 0.4), (500, 2))
    failing = chance.normal((85.0, 2.5), (10.0, 0.6), (500, 2))
    return LogisticRegression(max_iter=1000).fit(
        np.vstack((sound, failing)), np.repeat((0, 1), 500)
    )


model = trained()


def judged(readings: list[Reading]) -> list[Judgement]:
    """Return the judgement of each reading."""
    features = np.array(
        [(reading["temperature"], reading["vibration"]) for reading in readings]
    )
    return [
        Judgement(failing=float(chance))
        for chance in model.predict_proba(features)[:, 1]
    ]


builder = StreamsBuilder("machines")
judgements = builder.stream(
    "readings", key=serdes.text, value=serdes.json(Reading)
).map_batches(judged, value=serdes.json(Judgement), max_records=500)
judgements.to("judgements")
(
    judgements.filter(lambda _, judgement: judgement["failing"] > 0.5)
    .group_by_key()
    .count(store="alarms")
    .to_stream()
    .to("alarms")
)
topology = builder.build()

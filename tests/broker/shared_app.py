"""An application with unordered records: any free thread processes an event, some after
a call; a repartition topic leads to a count by user.
"""

from __future__ import annotations

import asyncio
import os
import time

from coopstreams import StreamsBuilder, serdes

NAME, SOURCE, SEEN, COUNTED = (
    os.environ[name] for name in ("APP_NAME", "APP_SOURCE", "APP_SEEN", "APP_COUNTED")
)
CALL_S = float(os.environ.get("APP_CALL_S", "0"))


def looked_at(event: str) -> str:
    if event == "stuck":
        time.sleep(3600)
    return f"{event} {os.getpid()}"


async def asked(event: str) -> str:
    await asyncio.sleep(CALL_S)
    return event


builder = StreamsBuilder(NAME)
events = builder.stream(SOURCE, key=serdes.raw, value=serdes.text, order="none")
seen = events.map_values_async(asked, order="none", max_in_flight=500).map_values(
    looked_at, value=serdes.text
)
seen.to(SEEN)
users = seen.group_by(lambda _, event: int(event.split()[0]) % 10, key=serdes.int64)
users.count().to_stream().to(COUNTED)
topology = builder.build()

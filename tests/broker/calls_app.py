"""An application of slow calls: one of `APP_EVERY` numbers takes `APP_CALL_S`. Each call is a
line of the file `APP_CALLED`. Other records are counted without calls.

asked   -> call  -> answered
counted -> count -> counts
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from coopstreams import StreamsBuilder, serdes

ASKED, ANSWERED, COUNTED, COUNTS = (
    os.environ[name]
    for name in ("APP_ASKED", "APP_ANSWERED", "APP_COUNTED", "APP_COUNTS")
)
CALLED = Path(os.environ["APP_CALLED"])
CALL_S = float(os.environ["APP_CALL_S"])
EVERY = int(os.environ["APP_EVERY"])


async def called(number: int) -> int:
    with CALLED.open("a") as lines:
        lines.write(f"{number}\n")
    await asyncio.sleep(CALL_S if number % EVERY == 7 else 0.02)
    return number


builder = StreamsBuilder(os.environ["APP_NAME"])
builder.stream(ASKED, key=serdes.text, value=serdes.int64).map_values_async(
    called, value=serdes.int64, timeout=None
).to(ANSWERED)
builder.stream(
    COUNTED, key=serdes.text, value=serdes.int64
).group_by_key().count().to_stream().to(COUNTS)
topology = builder.build()

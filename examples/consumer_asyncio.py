"""Concurrent slow work, finished in any order and committed at once: a slow record
delays no other, and nothing is lost.

    python examples/consumer_asyncio.py localhost:9092 orders

After a crash, only the unfinished records are processed again. Here records of one key
may overtake each other; for an order per key, chain the tasks of a key.
"""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable

from coopstreams.consumer import ConsumerRecord, CooperativeConsumer

AT_ONCE = 200


async def run(
    bootstrap: str,
    topic: str,
    work: Callable[[ConsumerRecord], Awaitable[None]],
    running: Callable[[], bool],
) -> None:
    consumer = CooperativeConsumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-asyncio"}
    )
    consumer.subscribe([topic])
    tasks: set[asyncio.Task[None]] = set()

    async def one(record: ConsumerRecord) -> None:
        await work(record)
        consumer.done(
            record
        )  # not reached if the work failed: the next owner repeats it

    try:
        while running():
            # `consume` waits for Kafka in another thread; the event loop runs on in
            # this one.
            for record in await asyncio.to_thread(
                consumer.consume, max(1, AT_ONCE - len(tasks)), 0.1
            ):
                task = asyncio.create_task(one(record))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while len(tasks) >= AT_ONCE:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(consumer.commit)
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await asyncio.to_thread(consumer.close)


async def pretend(record: ConsumerRecord) -> None:
    await asyncio.sleep(random.random())
    print(record.partition, record.offset, record.key)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], pretend, lambda: True))

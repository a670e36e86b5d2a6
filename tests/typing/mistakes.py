# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Mistakes that a type checker finds. Read by mypy and pyright, never run: an ignored
error that is none is an error.
"""

from dataclasses import dataclass

from coopstreams import count
from coopstreams.topology import serdes
from coopstreams.topology.dsl.builder import StreamsBuilder
from coopstreams.topology.dsl.topology_builder import TopologyBuilder
from coopstreams.topology.join_windows import JoinWindows
from coopstreams.topology.windows import TimeWindows


@dataclass(frozen=True)
class Order:
    customer: str
    amount: int


builder = StreamsBuilder("mistakes")
orders = builder.stream("orders", key=serdes.text, value=serdes.json(Order))
customers = builder.table("customers", key=serdes.text, value=serdes.text)
numbers = builder.table("numbers", key=serdes.int64, value=serdes.text)
everywhere = builder.global_table("everywhere", key=serdes.int64, value=serdes.text)
by_amount = orders.select_key(lambda _, order: order.amount, key=serdes.int64)
by_hour = orders.group_by_key().windowed_by(TimeWindows(hours=1)).count()

# names that do not exist
orders.filter(lambda _, order: order.price > 3)  # type: ignore[attr-defined]
orders.map_values(lambda order: order.amount).filter(
    lambda _, amount: amount.customer == ""  # type: ignore[attr-defined]
)

# functions of the wrong arity
orders.filter(lambda order: True)  # type: ignore[arg-type, misc]
orders.map_values(lambda key, order: order)  # type: ignore[arg-type, misc]
orders.group_by_key().reduce(lambda key, old, new: new)  # type: ignore[arg-type, misc]
orders.group_by_key().mean()  # type: ignore[misc]

# no aggregates
orders.group_by_key().aggregate(n=count)  # type: ignore[call-overload]
orders.group_by_key().aggregate(n=count(), value=serdes.json)  # type: ignore[call-overload]

# keys of different types
orders.join(numbers, lambda order, number: number)  # type: ignore[arg-type]
by_amount.join(customers, lambda order, name: name)  # type: ignore[arg-type]
orders.join(by_hour, lambda order, count: count)  # type: ignore[arg-type]
orders.merge(by_amount)  # type: ignore[arg-type]

orders.join(by_amount, lambda order, other: other, windows=JoinWindows(milliseconds=5))  # type: ignore[arg-type]
customers.join(numbers, lambda name, number: number)  # type: ignore[arg-type]
customers.join(
    numbers,
    lambda name, number: number,
    foreign_key=lambda name: name,  # type: ignore[arg-type, return-value]
    value=serdes.text,
)
orders.join(everywhere, lambda order, text: text, on=lambda _, order: order.customer)  # type: ignore[arg-type, return-value]

# a number without a unit
TimeWindows(size=10)  # type: ignore[arg-type]
TimeWindows(10)  # type: ignore[arg-type]
JoinWindows(10)  # type: ignore[arg-type]
TimeWindows(hours=1, grace=5)  # type: ignore[arg-type]
orders.group_by_key().windowed_by(TimeWindows(hours=1)).count(retention=10)  # type: ignore[arg-type]
TimeWindows(weeks=1)  # type: ignore[call-arg]

# names of other libraries
customers.to("out")  # type: ignore[attr-defined]
orders.mapValues(len)  # type: ignore[attr-defined]

# a stream join needs windows
orders.join(orders, lambda order, other: other)  # type: ignore[call-overload]

# a left join may find None
orders.left_join(customers, lambda order, name: name.upper())  # type: ignore[union-attr]

# no joiner, a joiner of the other method
orders.join(customers)  # type: ignore[call-overload]
orders.join(customers, lambda key, order, name: name)  # type: ignore[arg-type, misc]
orders.join_with_key(customers, lambda order, name: name)  # type: ignore[arg-type, misc]

# a stream is no table
orders.join(orders, lambda left, right: left)  # type: ignore[call-overload]

# late records keep their type, whatever they are aggregated to
by_customer = orders.group_by_key().windowed_by(TimeWindows(hours=1))
by_customer.late().map_values(lambda count: count + 1)  # type: ignore[operator]

# serdes of another type
orders.to("copy", value=serdes.text)  # type: ignore[arg-type]
orders.to("copy", key=serdes.int64)  # type: ignore[arg-type]
orders.group_by(lambda _, order: order.customer, key=serdes.int64)  # type: ignore[arg-type, return-value]
orders.group_by_key(key=serdes.raw)  # type: ignore[arg-type]
orders.group_by_key().aggregate(int, lambda _, order, total: total, value=serdes.text)  # type: ignore[arg-type]
orders.map_values(lambda order: order.amount, value=serdes.text)  # type: ignore[arg-type, return-value]
builder.stream("orders", key=serdes.text)  # type: ignore[call-arg]

# nodes by name: a function of a sink or a source has the types of its serdes
named = TopologyBuilder("named")
named.add_source(
    "orders",
    "orders",
    key=serdes.text,
    value=serdes.json(Order),
    timestamp=lambda record: record.value.amount,  # type: ignore[union-attr]
)
named.add_source("orders", "orders", key=serdes.text)  # type: ignore[call-arg]
named.add_processor("p", Order, "orders", by_key=False)  # type: ignore[arg-type]
named.add_sink(
    "copy",
    lambda key, order: order.amount,  # type: ignore[arg-type, return-value]
    "orders",
    key=serdes.text,
    value=serdes.json(Order),
)
named.add_sink("copy", "copy", "orders", key=serdes.text, value=str)  # type: ignore[arg-type]
named.add_state_store("counts", "p")  # type: ignore[arg-type]

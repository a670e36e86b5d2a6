"""`PostgresSink` beyond the contract: rows by key, and its errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import psycopg
import pytest
from psycopg.types.json import Jsonb

from coopstreams.sinks.postgres import PostgresSink, fields_of
from coopstreams.topology import serdes
from coopstreams.topology.errors import ConfigError, SinkUnavailableError, TopologyError
from coopstreams.topology.external_sinks import SinkPartition, SinkRecord
from tests.sinks.server import PostgresServer

NUMBERS = count()


@dataclass
class Stay:
    city: str
    nights: int


def partition() -> SinkPartition:
    return SinkPartition("app", f"sink-{os.getpid()}-{next(NUMBERS)}", 0, "a")


def applied(sink: PostgresSink, *pairs: tuple[object, object]) -> list[str]:
    """Apply keys and values in one transaction; return the refusals, in words."""
    said: list[str] = []
    session = sink.open(partition(), 0)
    records = [
        SinkRecord(offset, key, value, 0) for offset, (key, value) in enumerate(pairs)
    ]
    session.apply(
        records,
        len(pairs),
        lambda record, error: said.append(f"{record.offset}: {error}"),
        0,
    )
    session.close()
    return said


def table(server: PostgresServer, columns: str) -> str:
    name = f"rows_{next(NUMBERS)}"
    server.run(f"CREATE TABLE {name} ({columns})")
    return name


@pytest.mark.slow
def test_a_key_has_one_row_until_a_null_value_deletes_it(
    postgres: PostgresServer,
) -> None:
    name = table(
        postgres,
        '"guest %" text PRIMARY KEY, city text, nights int, "Odd %s {name}" int',
    )
    sink = PostgresSink(postgres.dsn, name, key="guest %")
    odd = {"city": "Bonn", "nights": 1, "Odd %s {name}": 7}
    assert (
        applied(
            sink,
            ("ada", Stay("Rome", 2)),
            ("bob", odd),
            ("ada", {"nights": 3}),
            ("cyd", {}),
            ("cyd", None),
        )
        == []
    )
    assert postgres.run(f'SELECT * FROM {name} ORDER BY "guest %"') == [
        ("ada", "Rome", 3, None),
        ("bob", "Bonn", 1, 7),
    ]


@pytest.mark.slow
def test_keys_of_several_columns_are_tuples_or_objects(
    postgres: PostgresServer,
) -> None:
    name = table(
        postgres, "city text, nights int, of jsonb, PRIMARY KEY (city, nights)"
    )
    sink = PostgresSink(
        postgres.dsn,
        name,
        key=("city", "nights"),
        columns=lambda _, value: {"of": value},
    )
    keys = [
        (("Rome", 1), {"n": [1]}),
        (Stay("Rome", 1), {"n": [2]}),
        ({"city": "Bonn", "nights": 1}, None),
    ]
    assert applied(sink, *keys) == []
    assert postgres.run(f"SELECT * FROM {name}") == [("Rome", 1, {"n": [2]})]
    assert applied(sink, (("Rome",), {}), (("Rome", 2), {})) == [
        "0: the key ('Rome',) has not the 2 parts city, nights"
    ]


@pytest.mark.ci
def test_a_tuple_that_json_has_made_a_list_is_a_key_of_several_columns(
    postgres: PostgresServer,
) -> None:
    """Each record was refused: 'list' object has no attribute 'city'."""
    name = table(postgres, "city text, nights int, n int, PRIMARY KEY (city, nights)")
    sink = PostgresSink(postgres.dsn, name, key=("city", "nights"))
    rome, bonn = (
        serdes.json.deserialize(serdes.json.serialize(key))
        for key in (("Rome", 1), ("Bonn", 2))
    )
    assert applied(sink, (rome, {"n": 1}), (bonn, {"n": 2}), (bonn, None)) == []
    assert postgres.run(f"SELECT * FROM {name}") == [("Rome", 1, 1)]
    assert applied(sink, (["Rome"], {})) == [
        "0: the key ['Rome'] has not the 2 parts city, nights"
    ]


JSON_VALUES = [
    [1, 2],
    [{"a": None}],
    [],
    "text",
    '"quoted"',
    7,
    1.5,
    True,
    False,
    {"a": [1]},
]


@pytest.mark.ci
@pytest.mark.parametrize("type_", ["jsonb", "json", "document"])
def test_each_json_value_is_written_to_a_column_of_json(
    postgres: PostgresServer, type_: str
) -> None:
    """Lists, texts, numbers and true were refused, and an empty list became an empty
    object.
    """
    postgres.run("DROP DOMAIN IF EXISTS document CASCADE")
    postgres.run("CREATE DOMAIN document AS jsonb")
    name = table(postgres, f"n int PRIMARY KEY, of {type_}, tags int[]")
    sink = PostgresSink(
        postgres.dsn, name, key="n", columns=lambda n, of: {"of": of, "tags": [n]}
    )
    own = len(JSON_VALUES)
    pairs: list[tuple[object, object]] = [
        *enumerate(JSON_VALUES),
        (own, Jsonb([8])),
        (own + 1, [Stay("Rome", 2)]),
        (own + 2, float("nan")),
    ]
    (nan,) = applied(sink, *pairs)
    assert nan.startswith(f"{own + 2}: invalid input syntax for type json")
    rows = postgres.run(f"SELECT n, of, tags FROM {name} ORDER BY n")
    expected = [*JSON_VALUES, [8], [{"city": "Rome", "nights": 2}]]
    assert rows == [(n, of, [n]) for n, of in enumerate(expected)]
    nothing = PostgresSink(
        postgres.dsn, name, key="n", columns=lambda *_: {"of": None, "tags": None}
    )
    assert applied(nothing, (0, 1)) == []
    assert postgres.run(f"SELECT of IS NULL FROM {name} WHERE n = 0") == [(True,)]


@pytest.mark.ci
def test_a_refused_row_logs_nothing_of_the_client(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The client said "error ignored terminating" for each step of the search for the
    bad row.
    """
    name = table(postgres, "n int CHECK (n <> 3)")
    sink = PostgresSink(postgres.dsn, name, columns=lambda _, value: {"n": value})
    (said,) = applied(sink, *((None, n) for n in range(500)))
    assert said.startswith("3: new row for relation")
    assert "check constraint" in said
    assert postgres.run(f"SELECT count(*) FROM {name}") == [(499,)]
    assert caplog.records == []


@pytest.mark.slow
def test_each_bad_row_is_refused_with_its_reason_and_the_others_are_written(
    postgres: PostgresServer,
) -> None:
    name = table(postgres, "n int CHECK (n < 100)")

    def columns(_: object, value: int) -> dict[str, object] | None:
        return (
            None
            if value == 50
            else {"n": 1 // (value - 7)}
            if value == 7
            else {"n": "x" if value == 9 else value}
        )

    said = applied(
        PostgresSink(postgres.dsn, name, columns=columns),
        *((None, n) for n in (1, 7, 9, 50, 100, 99)),
    )
    assert [text.partition(":")[0] for text in said] == ["1", "2", "4"]
    assert "division" in said[0]
    assert "invalid input syntax" in said[1]
    assert "check constraint" in said[2]
    assert postgres.run(f"SELECT n FROM {name} ORDER BY n") == [(1,), (99,)]


@pytest.mark.slow
def test_a_row_beyond_a_limit_of_the_server_is_refused_and_the_others_are_written(
    postgres: PostgresServer,
) -> None:
    name = table(postgres, "guest text PRIMARY KEY, nights int")
    long = "".join(
        f"{n:x}" for n in range(5000)
    )  # even compressed, longer than a row of an index
    said = applied(
        PostgresSink(postgres.dsn, name, key="guest"),
        ("ada", {"nights": 1}),
        (long, {}),
        ("bob", {}),
    )
    assert [text.partition(",")[0] for text in said] == [
        "1: index row requires 15648 bytes"
    ]
    assert postgres.run(f"SELECT guest FROM {name} ORDER BY guest") == [
        ("ada",),
        ("bob",),
    ]


@pytest.mark.slow
def test_a_row_that_a_constraint_refuses_at_the_commit_is_refused_and_the_others_are_written(
    postgres: PostgresServer,
) -> None:
    """It was taken for a server that is away, and tried again for ever."""
    name = table(postgres, "n int UNIQUE DEFERRABLE INITIALLY DEFERRED")
    sink = PostgresSink(postgres.dsn, name, columns=lambda _, value: {"n": value})
    said = applied(sink, *((None, n) for n in (1, 2, 2, 3)))
    assert [text.partition(" value")[0] for text in said] == ["2: duplicate key"]
    assert postgres.run(f"SELECT n FROM {name} ORDER BY n") == [(1,), (2,), (3,)]


@pytest.mark.slow
def test_what_cannot_work_is_said_when_a_partition_is_opened(
    postgres: PostgresServer,
) -> None:
    def said(sink: PostgresSink) -> str:
        with pytest.raises(ConfigError) as error:
            sink.open(partition(), 0)
        return str(error.value)

    name = table(postgres, "guest text, nights int")
    assert 'relation "nowhere" does not exist' in said(
        PostgresSink(postgres.dsn, "nowhere", key="guest")
    )
    assert "unique index on (guest)" in said(
        PostgresSink(postgres.dsn, name, key="guest")
    )
    postgres.run(f"CREATE VIEW {name}_view AS SELECT DISTINCT guest FROM {name}")
    assert f'cannot insert into view "{name}_view"' in said(
        PostgresSink(postgres.dsn, f"{name}_view")
    )
    assert 'column "host" of relation' in said(
        PostgresSink(postgres.dsn, name, key="host")
    )
    postgres.run("CREATE ROLE reader LOGIN")
    postgres.run(f"GRANT SELECT ON {name} TO reader")
    reader = postgres.dsn.replace("tester", "reader")
    assert "permission denied for table" in said(PostgresSink(reader, name))
    postgres.run(f"GRANT INSERT ON {name} TO reader")
    columns = "application text, sink text, partition int, topic_id text, next_offset int, term int, refused int[]"
    postgres.run(f"CREATE TABLE others ({columns})")
    postgres.run("GRANT SELECT ON others TO reader")
    assert "for table others. Let the user select, insert and" in said(
        PostgresSink(reader, name, positions="others")
    )
    unmade = said(PostgresSink(reader, name, positions="Mine"))
    assert 'or make it: CREATE TABLE IF NOT EXISTS "Mine" ( application text' in unmade
    postgres.run(unmade.partition("or make it: ")[2])
    postgres.run('GRANT SELECT, INSERT, UPDATE ON "Mine" TO reader')
    PostgresSink(reader, name, positions="Mine").open(partition(), 0).close()


@pytest.mark.ci
def test_an_index_that_is_dropped_meanwhile_is_no_fault_of_the_records(
    postgres: PostgresServer,
) -> None:
    """A handler would have been asked for each of them. The next session says what is
    missing.
    """
    name = table(postgres, "guest text CONSTRAINT only_one UNIQUE, nights int")
    sink = PostgresSink(postgres.dsn, name, key="guest")
    session = sink.open(partition(), 0)
    postgres.run(f"ALTER TABLE {name} DROP CONSTRAINT only_one")

    def refused(_: SinkRecord, error: Exception) -> None:
        raise AssertionError(error)

    with pytest.raises(SinkUnavailableError, match="no unique or exclusion constraint"):
        session.apply([SinkRecord(0, "ann", {"nights": 1}, 0)], 1, refused, 0)
    session.close()
    with pytest.raises(ConfigError, match="unique index"):
        sink.open(partition(), None)


@pytest.mark.slow
def test_a_server_that_is_away_is_named_without_the_password(
    postgres: PostgresServer,
) -> None:
    away = postgres.dsn.replace("port=", "port=1 password=secret-word options=-cport=")
    with pytest.raises(
        SinkUnavailableError, match=r"PostgreSQL at 127\.0\.0\.1:1/postgres: "
    ) as error:
        PostgresSink(away, "t").open(partition(), 0)
    assert "secret-word" not in str(error.value)


@pytest.mark.slow
def test_a_connection_that_the_server_ends_is_no_fault_of_the_records(
    postgres: PostgresServer,
) -> None:
    name = table(postgres, "n int")
    session = PostgresSink(
        postgres.dsn, name, columns=lambda _, value: {"n": value}
    ).open(partition(), 0)
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'coopstreams %'"
        )

    def refused(_: SinkRecord, error: Exception) -> None:
        raise AssertionError(error)

    with pytest.raises(SinkUnavailableError):
        session.apply([SinkRecord(0, None, 1, 0)], 1, refused, 0)
    session.close()
    assert postgres.run(f"SELECT * FROM {name}") == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PostgresSink("host=a password='secret-word", "t"),
            "the dsn cannot be read",
        ),
        (lambda: fields_of(None, 5), "int has no fields"),
    ],
)
def test_mistakes_are_told_without_a_server_and_without_the_password(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises((TopologyError, TypeError), match=message) as error:
        make()
    assert "secret-word" not in f"{error.value}{error.value.__cause__}"


def test_a_sink_shows_its_table_and_no_secret() -> None:
    assert str(PostgresSink("host=a password=secret-word", "t", key="k")) == (
        "PostgresSink(table='t', key='k', positions='coopstreams_positions')"
    )

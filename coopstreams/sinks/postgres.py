"""Implements `PostgresSink`, which applies records to a PostgreSQL table exactly once.

A table `coopstreams_positions` in the same database has a row for each partition of
each sink: the position, the term of its owner, and the refused records. The row changes
in the transaction that changes the user's table.

Invariant: the first statement of a transaction locks the partition's row and requires
the session's term. So an earlier owner waits for the lock, finds a later term, and
changes nothing. Turned down: advisory locks (a pool between client and server gives
them to another client), prepared transactions (off by default, and left behind by a
crash), COPY into a temporary table (no faster below some thousand rows, and it cannot
say which row is refused).
Relies on: `topology.external_sinks` (what is called in which order),
`opening.sink_openings` (opens, and repeats it).
Source: PostgreSQL 15, appendix A (error codes), INSERT (ON CONFLICT); psycopg 3.
"""

from __future__ import annotations

import json
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import (
    dataclass,
    field,
    fields,
    is_dataclass,
)
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from coopstreams.topology.errors import (
    ConfigError,
    CoopStreamsError,
    FencedError,
    SinkUnavailableError,
    TopologyError,
)
from coopstreams.topology.external_sinks import OnRefused, SinkPartition, SinkRecord

Columns: TypeAlias = Mapping[str, Any]
_Statement: TypeAlias = tuple[str, tuple[str, ...]]
"""The action of a record (`put`, `delete` or empty) and its columns. Consecutive
records with equal statements are one batch.
"""

_TIMES = (
    "SET statement_timeout = '30s'; SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '20s'; "
    "SET synchronous_commit = on"
)
"""Settings of a connection: time limits, so that a suspended process does not block its
successor, and durable commits.
"""
_DEFAULTS = {"connect_timeout": 5, "tcp_user_timeout": 30_000, "keepalives_idle": 15}
"""The connection parameters that apply unless the DSN sets them."""
_OF_THE_RECORD = ("22", "23", "42", "44", "54", "P0")
"""Classes of errors that are caused by the content of a row: data, constraints, types,
views, limits (a key too long for an index), triggers. A server that accepts no more
writes reports class 54 as well, but it reports it for the position first.
"""
_OF_THE_TABLE = ("42501", "42P01", "42P10")
"""Error codes for a missing privilege, table, or unique index on the key. The opening
of the next session raises them.
"""

TABLE_OF_POSITIONS = """CREATE TABLE IF NOT EXISTS {} (
    application text, sink text, partition int, topic_id text NOT NULL, next_offset bigint NOT NULL,
    term bigint NOT NULL, refused bigint[] NOT NULL, PRIMARY KEY (application, sink, partition))"""
_BEGIN = "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, 0, '{{}}') ON CONFLICT DO NOTHING"
_TAKE = (
    "UPDATE {} SET term = term + 1 WHERE application = %s AND sink = %s AND partition = %s "
    "RETURNING topic_id, next_offset, term, refused"
)
_MOVE = "UPDATE {} SET next_offset = %s, refused = %s WHERE application = %s AND sink = %s AND partition = %s AND term = %s"
_JSON_COLUMNS = """SELECT attname, coalesce(nullif(typbasetype, 0), pg_type.oid)::regtype::text
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = %s::regclass AND attnum > 0
    AND coalesce(nullif(typbasetype, 0), pg_type.oid) IN ('json'::regtype, 'jsonb'::regtype)"""
"""The query for the columns of a table that hold JSON, directly or by a domain, and
whether their type is `json` or `jsonb`.
"""
_CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE"
"""The statement that runs checks which a table defers to the commit (DEFERRABLE
INITIALLY DEFERRED), so that the failing record is known.
"""


def fields_of(_: Any, value: Any) -> Columns:
    """Return the columns of a value: the entries of a dict, the fields of a dataclass
    or Struct.
    """
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(
        f"{type(value).__name__} has no fields: give PostgresSink columns=, a function of key and value"
    )


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """A table of PostgreSQL, for `to_sink`.

    With `key`, each record is a row. It is inserted or, if a row with the key exists,
    its columns replace those of the row; a null value deletes the row. `key`: the name
    of the column for the record's key. If there are several names, the keys are tuples
    or lists, or have fields of these names. The table needs a primary key or a unique
    index on these columns. Without `key`, each record is inserted as a new row.

    `columns(key, value)` returns the other columns by name; by default the fields of
    the value. If it returns None, the record is skipped. A value for a column of `json`
    or `jsonb` is written as JSON, whatever its type; None is NULL. `dsn`: as in libpq,
    which also reads its environment (`PGPASSWORD`, `PGPASSFILE`, `PGSERVICE`). `table`
    and `positions` may name a schema (`sales.totals`).
    """

    dsn: str = field(repr=False)
    table: str
    key: str | tuple[str, ...] | None = None
    columns: Callable[[Any, Any], Columns | None] = field(default=fields_of, repr=False)
    positions: str = "coopstreams_positions"

    def __post_init__(self) -> None:
        """Check the arguments without a connection."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise TopologyError(
                f'PostgresSink needs psycopg ({error}): pip install "coopstreams[postgres]"'
            ) from None
        try:
            conninfo_to_dict(self.dsn)
        except ProgrammingError:  # its text may quote the password
            raise TopologyError(
                f"PostgresSink for {self.table}: the dsn cannot be read"
            ) from None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the columns that hold the key; none without `key`."""
        return (self.key,) if isinstance(self.key, str) else self.key or ()

    def open(self, partition: SinkPartition, begin: int | None) -> PostgresSession:
        """Take over a partition and return its session.

        Raises:
            SinkUnavailableError: the server is unavailable, or an earlier session does
                not end.
            ConfigError: the table cannot take the records, or the positions are not
                those of this topic.
        """
        with _heard(self.dsn):
            connection = _connected(self.dsn, partition)
        try:
            with _heard(self.dsn):
                self._check(connection)
                as_json = self._json_columns(connection)
                row = self._taken(connection, partition, begin)
            return PostgresSession(self, partition, connection, as_json, *row[1:])
        except BaseException:
            connection.close()
            raise

    def _check(self, connection: Any) -> None:
        """Check by a plan of the statements that the table, its privileges and a unique
        index on the key exist.

        Raises:
            ConfigError: the server cannot plan a statement.
        """
        import psycopg

        keys = self.key_columns
        listed = _names(keys)
        try:
            if keys:
                put = f"INSERT INTO {{0}} ({listed}) SELECT {listed} FROM {{0}} ON CONFLICT ({listed}) DO NOTHING"
                connection.execute(
                    _over(f"EXPLAIN {put}", self.table),
                    (),
                )  # with values, %% in a name is one %
                connection.execute(
                    _over("EXPLAIN DELETE FROM {0} WHERE false", self.table)
                )
            else:
                connection.execute(
                    _over("EXPLAIN INSERT INTO {0} DEFAULT VALUES", self.table)
                )
        except (
            psycopg.ProgrammingError,
            psycopg.errors.ObjectNotInPrerequisiteState,
        ) as error:  # or it is a view
            columns = (
                f" with a primary key or a unique index on ({', '.join(keys)})"
                if keys
                else ""
            )
            raise ConfigError(
                f"PostgresSink: table {self.table} cannot take the records: {_said(error)}. Make the table{columns}, "
                "and let the user insert, update and delete there"
            ) from error

    def _json_columns(self, connection: Any) -> Mapping[str, Callable[[Any], Any]]:
        """Return psycopg's JSON wrapper for each column of the table that holds JSON.

        The wrapper depends on the column because psycopg writes a list as an array, and
        text unchanged.
        """
        from psycopg.types.json import Json, Jsonb

        found = connection.execute(_JSON_COLUMNS, (_quoted(self.table),)).fetchall()
        return {name: Jsonb if type_ == "jsonb" else Json for name, type_ in found}

    def _taken(
        self,
        connection: Any,
        partition: SinkPartition,
        begin: int | None,
    ) -> Any:
        """Take over the position of a partition and return its row. If the table of
        positions does not exist, create it.

        Raises:
            ConfigError: the table cannot be created or used, or the position is not
                that of this topic.
        """
        import psycopg

        name = partition.application, partition.sink, partition.number
        try:
            if (
                connection.execute(
                    "SELECT to_regclass(%s)",
                    (_quoted(self.positions),),
                ).fetchone()[0]
                is None
            ):
                # one at a time: IF NOT EXISTS ignores tables that other transactions
                # are creating
                with connection.transaction():
                    connection.execute(
                        "SELECT pg_advisory_xact_lock(hashtext(%s))",
                        (self.positions,),
                    )
                    connection.execute(_over(TABLE_OF_POSITIONS, self.positions))
            with connection.transaction():
                if begin is not None:
                    connection.execute(
                        _over(_BEGIN, self.positions),
                        (*name, partition.topic_id, begin),
                    )
                row = connection.execute(_over(_TAKE, self.positions), name).fetchone()
                self._check_row(partition, row)
        except psycopg.ProgrammingError as error:
            ddl = " ".join(TABLE_OF_POSITIONS.format(_quoted(self.positions)).split())
            raise ConfigError(
                f"PostgresSink: table {self.positions}, which has the positions of {partition}, cannot be made or "
                f"used: {_said(error)}. Let the user select, insert and update there, or make it: {ddl}"
            ) from error
        return row

    def _check_row(self, partition: SinkPartition, row: Any) -> None:
        where = f"application = '{partition.application}' AND sink = '{partition.sink}'"
        if row is None:
            raise ConfigError(
                f"{self.positions} has no position of {partition}, which the group has committed: this is another "
                "database, or the row was deleted. Connect to the one that has it; or begin anew: "
                "`coopstreams reset`, or another name= of the sink"
            )
        if row[0] != partition.topic_id:
            raise ConfigError(
                f"{partition}: its topic was made anew since {self.positions} was written, by `coopstreams reset` "
                "perhaps, and its records would be applied on top of those of the topic before. If they may be (empty "
                f"{self.table} if not), let it begin anew: DELETE FROM {_quoted(self.positions)} WHERE {where}"
            )


class PostgresSession:
    """One owner's connection for one partition of a sink."""

    def __init__(
        self,
        sink: PostgresSink,
        partition: SinkPartition,
        connection: Any,
        as_json: Mapping[str, Callable[[Any], Any]],
        position: int,
        term: int,
        refused: Sequence[int],
    ) -> None:
        self._sink = sink
        self._partition = partition
        self._connection = connection
        self._as_json = as_json
        self._term = term
        self.position = position
        self.refused = frozenset(refused)

    def apply(
        self,
        records: Sequence[SinkRecord],
        position: int,
        on_refused: OnRefused,
        settled: int,
    ) -> None:
        """Apply records, and the position after them, in one transaction.

        `settled`: stored refused offsets below it are deleted.

        Raises:
            SinkUnavailableError: the server is unavailable, and the outcome is unknown.
            FencedError: a later session has taken over the partition.
        """
        import psycopg

        refused = frozenset(offset for offset in self.refused if offset >= settled)
        with _heard(self._sink.dsn):
            try:
                wanted = [(record, *self._wanted(record)) for record in records]
                with self._connection.transaction():
                    self._move(position, refused)
                    self._write(wanted)
            except Exception as error:
                if isinstance(error, CoopStreamsError) or (
                    isinstance(error, psycopg.Error) and not _refuses(error)
                ):
                    raise
                with self._connection.transaction():
                    self._move(position, refused)
                    found: list[int] = []
                    self._write_or_refuse(records, on_refused, found)
                    refused |= frozenset(found)
                    self._move(position, refused)
        self.position = position
        self.refused = refused

    def close(self) -> None:
        """Close the connection. The server rolls back uncommitted changes."""
        self._connection.close()

    def _move(self, position: int, refused: frozenset[int]) -> None:
        name = self._partition.application, self._partition.sink, self._partition.number
        moved = self._connection.execute(
            _over(_MOVE, self._sink.positions),
            (position, sorted(refused), *name, self._term),
        )
        if moved.rowcount != 1:
            raise FencedError(f"another process has taken over {self._partition}")

    def _write(
        self,
        wanted: Sequence[tuple[SinkRecord, _Statement, Sequence[Any]]],
    ) -> None:
        """Write records in order. Consecutive records with the same statement are
        written together.
        """
        for statement, alike in groupby(wanted, key=lambda each: each[1]):
            if statement[0]:
                self._execute(self._sql(*statement), [values for _, _, values in alike])

    def _execute(self, sql: Any, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each row, in one pipeline.

        `executemany` alone logs a warning for each pipeline that the server aborts, and
        bisection aborts many. Here the pipeline ends before the error is raised.
        """
        import psycopg

        refusal: psycopg.Error | None = None
        try:
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                try:
                    cursor.executemany(sql, rows)
                except psycopg.Error as error:
                    refusal = error
        except psycopg.Error:  # aborted, or no connection: the first error says why
            if refusal is None:
                raise
        if refusal is not None:
            raise refusal

    def _write_or_refuse(
        self,
        records: Sequence[SinkRecord],
        on_refused: OnRefused,
        refused: list[int],
    ) -> None:
        """Write the records that the server accepts; pass each other record to
        `on_refused` and append its offset to `refused`.

        The refused records are found by bisection, because there are few.
        """
        import psycopg

        if not records:
            return
        try:
            wanted = [(record, *self._wanted(record)) for record in records]
            with self._connection.transaction():  # a savepoint
                self._write(wanted)
                self._connection.execute(_CHECK_NOW)
        except Exception as error:
            if isinstance(error, psycopg.Error) and not _refuses(error):
                raise
            if len(records) > 1:
                half = len(records) // 2
                self._write_or_refuse(records[:half], on_refused, refused)
                self._write_or_refuse(records[half:], on_refused, refused)
                return
            on_refused(records[0], error)
            refused.append(records[0].offset)

    def _wanted(self, record: SinkRecord) -> tuple[_Statement, Sequence[Any]]:
        """Return the statement that applies a record, and its values. The statement is
        empty if the record changes nothing.
        """
        names = self._sink.key_columns
        of_key: Sequence[Any] = ()
        if names:
            of_key = self._values(names, _parts(record.key, names))
            if record.value is None:
                return ("delete", ()), of_key
        columns = self._sink.columns(record.key, record.value)
        if columns is None:
            return ("", ()), ()
        others = {name: value for name, value in columns.items() if name not in names}
        of_columns = self._values(others, others.values())
        return ("put", tuple(others)), (*of_key, *of_columns)

    def _values(self, names: Iterable[str], values: Iterable[Any]) -> Sequence[Any]:
        """Return values in the form in which psycopg writes them to these columns: JSON
        if the column holds JSON. None is NULL.
        """
        from psycopg.types.json import Json, Jsonb

        if not self._as_json:
            return tuple(values)
        return tuple(
            self._as_json[name](value)
            if name in self._as_json
            and value is not None
            and not isinstance(value, Json | Jsonb)
            else value
            for name, value in zip(names, values, strict=True)
        )

    def _sql(self, what: str, columns: tuple[str, ...]) -> Any:
        keys = self._sink.key_columns
        if what == "delete":
            return _over(
                f"DELETE FROM {{0}} WHERE {' AND '.join(f'{_name(key)} = %s' for key in keys)}",
                self._sink.table,
            )
        everything = (*keys, *columns)
        text = f"INSERT INTO {{0}} ({_names(everything)}) VALUES ({', '.join(['%s'] * len(everything))})"
        if not everything:
            text = "INSERT INTO {0} DEFAULT VALUES"
        elif keys:
            replaced = ", ".join(
                f"{_name(column)} = excluded.{_name(column)}" for column in columns
            )
            text += f" ON CONFLICT ({_names(keys)}) DO " + (
                f"UPDATE SET {replaced}" if replaced else "NOTHING"
            )
        return _over(text, self._sink.table)


def _connected(dsn: str, partition: SinkPartition) -> Any:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.json import JsonbDumper, set_json_dumps

    given = conninfo_to_dict(dsn)
    named = {
        "application_name": f"coopstreams {partition.application} {partition.sink}-{partition.number}"
    }
    told: dict[str, Any] = {**_DEFAULTS, **named, **given}
    connection = psycopg.connect(**told, autocommit=True)
    connection.adapters.register_dumper(dict, JsonbDumper)
    set_json_dumps(_json, connection)
    connection.execute(_TIMES)
    return connection


@contextmanager
def _heard(dsn: str) -> Iterator[None]:
    """Translate psycopg's errors in the `with` block into `SinkUnavailableError`."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise SinkUnavailableError(
            f"PostgreSQL at {_place(dsn)}: {_said(error)}"
        ) from error


def _place(dsn: str) -> str:
    """Return the address of a server without its credentials."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(dsn)
    return f"{given.get('host', 'the local socket')}:{given.get('port', 5432)}/{given.get('dbname', '')}"


def _refuses(error: Any) -> bool:
    """Return whether an error is caused by the content of the records."""
    state = error.sqlstate
    if state is None:  # the client cannot write a value
        import psycopg

        return isinstance(error, (psycopg.ProgrammingError, psycopg.DataError))
    return state not in _OF_THE_TABLE and state.startswith(_OF_THE_RECORD)


def _said(error: Any) -> str:
    """Return the message of the server, or of the client, on one line."""
    return (
        " ".join((error.diag.message_primary or str(error)).split())
        or type(error).__name__
    )


def _json(value: Any) -> str:
    """Return a value as JSON text; objects in it are written as `serdes.json(Type)`
    writes them.
    """
    return json.dumps(value, default=msgspec.to_builtins)


def _parts(key: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the values of the key's columns for a record's key."""
    if len(names) == 1:
        return (key,)
    # a key that was written as a tuple is a list when serdes.json has read it
    if isinstance(key, tuple | list) and not hasattr(key, "_fields"):
        if len(key) != len(names):
            raise ValueError(
                f"the key {key!r} has not the {len(names)} parts {', '.join(names)}"
            )
        return tuple(key)
    if isinstance(key, Mapping):
        return tuple(key[name] for name in names)
    return tuple(getattr(key, name) for name in names)


def _quoted(table: str) -> str:
    """Return the quoted name of a table, which may have a schema, so that SQL keeps its
    case.
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))


def _name(column: str) -> str:
    """Return the quoted name of a column, escaped for psycopg's formatting."""
    return (
        '"'
        + column.replace('"', '""')
        .replace("%", "%%")
        .replace("{", "{{")
        .replace("}", "}}")
        + '"'
    )


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(_name, columns))


def _over(text: str, table: str) -> Any:
    """Return a statement over a table, whose name may have a schema."""
    from psycopg import sql

    template: Any = text  # made of quoted names, never of a record's content
    return sql.SQL(template).format(sql.Identifier(*table.split(".")))

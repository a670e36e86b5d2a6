"""A topology that was sent to a worker equals the original, for every case of
conformance: all operators.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from coopstreams import StreamsBuilder, Topology, serdes
from coopstreams.commands.topology_target import load_topology
from coopstreams.common.config import Config
from coopstreams.spark.history.arrow_rows import BEGIN, ROUTED
from coopstreams.spark.spark_task import TaskWork
from coopstreams.spark.workers.shipping import plain_function, ship, sources_of, unship
from coopstreams.testing import TopologyTestDriver
from coopstreams.topology.compile.compile import compile_subtopology
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.nodes import Source
from coopstreams.topology.serde import Serde
from tests.conformance.run import Case, read_cases, translated

CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance"
DONE = (CONFORMANCE / "done.txt").read_text(encoding="utf-8").split()
CASES = read_cases(CONFORMANCE / "vectors.jsonl")


def texts(topology: Topology) -> list[str]:
    """Return the generated code of each sub-topology, which shows which serdes are
    equal.
    """
    return [
        compile_subtopology(topology, part).compiled(True, True).text
        for part in topology.subtopologies
    ]


@pytest.mark.parametrize(
    "count", [1, pytest.param(None, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("family", DONE)
def test_a_shipped_topology_generates_the_same_code(
    family: str, count: int | None
) -> None:
    """`count`: the number of cases of the family."""
    cases: list[Case] = [case for case in CASES if case["family"] == family]
    assert cases
    for case in cases[:count]:
        _, topology = translated(case)
        shipped = unship(ship(topology))
        assert shipped.describe() == topology.describe()
        assert texts(shipped) == texts(topology), case["name"]


class Amount:
    """A value that msgspec knows by hooks only."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        (
            msgspec.json.Encoder(
                enc_hook=lambda amount: amount.cents,
                decimal_format="number",
                order="sorted",
            ),
            msgspec.json.Decoder(
                dict[str, Amount],
                strict=False,
                dec_hook=lambda kind, cents: kind(int(cents)),
            ),
        ),
        (
            msgspec.msgpack.Encoder(
                enc_hook=lambda amount: amount.cents, uuid_format="hex", order="sorted"
            ),
            msgspec.msgpack.Decoder(
                dict[str, Amount],
                strict=False,
                dec_hook=lambda kind, cents: kind(int(cents)),
            ),
        ),
    ],
)
def test_codecs_travel_with_their_hooks_and_formats(encoder: Any, decoder: Any) -> None:
    serde = travelled(Serde("amounts", encoder.encode, decoder.decode))
    values = {"b": Amount(7), "a": Decimal("1.5"), "c": UUID(int=1)}
    assert serde.encode(values) == encoder.encode(values)
    assert serde.decode(encoder.encode({"b": "7"}))["b"].cents == 7


def test_the_hook_of_a_codec_for_floats_travels() -> None:
    serde = travelled(
        Serde(
            "decimals",
            msgspec.json.encode,
            msgspec.json.Decoder(float_hook=Decimal).decode,
        )
    )
    assert serde.decode(b"0.1") == Decimal("0.1")


def travelled(serde: Serde[Any]) -> Serde[Any]:
    """Return the serde that a worker gets."""
    builder = StreamsBuilder("app")
    builder.stream("in", key=serdes.text, value=serde).to("out")
    source, _ = unship(ship(builder.build())).subtopologies[0].nodes
    assert isinstance(source, Source)
    return source.value


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    builder = StreamsBuilder("locked")
    builder.stream("in", key=serdes.text, value=serdes.text).filter(
        lambda _, __: lock.locked()
    ).to("out")
    with pytest.raises(
        TopologyError, match=r"lock.*make that object inside the function"
    ):
        ship(builder.build())


@pytest.fixture
def beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Topology]]:
    """Return a function that loads a program with this source, beside a module and a
    package; it is unloaded at the end.
    """
    (tmp_path / "sent_package").mkdir()
    (tmp_path / "sent_package" / "__init__.py").write_text("")
    (tmp_path / "sent_package" / "inner.py").write_text("ENDING = '!'")
    (tmp_path / "sent_program.py").write_text(
        "from coopstreams import StreamsBuilder, serdes\n"
        "from sent_words import word\n"
        "builder = StreamsBuilder('sent')\n"
        "builder.stream('in', key=serdes.text, value=serdes.text).map_values(word, value=serdes.text).to('out')\n"
        "topology = builder.build()\n"
    )

    def load(said: str) -> Topology:
        (tmp_path / "sent_words.py").write_text(
            f"from sent_package.inner import ENDING\ndef word(_):\n    return {said!r} + ENDING\n"
            f"def handled(_):\n    return {said!r}\n"
        )
        importlib.invalidate_caches()
        return load_topology(str(tmp_path / "sent_program.py"))

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield load
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("sent_")]:
        del sys.modules[name]


def said(topology: Topology) -> list[str]:
    with TopologyTestDriver(topology) as driver:
        driver.input("in", serdes.text, serdes.text).send("k", "v", timestamp=1)
        return [record.value for record in driver.outputs()]


def test_modules_beside_a_program_travel_with_it_and_newer_ones_take_their_place(
    beside: Callable[[str], Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = []
    for word in ("first", "second"):
        shipped.append(ship(beside(word)))
        forget()
    # From here on, this process is a worker: the program's folder is not on its path.
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if folder != str(tmp_path)]
    )
    assert [
        said(unship(each)) for each in (shipped[0], shipped[1], shipped[1], shipped[0])
    ] == [
        ["first!"],
        ["second!"],
        ["second!"],
        ["first!"],
    ]
    assert "sent by the driver" in str(sys.modules["sent_words"].__spec__)


def test_a_module_that_a_worker_has_is_not_replaced(
    beside: Callable[[str], Topology],
) -> None:
    shipped = ship(beside("driver"))
    forget()
    beside("worker")
    assert said(unship(shipped)) == ["worker!"]


def test_a_failure_handler_beside_a_program_travels_with_the_settings(
    beside: Callable[[str], Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = beside("continue")
    settings = {
        "bootstrap.servers": "nowhere:1",
        "processing.exception.handler": "sent_words:handled",
    }
    work = TaskWork(
        topology, 0, 1, "run", 0, Config.of(settings, topology.application_id)
    )
    dumps: Any = cloudpickle.dumps  # without types; as Spark does
    sent = dumps(plain_function(work))
    forget()
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if folder != str(tmp_path)]
    )
    begun = pa.RecordBatch.from_pylist(
        [{"task": 0, "source": 0, "offset": BEGIN}], ROUTED
    )
    (ended,) = pickle.loads(sent)(iter([begun]))
    assert ended["task"].to_pylist() == [0]


def test_what_is_installed_is_not_sent() -> None:
    assert (
        sources_of(
            pickle.dumps([pytest.approx, msgspec.json.encode, StreamsBuilder, Path])
        )
        == {}
    )

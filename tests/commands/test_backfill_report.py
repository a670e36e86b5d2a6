"""The reports of a backfill: results that it has not written, and how to resume it."""

from __future__ import annotations

from pathlib import Path

from coopstreams.commands.backfill import not_written
from coopstreams.commands.terminal.resume_command import resume_command


def test_unwritten_results_are_counted_by_topic_with_the_way_to_have_them() -> None:
    counts, cure = not_written(
        {"totals": 4120, "failed": 2175, "too-late": 1821}, ["failed"], published=False
    )
    assert (
        counts
        == "not written, because --outputs is none: 2,175 dead letters for failed, 1,821 records for too-late, 4,120 "
        "records for totals"
    )
    assert (
        "do not publish this run: `coopstreams reset` the application, and run it again with --outputs topic"
        in cure
    )
    assert not_written({}, [], published=False) == []


def test_a_run_that_is_published_is_not_to_be_done_again_before_it_is() -> None:
    """The application goes on behind the cut: what another run wrote to the topics
    would come behind newer results.
    """
    _, cure = not_written({"totals": 4120}, [], published=True)
    assert "under another application id with --outputs table" in cure
    assert "publish" not in cure


def test_the_command_that_resumes_a_run_finds_the_same_cluster_and_says_no_secret() -> (
    None
):
    """Without the brokers of its own command line it would end with the error that none
    are named.
    """
    again = resume_command("backfill", "app.py", "run-1", None, None, None, None)
    assert again == "coopstreams backfill app.py --resume run-1"
    given = (
        "app.py",
        "run-1",
        "a folder",
        "kafka:9092",
        Path("my.toml"),
        ["sasl.password=secret"],
    )
    assert (
        resume_command("rebuild --from source", *given)
        == "coopstreams rebuild --from source app.py --resume run-1 --bootstrap-servers kafka:9092 --config my.toml "
        "--work 'a folder' --set sasl.password=…"
    )

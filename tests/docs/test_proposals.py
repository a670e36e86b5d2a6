"""The page of the proposals: each requirement has an answer, and each answer a proof,
unless it says that there is none.
"""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "proposals.md"
ROWS = [
    row
    for table in tables(PAGE)
    if table[0] == ["asked for", "how it is met", "shown by"]
    for row in table[1:]
]
UNPROVED = ("not met", "not done", "not taken", "none", "all five", "no random reads")
"""Beginnings of answers without a proof."""


@pytest.mark.parametrize(("asked", "met", "shown"), ROWS, ids=lambda cell: cell[:40])
def test_a_requirement_is_met_and_shown_or_said_not_to_be(
    asked: str, met: str, shown: str
) -> None:
    assert asked
    assert met
    assert "](" in shown or any(word in met for word in UNPROVED), (
        "name the test that shows it, or say that it is not met"
    )


@pytest.mark.parametrize(
    "word",
    [
        *(
            "accept.individual.commit",
            "accept.range.fetch",
            "allow.individual.commit",
            "max.num.ranges.to.commit",
            "max.bytes.key.range.cache",
        ),
        *(
            "max.bytes.fetcher.filtering",
            "individual.commit.log.segment.bytes",
            "reserve.message.value.range.fetch",
        ),
        *(
            "INDIVIDUAL_COMMIT_NOT_ALLOWED",
            "TOPIC_RANGE_FETCH_NOT_ALLOWED",
            "CONSUMER_RANGE_FETCH_NOT_ACCEPTED",
        ),
        *("INDIVIDUAL_COMMIT_TOO_OLD", "MAX_INDIVIDUAL_COMMIT_REACHED"),
        *(
            "getToBeRevokedPartitions",
            "getLostPartitions",
            "delayRevoke",
            "KIP-253",
            "64 bytes",
        ),
    ],
)
def test_every_setting_exception_and_method_of_the_proposals_is_there(
    word: str,
) -> None:
    assert any(word in cell for row in ROWS for cell in row)

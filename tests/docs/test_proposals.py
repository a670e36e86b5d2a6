"""The page of the proposals: each requirement has an answer, and each answer a proof,
unless it says that there is none.
"""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "proposals.md"
ROWS = [
    row
    for table in tables(PAGE)
    if table[0] == ["asked for", "how it is met", "shown by"]
    for row in table[1:]
]
NOT_MET = [
    row
    for table in tables(PAGE)
    if table[0] == ["asked for", "why", "what instead"]
    for row in table[1:]
]
DIFFERENCES = ("**not met**", "**Differs**", "**differs**")
UNPROVED = ("not met", "not done", "not taken", "none", "all five", "no random reads")
"""Beginnings of answers without a proof."""
CITED = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


@pytest.mark.parametrize(("asked", "met", "shown"), ROWS, ids=lambda cell: cell[:40])
def test_a_requirement_is_met_and_a_test_shows_it_or_it_is_said_not_to_be(
    asked: str, met: str, shown: str
) -> None:
    assert asked
    assert met
    assert CITED.search(shown) or met.removeprefix("**").startswith(UNPROVED), (
        "name the test that shows it, or say that it is not met"
    )
    for name, path in CITED.findall(shown):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_every_difference_stands_under_not_met_with_its_reason() -> None:
    differing = [
        asked for asked, met, _ in ROWS if any(word in met for word in DIFFERENCES)
    ]
    assert sorted(asked for asked, *_ in NOT_MET) == sorted(differing)
    assert all(why for _, why, _ in NOT_MET)


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

"""The proposal's exceptions: their codes, and their attributes."""

from __future__ import annotations

import pytest

from coopstreams.topology import errors
from coopstreams.topology.errors import (
    CoopStreamsError,
    IndividualCommitError,
    IndividualCommitTooOldError,
)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (88, "IndividualCommitNotAllowedError"),
        (89, "TopicRangeFetchNotAllowedError"),
        (90, "ConsumerRangeFetchNotAcceptedError"),
        (91, "IndividualCommitTooOldError"),
        (92, "MaxIndividualCommitReachedError"),
    ],
)
def test_an_exception_of_the_proposal_has_its_code(code: int, name: str) -> None:
    kind = getattr(errors, name)
    assert kind.code == code
    assert issubclass(kind, IndividualCommitError)
    assert issubclass(kind, CoopStreamsError)


def test_a_commit_that_is_too_old_says_where_to_go_on() -> None:
    assert (
        IndividualCommitTooOldError("behind", last_stable_offset=47).last_stable_offset
        == 47
    )

"""`python -m tests.conformance FILE.jsonl`: runs cases with outputs of the real Kafka
Streams, and prints the differences.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.conformance.run import Outcome, read_cases, run


def main() -> int:
    """Run the cases of a file; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description=__doc__
    )
    parser.add_argument(
        "file", type=Path, nargs="?", default=Path(__file__).with_name("vectors.jsonl")
    )
    parser.add_argument(
        "--ranges", type=int, default=1, help="key ranges per partition"
    )
    parser.add_argument(
        "--level",
        choices=["strict", "per-key"],
        default="strict",
        help="the order of all outputs, or of those of each key",
    )
    parser.add_argument("--store", choices=["rocksdb", "memory"], default="memory")
    parser.add_argument(
        "--optimization",
        default="none",
        help="topology.optimization of the cases that do not say",
    )
    parser.add_argument(
        "--family", action="append", help="only these families; may be repeated"
    )
    parser.add_argument(
        "--name", action="append", help="only these cases; may be repeated"
    )
    parser.add_argument("--report", type=Path, help="write the outcome as JSON")
    asked = parser.parse_args()
    cases = [
        case
        for case in read_cases(asked.file)
        if (not asked.family or case["family"] in asked.family)
        and (not asked.name or case["name"] in asked.name)
    ]
    outcomes = [
        run(
            case,
            ranges=asked.ranges,
            level=asked.level,
            backend=asked.store,
            optimization=asked.optimization,
        )
        for case in cases
    ]
    for outcome in outcomes:
        for difference in outcome.differences if outcome.explained is None else ():
            print(
                f"FAILED {outcome.name}: {difference}",
                end="\n\n" if "\n" in difference else "\n",
            )
    _print_families(outcomes)
    passed = sum(outcome.passed for outcome in outcomes)
    explained = [
        outcome
        for outcome in outcomes
        if outcome.explained is not None and not outcome.passed
    ]
    for outcome in explained:
        print(f"explained {outcome.name}: {outcome.explained}")
    print(
        f"{passed} of {len(outcomes)} passed, {len(explained)} explained ({asked.level}, ranges={asked.ranges}, "
        f"{asked.store})"
    )
    if asked.report:
        asked.report.write_text(
            json.dumps(_report(asked, outcomes), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    return 0 if outcomes and passed + len(explained) == len(outcomes) else 1


def _print_families(outcomes: list[Outcome]) -> None:
    total, passed = _counts(outcomes)
    for family in sorted(total):
        mark = "" if passed[family] == total[family] else "  <- failed"
        print(f"{family:24} {passed[family]:4} of {total[family]:4}{mark}")
    quirky = [outcome for outcome in outcomes if outcome.quirks]
    for outcome in quirky:
        print(
            f"quirk {', '.join(outcome.quirks)}: {outcome.name} "
            f"{'follows Kafka' if outcome.passed else 'differs from Kafka'}"
        )


def _counts(outcomes: list[Outcome]) -> tuple[Counter[str], Counter[str]]:
    return Counter(outcome.family for outcome in outcomes), Counter(
        outcome.family for outcome in outcomes if outcome.passed
    )


def _report(asked: argparse.Namespace, outcomes: list[Outcome]) -> dict[str, object]:
    total, passed = _counts(outcomes)
    return {
        "file": asked.file.name,
        "ranges": asked.ranges,
        "level": asked.level,
        "store": asked.store,
        "passed": sum(passed.values()),
        "total": sum(total.values()),
        "families": {
            family: {"passed": passed[family], "total": total[family]}
            for family in sorted(total)
        },
        "cases": [
            {
                "name": o.name,
                "family": o.family,
                "quirks": o.quirks,
                "passed": o.passed,
                "differences": o.differences,
            }
            for o in outcomes
        ],
    }


if __name__ == "__main__":
    sys.exit(main())

"""The checks of the chaos find what they look for."""

from __future__ import annotations

import json

import pytest
from chaos.checks import Starts, check, check_places, generations

STARTS = [
    "a 1 0 0 2 h:1 100",
    "b 1 1 1 2 h:1 200",
    "a 2 0 0 3 h:2 100",
    "b 2 1 1 3 h:2 200",
    "c 2 2 2 3 h:2 300",
]


def starts(change: int = -1, line: str = "") -> Starts:
    lines = list(STARTS)
    if change >= 0:
        lines[change] = line
    return [text.split() for text in lines]


def hello(session: str) -> dict[str, object]:
    return {
        "event": {"Hello": {"Session": session, "Label": f"host pid {100 * (ord(session) - 96)}"}},
        "effects": [{"Welcome": {"Session": session, "Notice": {"Waiting": 0}}}],
    }


def join(number: int, session: str, placed: str = "", round: int = 0) -> dict[str, object]:
    effects = [
        {
            "Reply": {
                "Session": member,
                "Result": {
                    "Outcome": {
                        "Generation": f"g{round}",
                        "Round": round,
                        "Rank": r,
                        "StoreAddr": "h",
                        "StorePort": round,
                    }
                },
            }
        }
        for r, member in enumerate(placed)
    ]
    return {"event": {"Join": {"Session": session, "Number": number}}, "effects": effects}


def notify(session: str, waiting: int = 1) -> dict[str, object]:
    return {"Notify": {"Session": session, "Notice": {"Waiting": waiting}}}


def records() -> list[dict[str, object]]:
    return [
        hello("a"), hello("b"), hello("c"),
        join(1, "a"), join(1, "b", "ab", 1),
        join(1, "b"),  # repeated after a reconnect
        {"event": {"TimerFired": {}}, "effects": [notify("a"), notify("b")]},
        join(1, "c"), join(2, "a"), join(2, "b", "abc", 2),
    ]  # fmt: skip


def test_what_is_right() -> None:
    check(starts(), 2, 3)
    check_places(starts(), map(json.dumps, records()))


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (2, "a 1 0 0 3 h:2 100", "from round 1 to 1"),
        (3, "b 2 1 1 2 h:2 200", "several sizes"),
        (3, "b 2 0 0 3 h:2 200", "a rank twice"),
        (4, "c 2 3 3 3 h:2 300", "round 2"),
        (4, "c 2 1 2 3 h:2 300", "round 2"),
        (1, "b 1 1 1 2 h:9 200", "several stores"),
    ],
)
def test_starts_that_are_wrong(change: int, line: str, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check(starts(change, line), 2, 3)


def test_a_run_that_was_founded_anew() -> None:
    """Rounds of one number are two if control planes of two generations have completed them."""
    again = [*starts(), *(line.split() for line in ("d 1 0 0 2 h:7 400", "e 1 1 1 2 h:7 500"))]
    known = generations(map(json.dumps, records()))
    assert known == {("1", "h:1"): "g1", ("2", "h:2"): "g2"}
    check(again, 2, 3, {**known, ("1", "h:7"): "g3"})
    with pytest.raises(AssertionError, match="a rank twice"):
        check(again, 2, 3, {**known, ("1", "h:7"): "g1"})


def test_a_size_that_was_not_asked_for() -> None:
    with pytest.raises(AssertionError, match="has 3 nodes"):
        check(starts(), 2, 2)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (4, "c 3 2 2 3 h:2 300"),  # a round that never was
        (4, "c 2 2 2 3 h:2 400"),  # the place of another agent
        (4, "c 2 2 2 3 h:3 300"),  # another store than it was told
    ],
)
def test_places_that_were_not_given(change: int, line: str) -> None:
    with pytest.raises(AssertionError, match="started a worker"):
        check_places(starts(change, line), map(json.dumps, records()))


def test_a_regroup_for_no_reason() -> None:
    told = records()
    told[6]["effects"] = [notify("a")]
    with pytest.raises(AssertionError, match="for no reason"):
        check_places(starts(), map(json.dumps, told))


def test_a_regroup_whose_reason_is_gone() -> None:
    """The node that waited has died while those that it was told to stopped their workers."""
    told = records()
    told.insert(7, {"event": {"TimerFired": {}}, "effects": [notify("a", 0), notify("b", 0)]})
    check_places(starts(), map(json.dumps, told))

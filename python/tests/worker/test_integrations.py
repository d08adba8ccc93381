"""What the callbacks share; test_libraries.py has each with its library."""

from __future__ import annotations

import pytest

import rallypoint
from rallypoint._launch import busy
from rallypoint.integrations import reporter


@pytest.mark.parametrize(("kind", "looks"), [("save", 0), ("drain", 3)])
def test_directive(monkeypatch: pytest.MonkeyPatch, kind: str, looks: int) -> None:
    """It is confirmed once, with the checkpoint's step, and awaited if it is more than a save."""
    directive = rallypoint.Directive(id="D", kind=kind, step=7)
    given = iter([None, directive, None, None])
    stands = iter([directive] * (looks - 1) + [None])
    looked, confirmed = [], []
    monkeypatch.setattr(reporter, "progress", lambda step: next(given))
    monkeypatch.setattr(reporter, "directive", lambda: looked.append(1) or next(stands))
    monkeypatch.setattr(reporter, "saved", confirmed.append)
    r = reporter.Reporter(600)
    assert [r.step(6), r.step(7), r.step(8)] == [False, True, True]  # it has not saved yet
    r.confirm(8)
    assert confirmed == [8]
    assert len(looked) == looks
    assert not r.step(9)
    r.confirm(9)  # of a checkpoint of the script's own
    assert confirmed == [8]


def test_stretches() -> None:
    """One at a time, which the next step ends."""
    r = reporter.Reporter(600)
    r.back()
    r.away()
    r.away()
    assert len(busy._until) == 1
    r.step(1)
    assert not busy._until
    with pytest.raises(ValueError, match="within is 0"):
        reporter.Reporter(0)

"""What an agent asks of a worker through its progress record: directives.

Loaded when there is one, so that reporting a step costs no more than a look at one word.
docs/progress-record.md has the record.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import time

from .._native import abi

_FILE = "RALLYPOINT_DIRECTIVE_FILE"

# Words of the record.
STEP, ASKED, ANSWER, REACH = 2, 3, 4, 6

_PHASE = 0xFF  # of the word: what is asked; of the answer: how far the worker is
_HOLD, _RELEASE = 1, 2
_HELD, _TAKEN, _SAVED = 1, 2, 3

_DEPARTURE = 255  # a kind that is no directive: leave the world

KINDS = {
    number: name.removeprefix("DIRECTIVE_").lower()
    for name, number in vars(abi).items()
    if name.startswith("DIRECTIVE_") and number
}

_ENDS = ("drain", "scale", "stop")  # of these, those after which the round is over

_LONGEST_FILE = 1 << 24  # more than any that an agent writes

# A worker whose agent has died continues after this time, in seconds.
_LIMIT = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 50e-6, 2e-3

# The last directive that this process has been given, as in the answer, and its step: it may
# be saved when the agent asks for the next one already.
_given = (0, 0)


@dataclasses.dataclass(frozen=True)
class Directive:
    """What a job is asked for while it runs: progress and directive return it.

    Args:
        id: its name, unlike any other's in the job; "" if the directive file is not there.
        kind: "save" (write a checkpoint), "drain" (write one: the nodes it names are going
            to be taken away, and leave), "scale" (write one: the number of nodes changes) or
            "stop" (write one: the job ends). Others may be added.
        step: the step at which all workers get it; 0 if they have not agreed on one.
        deadline: until when there is time, in seconds since 1970; None: not known.
        named: it is about the node of this worker.
        by: who asked for it.
        reason: why.
        target: of "scale", the number of nodes; else 0.
    """

    id: str
    kind: str
    step: int
    deadline: float | None = None
    named: bool = False
    by: str = ""
    reason: str = ""
    target: int = 0


def reported(words: memoryview, step: int) -> Directive | None:
    """What a report of a step returns while the agent asks for something.

    Waits while the agent holds its workers, which is until the nodes have agreed on a step.
    """
    limit, pause, held = 0.0, _FIRST_PAUSE, 0
    try:
        while True:
            word = words[ASKED]
            reach = words[REACH]
            if words[ASKED] != word:
                continue
            phase, about = word & _PHASE, word & ~_PHASE
            if phase != _HOLD:
                break
            now = time.monotonic()
            if words[ANSWER] == about or (held and now >= limit):
                return None  # it was held for as long as it lets itself be
            if not held:
                limit = now + _LIMIT
            if held != about:
                held = about
                words[ANSWER] = about | _HELD
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    finally:
        if held and words[ANSWER] == held | _HELD:
            words[ANSWER] = held
    if phase != _RELEASE or _has(words, about) or step < reach:
        return None
    if _kind(word) == _DEPARTURE:
        from .world import depart

        words[ANSWER] = about | _TAKEN
        depart()
        return None
    _take(words, about, reach)
    return _read(word, reach)


def standing(words: memoryview) -> Directive | None:
    """The directive that this worker has been given, while it stands."""
    word = words[ASKED]
    reach = words[REACH]
    about = word & ~_PHASE
    if word & _PHASE != _RELEASE or _kind(word) == _DEPARTURE:
        return None
    if not _has(words, about):
        if words[STEP] >= 0:
            return None  # one of its reports returns it
        _take(words, about, reach)
    return _read(word, reach)


def acknowledge(words: memoryview, step: int) -> bool:
    """Tells the agent that this worker has saved; False if nothing asks for that step."""
    word = words[ASKED]
    about, reach = word & ~_PHASE, words[REACH]
    unknown = word & _PHASE != _RELEASE or (words[STEP] >= 0 and not _has(words, about))
    if unknown or _kind(word) == _DEPARTURE:
        about, reach = _given  # the agent asks for the next one already
    if word & _PHASE == 0 or about == 0 or step < reach:
        return False
    words[ANSWER] = about | _SAVED
    return True


def ends_round(words: memoryview) -> bool:
    """Whether this worker has saved for the directive that stands, which then ends its round."""
    word = words[ASKED]
    asks = word & _PHASE == _RELEASE and KINDS.get(_kind(word)) in _ENDS
    return asks and bool(words[ANSWER] == word & ~_PHASE | _SAVED)


def _kind(word: int) -> int:
    return word >> 8 & 0xFF


def _take(words: memoryview, about: int, reach: int) -> None:
    global _given
    _given = about, reach
    words[ANSWER] = about | _TAKEN


def _has(words: memoryview, about: int) -> bool:
    # Another process may have taken it; and what another thread saves for the one before is
    # written over this one's answer.
    return _given[0] == about or words[ANSWER] in (about | _TAKEN, about | _SAVED)


def _read(word: int, reach: int) -> Directive:
    """The directive of a word, with what its file holds beyond the record."""
    kind = _kind(word)
    bare = Directive(
        id="", kind=KINDS.get(kind, f"kind {kind}"), step=reach, named=bool(word >> 16 & 1)
    )
    try:
        told = json.loads(_file())
        if told["number"] != word >> 24:
            return bare
        deadline = told.get("deadline")
        return dataclasses.replace(
            bare,
            id=_text(told.get("id", "")),
            deadline=None if deadline is None else float(deadline),
            by=_text(told.get("by", "")),
            reason=_text(told.get("reason", "")),
            target=operator.index(told.get("target", 0)),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return bare  # it is not there, or not as an agent writes it


def _file() -> bytes:
    """The directive file, of a bounded length; what is no file hangs nothing."""
    fd = os.open(os.environ.get(_FILE, ""), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        text = os.read(fd, _LONGEST_FILE + 1)
    finally:
        os.close(fd)
    if len(text) > _LONGEST_FILE:
        raise ValueError
    return text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value

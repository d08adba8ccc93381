"""The store of a round that torch's agent is given: it outlives the round.

torch's agent does not survive an error of this store while it assigns ranks. Where the
round has ended for this node before that, the agent must get through to its next look
at num_nodes_waiting(), which makes it regroup (docs/decisions/0007
and 0026).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Callable, TypeVar

from .._errors import Code, RallypointError
from .._native.log import logger
from .._rendezvous.member import Member, Outcome
from .._stores.request import Text
from .._stores.store import Store
from .errors import store_error
from .store import TorchStore

_T = TypeVar("_T")

# Keys of torch's agents (docs/spec/agent.md A49, A51).
_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
_EXIT_BARRIER = "torchelastic/agent/terminal_state/"


def stand_in(key: str, role_info: bytes | None, world_size: int) -> bytes | None:
    """The value of a key of torch's agents as if every node of the round were like this one.

    Args:
        key: the key.
        role_info: what this node's agent has published of itself; None: nothing yet.
        world_size: how many nodes the round has.

    Returns:
        The value; None for other keys, and where `role_info` is needed and cannot be read.
    """
    if key.startswith(_EXIT_BARRIER):
        return b""
    for prefix in (_ROLE_INFO, _ASSIGNED_RANKS):
        if key.startswith(prefix):
            break
    else:
        return None
    try:
        rank = int(key[len(prefix) :])
        info = json.loads(role_info or b"")
        workers = int(info["local_world_size"])
    except (ValueError, TypeError, KeyError):
        return None
    if not 0 <= rank < world_size:
        return None
    if prefix == _ROLE_INFO:
        return json.dumps({**info, "rank": rank}).encode()
    first, total = rank * workers, world_size * workers
    return json.dumps([first, total, first, total]).encode()  # the same within the role


class Participant:
    """This node as a participant of a store's round, for the store and its clones.

    Args:
        member: the node.
        outcome: its rank, and the round.
    """

    def __init__(self, member: Member, outcome: Outcome) -> None:
        self._member = member
        self._outcome = outcome
        self._own = f"{_ROLE_INFO}{outcome.rank}"
        self._role_info: bytes | None = None
        self._warned = False

    def note(self, key: str, value: Text) -> None:
        """Remembers what this node's agent publishes of itself."""
        if key == self._own:
            self._role_info = value.encode() if isinstance(value, str) else bytes(value)

    def values(self, keys: Sequence[str], error: RallypointError) -> list[bytes]:
        """What the agent gets for keys of a round that is over for this node, with one
        log line.

        Raises `error`, or one that says more, for keys that are not the agent's and for a
        run that has ended, in which this node could never regroup.
        """
        found = [stand_in(key, self._role_info, self._outcome.world_size) for key in keys]
        values = [value for value in found if value is not None]
        if not keys or len(values) < len(keys):
            raise error
        leaving = all(key.startswith(_EXIT_BARRIER) for key in keys)
        if not leaving and self._member.is_closed() and self._member.nodes_waiting() == 0:
            why = self._member.reason()
            raise store_error(RallypointError(f"{error}; {why}", error.code)) from None
        if not self._warned:
            self._warned = True
            logger.warning(
                "round %d is over for this node: %s (%s)",
                self._outcome.round,
                "its workers have succeeded, and it waits for no other node"
                if leaving
                else "its workers get makeshift ranks, and it regroups with its next look "
                "at the nodes that wait",
                error,
            )
        return values


class AgentStore(TorchStore):
    """The TorchStore of a round as torch's agent takes it, made by next_rendezvous().

    When the round is over for this node, because the others regrouped without it or
    dropped it, the keys by which torch's agents assign ranks are answered as if
    every node were like this one, and those of the exit barrier at once; writes
    to them are dropped. All other keys raise the code ROUND_OVER then, as does
    rallypoint.Store for any.
    """

    def __init__(
        self, store: Store, participant: Participant, timeout: timedelta = timedelta(seconds=300)
    ) -> None:
        super().__init__(store, timeout)
        self._participant = participant

    def _unless_over(
        self, keys: Sequence[str], call: Callable[[], _T], answer: Callable[[list[bytes]], _T]
    ) -> _T:
        try:
            return call()
        except RallypointError as e:
            if e.code not in (Code.ROUND_OVER, Code.EVICTED):
                raise
            return answer(self._participant.values(keys, e))

    def set(self, key: str, value: Text) -> None:
        self._participant.note(key, value)
        self._unless_over([key], partial(super().set, key, value), lambda _: None)

    def get(self, key: str) -> bytes:
        value: bytes = self._unless_over([key], partial(super().get, key), lambda found: found[0])
        return value

    def add(self, key: str, amount: int) -> int:
        total: int = self._unless_over([key], partial(super().add, key, amount), lambda _: amount)
        return total

    def wait(
        self,
        keys: Sequence[str],
        timeout: timedelta | None = None,
        override_timeout: timedelta | None = None,
    ) -> None:
        wait = partial(super().wait, keys, timeout, override_timeout)
        self._unless_over(keys, wait, lambda _: None)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._unless_over(keys, partial(super().multi_get, keys), lambda values: values)

    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        self._unless_over(keys, partial(super().multi_set, keys, values), lambda _: None)

    def _again(self) -> None:
        return None  # it stands for this node

    def _twin(self) -> AgentStore:
        return AgentStore(self._store, self._participant, self.timeout)

"""A fixed set of nodes, by the handler."""

from __future__ import annotations

import pytest
from handler.harness import PATIENCE, Run
from harness import until

from rallypoint.handler import RallypointHandler, create_handler


class TestStatic:
    """A fixed set of nodes (docs/spec/rendezvous.md 4.7), without stale keys."""

    def handlers(
        self, run: Run, backend: str = "rallypoint-static", **config: object
    ) -> list[RallypointHandler]:
        made = []
        for rank in ("0", "1"):  # as torchrun's --rdzv-conf has it
            given = run.parameters(2, 2, rank=rank, timeout=30, **config)
            given.backend = backend
            if backend == "rallypoint":
                given.endpoint = "static://" + run.endpoint
            made.append(create_handler(given))
        run.handlers += made
        return made

    @pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-static"])
    def test_rounds(self, run: Run, backend: str) -> None:
        handlers = self.handlers(run, backend)
        for _ in range(2):
            infos = [f.result(PATIENCE) for f in run.join(*handlers)]
            assert [(i.rank, i.world_size) for i in infos] == [(0, 2), (1, 2)]
            for info in infos:
                bootstrap = info.bootstrap_store_info
                assert f"{bootstrap.master_addr}:{bootstrap.master_port}" == run.endpoint
            assert not infos[1].store.check(["key"]), "a key of an earlier round"
            infos[0].store.set("key", "value")
            assert infos[1].store.get("key") == b"value"
        assert handlers[0].get_backend() == backend and handlers[0].use_agent_store
        assert handlers[0].num_nodes_waiting() == 0 and not handlers[0].is_closed()
        ended = [run.pool.submit(h.shutdown) for h in handlers]
        assert [f.result(PATIENCE) for f in ended] == [True, True]

    def test_a_node_that_starts_over(self, run: Run) -> None:
        """The others hear of it; with torch's they never do."""
        first, second = self.handlers(run)
        for future in run.join(first, second):
            future.result(PATIENCE)
        again = run.pool.submit(first.next_rendezvous)
        until(lambda: second.num_nodes_waiting() > 0)
        second.next_rendezvous()
        assert again.result(PATIENCE).rank == 0

    def test_missing_rank(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        given = run.parameters(2, 2)
        given.backend = "rallypoint-static"
        with pytest.raises(ValueError, match="node_rank"):
            create_handler(given)
        monkeypatch.setenv("PET_NODE_RANK", "1")
        run.handlers.append(create_handler(given))

    def test_wrong_endpoints(self, run: Run) -> None:
        for endpoint in ("", "host", "file:///dir:x"):
            given = run.parameters(1, 1)
            given.backend, given.endpoint = "rallypoint-static", endpoint
            with pytest.raises(ValueError, match="endpoint"):
                create_handler(given)

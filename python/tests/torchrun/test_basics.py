"""Jobs that nothing happens to, and what users read while they wait."""

from __future__ import annotations

import re
import textwrap

from torchrun.harness import MACHINE, PYTHON, Launcher, NewJob


def test_two_nodes_by_the_command_that_users_type(new_job: NewJob) -> None:
    """And the same run id and port at once after the end: nothing is left of the first time."""
    job = new_job("2", nproc=2)
    job.start("A", "B", cold=True)
    first = job.await_round("A", "B")
    assert first.number == 1
    assert {w.run_id for w in first.workers} == {"job"}
    assert {w.restart for w in first.workers} == {0}
    host, port = first.master.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) not in (0, job.port)
    for worker in first.workers:
        job.tell(worker, "finish")
    assert job.await_end("A", "B") == [0, 0]
    assert len(job.starts()) == 4

    job.start("C", "D")
    job.wait(lambda: len(job.starts()) == 8, "the second run's workers")
    assert {(w.round, w.world_size) for w in job.starts("C") + job.starts("D")} == {(1, 4)}
    job.finish("C", "D")


def test_one_node_needs_no_port(new_job: NewJob) -> None:
    """Like --standalone: port 0, and no other node."""
    job = new_job("1", port=0, host="localhost", nproc=2)
    job.start("A")
    assert job.await_round("A").number == 1
    job.finish("A")
    assert not job.nodes["A"].lines("loopback")


def test_launched_from_python(new_job: NewJob, launcher: Launcher) -> None:
    """elastic_launch and get_rendezvous_handler, as programs use them without torchrun."""
    job = new_job("1")
    register = "" if launcher.discovers else "register()"
    program = f"""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    def register():
        from rallypoint._entrypoint import creator_factory
        rendezvous_handler_registry.register("rallypoint", creator_factory())

    def main():
        {register}
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=1, run_id="launched",
            rdzv_backend="rallypoint", rdzv_endpoint="127.0.0.1:{job.port}",
        )
        elastic_launch(config, {PYTHON!r})("-u", {str(job.worker)!r})

        handler = get_rendezvous_handler(RendezvousParameters(
            "rallypoint", "127.0.0.1:{job.port}", "direct", 1, 1))
        info = handler.next_rendezvous()
        info.store.set("key", "value")
        print("direct", handler.get_backend(), handler.get_run_id(), info.rank,
              info.world_size, info.store.get("key"), info.bootstrap_store_info.master_addr)
        print("open", handler.is_closed(), handler.num_nodes_waiting(), handler.shutdown())

    if __name__ == "__main__":
        main()
    """
    job.launch("A", [PYTHON, "-c", textwrap.dedent(program)])
    launched = job.await_round("A")
    assert launched.workers[0].run_id == "launched"
    job.finish("A")
    output = job.nodes["A"].output()
    assert "direct rallypoint direct 0 1 b'value' 127.0.0.1" in output
    assert "open False 0 True" in output


def test_a_node_that_waits_says_for_what(new_job: NewJob) -> None:
    """The progress line and the timeout say who is here, who is missing, how long, where."""
    job = new_job("2", conf={"join_timeout": 3})
    job.start("A")
    progress = r"rallypoint[\]:] ?1 of 2 nodes here"
    line = job.await_output("A", progress)
    elapsed = r"\d[\d.]* s of 3 s"
    assert re.search(rf"1 of 2 nodes here, {elapsed}; here: .*; missing: 1\b", line)
    assert job.await_end("A") == [1]

    node = job.nodes["A"]
    warning = f"127.0.0.1:{job.port} is this machine's loopback"
    assert warning in line
    assert all("missing: 1" in said for said in node.lines("loopback")), "only who waits is warned"

    error = node.lines("RendezvousTimeoutError")[-1]
    for fact in ("'job'|\"job\"", rf"127\.0\.0\.1:{job.port}", "1 of 2 nodes here", elapsed):
        assert re.search(fact, error), (fact, error)
    assert f"here: {MACHINE}," in error or f"here: {MACHINE};" in error
    assert "missing: 1" in error
    assert "join_timeout" in error


def test_a_node_that_finds_nobody_says_where(new_job: NewJob) -> None:
    """A node that is not to host, and whose host never comes."""
    job = new_job("2", conf={"join_timeout": 3, "is_host": "false"})
    job.start("A")
    assert job.await_end("A") == [1]
    error = job.nodes["A"].lines("RendezvousConnectionError")[-1]
    assert f"127.0.0.1:{job.port}" in error
    assert re.search(r"\d s", error)
    assert "is_host" in error

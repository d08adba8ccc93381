"""What an attempt that is cut takes back, what a loop refuses, and where nothing survives."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import PATIENCE
from survive.runs import CUT, a_group, copied, looping, net, no_loop, run_of, same  # noqa: F401
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rallypoint import Code, DeadlineError, HashStore, InvalidError, StateError, survive
from rallypoint._survive import members, snapshot, state
from rallypoint._survive.group import _arrive, _arrived
from rallypoint._survive.moving_store import MovingStore


def test_a_step_that_is_cut_is_taken_back() -> None:
    module, values = net(), {"seen": 1}
    run = run_of(module=module, values=values)
    with run.attempt():
        module(torch.randn(8, 4)).sum().backward()
    kept, random = copied(module), torch.get_rng_state()
    for _ in range(2):  # also the second time in a row
        with run.attempt():
            values["seen"] = 2
            values["new"] = 3
            module(torch.randn(8, 4)).sum().backward()
            raise RuntimeError(CUT)
        assert run.completed == 1
        assert same(module, kept) and values == {"seen": 1}
        assert torch.equal(torch.get_rng_state(), random)


def test_what_is_changed_in_place_is_taken_back() -> None:
    seen, losses = torch.zeros(2), [1.0]
    with torch.inference_mode():
        best = torch.ones(1)
    more = {"a": seen[:1]}
    values: dict[str, Any] = {"seen": seen, "losses": losses, "best": best, "more": more}
    run = run_of(values=values)

    def step() -> None:
        seen.add_(1)
        losses.append(2.0)
        more["a"] += 1
        more["b"] = torch.zeros(1)
        with torch.inference_mode():
            best.add_(1)

    def holds(steps: int) -> bool:
        tensors = torch.equal(seen, torch.tensor([2.0 * steps, 1.0 * steps])) and best == 1 + steps
        same = all(values[name] is kept for name, kept in objects.items())
        return tensors and same and list(more) == ["a"] and losses == [1.0] + [2.0] * steps

    objects = dict(values)
    for steps in (0, 1):
        for _ in range(2):
            with run.attempt():
                step()
                raise RuntimeError(CUT)
            assert holds(steps), values
        with run.attempt():
            step()
            del more["b"]


def module_with(**buffers: torch.Tensor | None) -> Any:
    module = torch.nn.Module()
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer, persistent=False)
    return module


@pytest.mark.parametrize("size", [1, 1 << 19])
def test_changes_that_torch_does_not_count_are_taken_back(size: int) -> None:
    """... as codebooks are averaged."""
    module, values = module_with(codes=torch.zeros(size)), {"seen": torch.zeros(size)}
    run = run_of(module=module, values=values)

    def step() -> None:
        module.codes.data.add_(1)
        values["seen"].data.add_(1)

    for steps in (0, 1):
        for _ in range(2):
            with run.attempt():
                step()
                raise RuntimeError(CUT)
            assert module.codes.eq(steps).all() and values["seen"].eq(steps).all()
        with run.attempt():
            step()


def test_tensors_of_other_layouts_are_taken_back() -> None:
    one, other = torch.zeros(1), torch.zeros(1)
    module = module_with(mask=one.expand(3), edges=torch.eye(2).to_sparse())
    run = run_of(module=module, values={"mask": other.expand(2, 3)})
    with run.attempt():
        one.add_(1)
        other.add_(1)
        module.edges.mul_(2)
        raise RuntimeError(CUT)
    assert one == 0 and other == 0 and torch.equal(module.edges.to_dense(), torch.eye(2))


def test_a_buffer_that_a_module_replaces_is_taken_back() -> None:
    module = module_with(mean=torch.zeros(1), last=None)
    run = run_of(module=module)

    def step() -> None:
        module.mean, module.last = module.mean + 1, torch.ones(3)

    for steps in (0, 1):
        for _ in range(2):
            with run.attempt():
                step()
                raise RuntimeError(CUT)
            assert module.mean == steps and (module.last is None) == (steps == 0)
        with run.attempt():
            step()


class Collective(torch.optim.SGD):
    """An optimizer whose step has collectives, between the changes of parameters."""

    cut = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                with torch.no_grad():
                    parameter.add_(1)
                if self.cut:
                    raise RuntimeError(CUT)


def test_a_cut_within_an_optimizers_step_leaves_no_state() -> None:
    module = net()
    optimizer = Collective(module.parameters(), lr=0.1)
    run = run_of(module=module, optimizer=optimizer)
    with run.attempt():
        optimizer.step()
    optimizer.cut = True
    with run.attempt():
        optimizer.step()
    assert run.completed == 1
    with pytest.raises(survive.StateLostError):
        run._settle([run._said()])


def test_a_cut_before_an_optimizers_step_is_taken_back() -> None:
    """... also in a hook that was there later than the run."""
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = run_of(module=module, optimizer=optimizer)

    def cut(*_: object) -> None:
        raise RuntimeError(CUT)

    optimizer.register_step_pre_hook(cut)
    run._hook_optimizers()  # as the loop does
    with run.attempt():
        optimizer.step()
    assert run._whole and run.completed == 0


def test_a_cut_within_a_closure_is_taken_back() -> None:
    module, cuts = net(), False
    optimizer = torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=4)
    run = run_of(module=module, optimizer=optimizer)
    calls = 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        if cuts and calls > 2:
            raise RuntimeError(CUT)
        optimizer.zero_grad()
        loss = module(data).square().mean()
        loss.backward()
        return loss

    data = torch.randn(8, 4)
    with run.attempt():
        optimizer.step(closure)
    kept, cuts, calls = copied(module), True, 0
    with run.attempt():
        optimizer.step(closure)
    assert run.completed == 1 and calls == 3 and same(module, kept)


def test_a_scaler_begins_anew_after_a_cut() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    run = run_of(module=module, optimizer=optimizer, scaler=scaler)
    for where in ("unscaled", "stepped", ""):
        with run.attempt():
            scaler.scale(module(torch.randn(8, 4)).sum()).backward()
            scaler.unscale_(optimizer)
            if where == "unscaled":
                raise RuntimeError(CUT)
            scaler.step(optimizer)
            if where == "stepped":
                raise RuntimeError(CUT)
            scaler.update()
    assert run.completed == 2


def test_what_is_cut_again_and_again_is_an_error() -> None:
    """... of the script: gloo says so of tensors that differ in size, too."""
    run = run_of(values={})
    for _ in range(survive._ATTEMPTS):
        with run.attempt():
            raise RuntimeError(CUT)
    with pytest.raises(RuntimeError, match="Connection reset"), run.attempt():
        raise RuntimeError(CUT)


def test_a_step_that_is_complete_at_last() -> None:
    run = run_of(values={})
    for _ in range(2):
        for _ in range(survive._ATTEMPTS):
            with run.attempt():
                raise RuntimeError(CUT)
        with run.attempt():
            pass
    assert run.completed == 2


def test_gradients_for_the_next_attempt_are_no_state(caplog: pytest.LogCaptureFixture) -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = run_of(module=module, optimizer=optimizer)
    with run.attempt():
        module(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    with run.attempt(), torch.no_grad():  # an evaluation, which leaves the gradients as they were
        module(torch.randn(8, 4))
    assert not caplog.records
    for _ in range(2):
        with run.attempt():
            module(torch.randn(8, 4)).sum().backward()
    (record,) = caplog.records
    assert "has left gradients" in record.getMessage()


def test_a_step_is_complete_when_its_optimizer_has_stepped() -> None:
    module = net()
    run = run_of(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    with run.attempt():
        module(torch.randn(8, 4)).sum().backward()
        run._optimizers[0].step()
        kept = copied(module)
        raise RuntimeError(CUT)
    assert run.completed == 1 and same(module, kept)


def test_a_cut_between_two_optimizers_is_taken_back() -> None:
    one, other = net(), net()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (one, other)]
    values: dict[str, Any] = {}
    run = run_of(one=one, other=other, first=optimizers[0], second=optimizers[1], values=values)

    def step(cut: bool) -> None:
        with run.attempt():
            for module, optimizer in zip((one, other), optimizers):
                values["loss"] = module(torch.randn(8, 4)).sum()  # with what its gradient needs
                values["loss"].backward()
                if cut and optimizer is optimizers[1]:
                    raise RuntimeError(CUT)
                optimizer.step()

    step(cut=False)
    kept, moments = copied(one), optimizers[0].state_dict()["state"][0]["exp_avg"].clone()
    step(cut=True)
    assert run.completed == 1 and same(one, kept)
    assert torch.equal(optimizers[0].state_dict()["state"][0]["exp_avg"], moments)
    step(cut=False)
    assert run.completed == 2 and not same(one, kept)


def test_nothing_is_copied_where_nothing_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, values = net(), net(), {"last": torch.zeros(1)}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, other)]
    monkeypatch.setattr(torch.Tensor, "clone", lambda *_: pytest.fail("copied"))
    monkeypatch.setattr(snapshot.copy, "deepcopy", lambda *_: pytest.fail("copied"))
    run = looping(
        survive.Run(one=one, other=other, first=optimizers[0], second=optimizers[1], values=values)
    )
    with run.attempt():
        for optimizer in optimizers:
            optimizer.step()
    assert run.completed == 1


def test_an_optimizer_steps_once_in_an_attempt() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = run_of(module=module, optimizer=optimizer)
    with pytest.raises(InvalidError, match="second step"), run.attempt():
        optimizer.step()
        optimizer.step()
    assert run.completed == 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        RuntimeError("hub.example: Connection reset by peer"),
        ValueError(CUT),
        KeyboardInterrupt(),
    ],
)
def test_errors_of_the_script_pass(error: BaseException) -> None:
    with pytest.raises(type(error)), run_of(values={}).attempt():
        raise error


def test_errors_of_the_scripts_own_stores_pass() -> None:
    """... at once, and not after the attempt has been repeated."""
    with HashStore() as store, pytest.raises(DeadlineError), run_of(values={}).attempt():
        store.get("never", 0.01)


class Wrapper(torch.optim.Optimizer):
    """An optimizer that has another one make its steps."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_that_is_not_registered_is_refused() -> None:
    """... as no cut could take its step back, and a newcomer would have none of its state."""
    module, other = net(), net()
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    run = run_of(module=module)
    with pytest.raises(InvalidError, match="SGD changes a registered module"), run.attempt():
        inner.step()
    with run.attempt():
        torch.optim.SGD(other.parameters(), lr=0.1).step()  # of the step alone
    wrapper = Wrapper(inner)
    run = run_of(module=module, wrapper=wrapper)
    with run.attempt():
        wrapper.step()
    assert run.completed == 1 and run._stepped == {id(wrapper)}


def test_a_run_may_be_older_than_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    run = survive.Run(values={})
    monkeypatch.setattr(survive, "_group", a_group())
    assert next(run.steps(1)) == 0
    assert run._group is survive._group


@pytest.mark.parametrize("called", [True, False])
def test_a_process_group_that_was_made_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, called: bool
) -> None:
    monkeypatch.setattr(survive, "changeable", lambda: True)
    monkeypatch.setattr(survive, "_called", called)
    assert next(survive.Run(values={}).steps(1)) == 0
    assert ("has not called survive.init_process_group" in caplog.text) == (not called)


@pytest.mark.parametrize("end", [ValueError(), SystemExit(1), SystemExit(0), None])
def test_who_fails_has_not_left_the_loop(end: BaseException | None) -> None:
    """... for which a newcomer would take its work for done."""
    run = survive.Run(values={})
    run._group, left = a_group(), []
    run._group.left = lambda: left.append(run.completed)
    with contextlib.suppress(ValueError, SystemExit):
        for _ in run.steps(2):
            with run.attempt():
                if end is not None:
                    raise end
            break
    assert len(left) == (end is None or getattr(end, "code", 1) == 0)


def test_what_has_no_state_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"loss is a float: state is what has state_dict\(\)"):
        survive.Run(loss=0.5)


def test_what_cannot_travel_is_named_before_the_first_step() -> None:
    run = survive.Run(values={"best": object()})
    run._group = a_group()
    with pytest.raises(InvalidError, match=r"the state\['values'\]\['best'\] is a builtins.object"):
        next(run.steps(1))


def test_what_cannot_travel_is_named_as_soon_as_it_is_there() -> None:
    """... and not when a worker is lost, and the others have to send it."""
    values: dict[Any, Any] = {"best": None, "counts": [{}]}
    run = survive.Run(values=values)
    run._group = a_group()
    with pytest.raises(InvalidError, match=r"\['values'\]\['best'\] is a builtins.complex"):
        for step in run.steps(9):
            with run.attempt():
                values["best"] = 1j if step == 4 else float(step)
    assert run.completed == 5
    values["best"] = None
    values["counts"][0][b"a"] = 1
    with pytest.raises(InvalidError, match=r"\['counts'\]\[0\] is a builtins.bytes"):
        looping(run)._begin()


def test_what_an_optimizer_makes_and_cannot_travel_is_named_after_its_first_step() -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["codes"] = b"codes"

    module = net()
    run = survive.Run(module=module, optimizer=Odd(module.parameters(), lr=0.1))
    run._group = a_group()
    with pytest.raises(InvalidError, match=r"\['optimizer'\].*\['codes'\] is a builtins.bytes"):
        for step in run.steps(9):
            with run.attempt():
                if step > 1:  # a scaler leaves the first ones out, say
                    run._optimizers[0].step()
    assert run.completed == 3


def test_a_second_loop_restarts(caplog: pytest.LogCaptureFixture) -> None:
    """... as a newcomer would come to the first, and evaluate, or save, beside the others."""
    run = survive.Run(values={})
    run._group = a_group()
    for step in run.steps(2):
        with run.attempt():
            pass
        if step == 1:
            break
    assert not caplog.records
    for _ in run.steps(4):
        with run.attempt():
            pass
    assert run.completed == 4 and "a second loop" in caplog.text
    with pytest.raises(RuntimeError), looping(run).attempt():
        raise RuntimeError(CUT)


def test_no_step_begins_while_the_round_is_about_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, True, False])
    monkeypatch.setattr(survive, "leaving", lambda: next(looks))
    run = survive.Run(values={})
    run._group = a_group()
    assert next(run.steps(1)) == 0 and not list(looks)


@pytest.mark.parametrize("survives", [True, False])
def test_a_loop_within_another_one_is_refused(survives: bool) -> None:
    """... of the same run or another one, and another one's attempt, whose cut nobody would see."""
    run, other = survive.Run(values={}), survive.Run(values={})
    for each in (run, other) if survives else ():
        each._group = a_group()
    for _ in run.steps(2):
        for late in (run, other):
            with pytest.raises(InvalidError, match="another one has not ended"):
                next(late.steps(5))
        with pytest.raises(InvalidError, match="in the loop of its run"), other.attempt():
            pass
        nested = pytest.raises(InvalidError, match="not in another attempt")
        with run.attempt(), nested, run.attempt():
            pass
        if run.completed == 2:
            break
    assert (run.completed, other.completed) == (2, 0)
    with pytest.raises(InvalidError, match="in the loop of its run"), run.attempt():
        pass
    assert next(other.steps(1)) == 0


@pytest.mark.parametrize("survives", [True, False])
def test_the_loop_alone_counts_its_steps(survives: bool) -> None:
    run = survive.Run(values={})
    run.completed = torch.tensor(3)  # as a checkpoint may have it
    run._group = a_group() if survives else None
    steps = []
    for step in run.steps(6):
        steps.append(step)
        with pytest.raises(InvalidError, match="completed is set within the loop"):
            run.completed = 0
        with run.attempt():
            pass
        if run.completed == 6:
            break
    assert steps == [3, 4, 5] and run.completed == 6
    run.completed = 1
    assert run.completed == 1


def mesh_run(monkeypatch: pytest.MonkeyPatch, others: list[dict[str, Any]]) -> survive.Run:
    """A run with a mesh, whose worker is cut in the agreement, and then meets these."""
    module = net()
    run = run_of(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
    run._group = a_group(mesh=object())
    run._group.meet = lambda mine: [mine, *others]

    def cut(_: torch.Tensor) -> None:
        raise RuntimeError(CUT)

    monkeypatch.setattr(dist, "all_reduce", cut)
    monkeypatch.setattr(survive, "regroup", lambda: SimpleNamespace(epoch=2))
    return run


def said(completed: int, fresh: bool = False, **more: Any) -> dict[str, Any]:
    """What a worker reports about itself when it meets others."""
    usual = {"ended": True, "prepared": False, "joins": False, "shard": 0}
    return usual | {"completed": completed, "fresh": fresh} | more


@pytest.mark.parametrize("stepped", [True, False])
def test_a_step_is_complete_if_another_worker_of_the_mesh_completed_it(
    monkeypatch: pytest.MonkeyPatch, stepped: bool
) -> None:
    run = mesh_run(monkeypatch, [said(1)])
    weight = run._modules[0][0].weight.detach().clone()
    with run.attempt():
        run._modules[0](torch.randn(8, 4)).square().sum().backward()
        if stepped:
            run._optimizers[0].step()
    assert run.completed == 1 and run._ended and run._met
    assert torch.equal(run._modules[0][0].weight, weight) == (not stepped)
    assert run._cut is not None  # so that the loop has it join the others


@pytest.mark.parametrize("other", [said(0), said(0, prepared=True), said(9, fresh=True)])
@pytest.mark.parametrize("stepped", [True, False])
def test_a_step_is_taken_back_if_no_worker_of_the_mesh_completed_it(
    monkeypatch: pytest.MonkeyPatch, stepped: bool, other: dict[str, Any]
) -> None:
    run = mesh_run(monkeypatch, [other])
    kept = copied(run._modules[0])
    with run.attempt():
        run._modules[0](torch.randn(8, 4)).sum().backward()
        if stepped:
            run._optimizers[0].step()
    assert run.completed == 0 and run._whole and run._met
    assert same(run._modules[0], kept)


def test_a_step_that_is_cut_after_the_agreement_does_not_reach_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """... and the others of the mesh, who think that it does, learn of that in the next world."""
    run = mesh_run(monkeypatch, [said(1)])
    with run.attempt():
        run._optimizers[0].step()
        raise RuntimeError(CUT)  # by a collective, for which it is too late
    assert run.completed == 1 and not run._ended and run._met is None


def test_who_is_prepared_has_the_newest_state() -> None:
    met = [said(4, prepared=True, shard=1), said(5), said(3, shard=1), said(4, prepared=True)]
    ages = members.ages(met)
    assert ages == [(True, 5, True), (True, 5, True), (True, 3, True), (True, 5, True)]
    assert list(members.sources(met, ages)) == [(0, 1), (1, 0)]
    met = [said(4, prepared=True), said(4), said(7, fresh=True)]  # nobody has completed it
    assert members.ages(met) == [(True, 4, True), (True, 4, True), (False, 7, True)]
    with pytest.raises(survive.StateLostError, match="has shard 1 after step 5"):
        list(members.sources([said(5), said(3, shard=1)], [(True, 5, True), (True, 3, True)]))


@pytest.mark.parametrize("fresh", [True, False])
def test_who_receives_what_a_script_has_loaded_has_no_more(
    monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """Others with other shards, which have loaded theirs as well, are to be as new."""
    run = run_of(values={})
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(state, "receive", lambda *_: run._states())
    run._settle([said(3, fresh, shard=None), run._said()])
    assert (run.completed, run._fresh) == (3, fresh)


def test_who_is_cut_after_its_optimizers_has_the_state_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """... who may have come further in its body, where no step has reached its end."""
    run = run_of(values={"rate": 1.0})
    run._completed, run._fresh, run._ended = 5, False, False
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(state, "receive", lambda *_: {"values": {"rate": 0.5}})
    run._settle([said(5, ended=False, shard=None), run._said()])
    assert run._states() == {"values": {"rate": 0.5}}
    assert (run.completed, run._fresh, run._ended) == (5, False, True)


def test_a_store_that_takes_longer_to_answer() -> None:
    class Far:
        def wait(self, _keys: object, timeout: float) -> None:
            if timeout < 0.3:
                raise DeadlineError("no answer", Code.TIMEOUT, True)

    store = MovingStore(lambda: False)
    store._store = Far()  # type: ignore[assignment]
    store.wait(["key"], timedelta(seconds=5))


def test_who_arrives_again_takes_no_other_place() -> None:
    """... as it does if the answer was lost."""
    with HashStore() as store:
        for rank in (7, 3, 7, 3, 5):
            _arrive(store, "member/0", 3, {"rank": rank, "absent": rank == 5})
        assert sorted(m["rank"] for m in _arrived(store, "member/0", 3)) == [3, 7]
        with pytest.raises(StateError):
            _arrive(store, "member/0", 3, {"rank": 8})


@pytest.mark.parametrize(
    ("changeable", "reconfigures", "backend", "why"),
    [
        (False, True, "gloo", "--on-failure regroup"),
        (True, False, "gloo", "torch is .* from 2.15 on"),
        (True, True, "nccl", "only gloo is supported"),
    ],
)
def test_where_nothing_survives(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    changeable: bool,
    reconfigures: bool,
    backend: str,
    why: str,
) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(survive, "changeable", lambda: changeable)
    if not reconfigures:
        monkeypatch.delattr(dist, "_reconfigure")
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **_: made.append(args))
    with caplog.at_level(logging.WARNING, "rallypoint"):
        survive.init_process_group(backend)
    assert made == [(backend,)]
    assert "a lost worker ends all others" in caplog.text
    (record,) = caplog.records
    assert re.search(why, record.getMessage())
    run = survive.Run(values={})
    numbers = []
    for step in run.steps(3):
        with run.attempt():
            numbers.append(step)
    assert numbers == [0, 1, 2]
    with pytest.raises(RuntimeError), looping(run).attempt():
        raise RuntimeError(CUT)


@pytest.mark.parametrize("shape", [("shard",), ("replicate", "shard")])  # FSDP, HSDP
def test_sharded_parameters_restart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, shape: tuple[str, ...]
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,) * len(shape), mesh_dim_names=shape)
        module = net()
        fully_shard(module, mesh=mesh)
        monkeypatch.setattr(survive, "_group", SimpleNamespace(mesh=None))
        run = survive.Run(module=module)
        assert next(run.steps(1)) == 0
        assert run._group is None and "are sharded" in caplog.text
    finally:
        dist.destroy_process_group()


def test_a_worker_within_an_attempt_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    woken, changes = threading.Event(), threading.Event()
    monkeypatch.setattr(survive, "changing", changes.is_set)
    run = run_of(values={})
    run._group.wake = woken.set  # type: ignore[union-attr]
    with survive._Watch(run):
        changes.set()
        assert not woken.wait(0.3)  # between attempts there is nobody to wake
        with run.attempt():
            assert woken.wait(PATIENCE)

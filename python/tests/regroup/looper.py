"""Workers for test_regroup.py: they train in lockstep, without torch, and regroup in place.

Argument: the seconds that a step takes. Each step is a meeting of all ranks through the store of
the world. After each change of the world the highest step wins. Each prints lines of JSON: what,
and its rank, size, epoch, pid, step. Files in the working folder steer them: over has them end
some steps later, deaf.RANK has a rank do nothing, and ask.RANK has it regroup once though nothing
has happened.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import rallypoint
from rallypoint import RallypointError, World

PATIENCE = 60.0
MORE = 20  # steps after it is over


def say(what: str, world: World, step: int, **more: object) -> None:
    line = {"what": what, "rank": world.rank, "size": world.size, "epoch": world.epoch}
    more |= {"pid": os.getpid(), "step": step, "time": time.time(), "node": world.node_rank}
    os.write(1, (json.dumps(line | more) + "\n").encode())


def gather(world: World, client: rallypoint.Store, name: str, value: int) -> "list[int] | None":
    """All ranks' values; None if the world changes before they are there."""
    try:
        client.set(f"{name}/{world.rank}", str(value).encode())
        for other in range(world.size):
            while not client.check([f"{name}/{other}"]):
                if rallypoint.changing():
                    return None
                time.sleep(0.001)
        return [int(client.get(f"{name}/{other}")) for other in range(world.size)]
    except RallypointError:  # the store has ended with its round
        return None


def record(world: World, step: int) -> None:
    """In one write: a worker that is killed leaves a whole line or none."""
    with open("steps.txt", "ab", buffering=0) as file:
        file.write(f"{world.epoch} {os.getpid()} {step}\n".encode())


def next_world(world: World, done: int) -> World:
    began = time.monotonic()
    world = rallypoint.regroup(PATIENCE)
    say("regroups", world, done, waited=time.monotonic() - began)
    return world


def main(pause: float) -> None:
    rallypoint.can_regroup()
    world = rallypoint.world()
    say("begins", world, -1, env=int(os.environ["RANK"]))
    done = -1  # the last step that this process knows to be done
    last = 0  # at which all end, when they have agreed on one
    while True:
        while rallypoint.changing():
            world = next_world(world, done)
        try:
            client = world.store.client(timeout=0.5)
            known = gather(world, client, "state", done)
        except RallypointError:
            known = None
        if known is None:
            if not rallypoint.changing():  # the store has ended before the agent knew why
                world = next_world(world, done)
            continue
        done = max(known)
        say("agrees", world, done)
        while not last or done < last:
            if Path(f"deaf.{world.rank}").exists():
                say("is deaf", world, done)
            while Path(f"deaf.{world.rank}").exists():
                time.sleep(0.01)
            with contextlib.suppress(FileNotFoundError):
                Path(f"ask.{world.rank}").unlink()
                world = next_world(world, done)
                break
            if not last and Path("over").exists():
                last = done + MORE
            met = gather(world, client, f"step/{done + 1}", last)
            if met is None:
                break
            done, last = done + 1, max(met)
            record(world, done)
            time.sleep(pause)
            directive = rallypoint.progress(done)
            if directive is not None:
                say(directive.kind, world, done, id=directive.id)
                rallypoint.saved(done)
            if rallypoint.changing():
                say("leaves", world, done)
                break
        else:
            say("ends", world, done)
            return


if __name__ == "__main__":
    main(float(sys.argv[1]))

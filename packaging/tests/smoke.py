"""What an installed wheel must be able to do, with nothing else installed."""

import importlib.metadata
import subprocess
import sys
import threading
from pathlib import Path

import rallypoint

assert "torch" not in sys.modules
assert rallypoint.__version__ == importlib.metadata.version("rallypoint")

with (
    rallypoint.StoreServer("127.0.0.1") as server,
    rallypoint.connect_store("127.0.0.1", server.port, 20) as store,
):
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert store.add("n", 3) == 3

# A rendezvous of two nodes; the endpoint is this run's own loopback address.
endpoint = sys.argv[1]
outcomes = []


def node() -> None:
    with rallypoint.Member("smoke", endpoint, 2, 2) as member:
        outcomes.append(member.next())
        member.shutdown(rallypoint.Ending.SUCCESS)


threads = [threading.Thread(target=node) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert sorted(outcome.rank for outcome in outcomes) == [0, 1], outcomes
assert {outcome.world_size for outcome in outcomes} == {2}

script = Path(sys.executable).with_name("rallypoint")
said = subprocess.run([script, "version"], check=True, capture_output=True, text=True).stdout
assert rallypoint.__version__ in said
print("Python", sys.version.split()[0], "rallypoint", rallypoint.__version__)

"""PyTorch's own tests of its agent, its launcher and its TCPStore, run over Rallypoint; its timers'
and its rendezvous' beside it.

    python packaging/torch_suites.py FOLDER

Fetches the source of PyTorch that the system's Debian archive has, the newest first, by apt-get,
takes the tests out of it into FOLDER, has them meet at the backend rallypoint, and runs each
in an interpreter of its own: many fork after they have used the library, which a process
with a Go runtime cannot. The agent's tests run twice, with torch's agent and with Rallypoint's,
the launcher's once more, by Rallypoint's launchers with warm workers. Torch's store clients have
Rallypoint's server. Nothing of the texts is kept in the repository; how many have passed is written
to docs/compatible.md. A test that fails is run once more when the others have ended, since some of
torch's count on a quiet machine. Without such an archive it says so and ends with 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import compatible

DISTRIBUTIONS = ("sid", "trixie")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
AGENT = "elastic/agent/server/test/local_elastic_agent_test.py"
LAUNCHER = ("launcher/api_test.py", "launcher/test_run.py")
# What they test is torch's alone: that Rallypoint is installed changes none of it. Those of
# dynamic_rendezvous and the backends hold the insides of the torch that they come with.
BESIDE = (
    "elastic/timer/api_test.py",
    "elastic/timer/local_timer_test.py",
    "elastic/rendezvous/api_test.py",
    "elastic/rendezvous/static_rendezvous_test.py",
    "elastic/rendezvous/utils_test.py",
)
STORE = "test_store.py"
PATIENCE = 300.0  # seconds for one test

# They replace functions of torch's agent by mocks, so that they hold nothing of another agent.
TORCHS_ALONE = re.compile(r"::test_(barrier_failed|shutdown_called)_")

ETCD_SERVER = '''
class EtcdServer:
    """A free port of this machine, at which the first node hosts the rendezvous."""
    def start(self): pass
    def stop(self): pass
    def get_endpoint(self):
        import socket
        with socket.socket() as s:
            s.bind(("localhost", 0))
            return "localhost:%d" % s.getsockname()[1]
'''
FORMS = (
    ("from torch.distributed.elastic.rendezvous.etcd_server import EtcdServer\n", ETCD_SERVER),
    (
        "backend=self._backend,\n            endpoint=",
        'backend="rallypoint",\n            endpoint=',
    ),
    ('rdzv_backend: str = "etcd"', 'rdzv_backend: str = "rallypoint"'),
    ("--rdzv-backend=c10d", "--rdzv-backend=rallypoint"),
    ("--rdzv-backend=etcd", "--rdzv-backend=rallypoint"),
)
OWN_AGENT = (
    ("    LocalElasticAgent,\n", ""),
    (
        "from torch.distributed.elastic.multiprocessing import ",
        "from rallypoint.agent import RallypointElasticAgent as LocalElasticAgent\n"
        "from torch.distributed.elastic.multiprocessing import ",
    ),
)

# Before the first function of a test's file: Rallypoint's launchers, with warm workers.
WARM_BEGINS = "\n\ndef path(script):"
WARM_LAUNCHERS = """
import functools
import rallypoint
elastic_launch = rallypoint.elastic_launch
LaunchConfig = functools.partial(rallypoint.LaunchConfig, warm=True)

class launch:
    @staticmethod
    def main(args):
        import subprocess
        from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
        command = [sys.executable, "-m", "rallypoint", "run", "--warm", *args]
        env = {**os.environ, "LOGLEVEL": "INFO"}
        done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True)
        print(done.stderr, file=sys.stderr)
        if done.returncode == 2:
            raise ValueError(done.stderr)
        assert "forked from a template" in done.stderr or "start cold: --no-python" in done.stderr
        if done.returncode:
            raise ChildFailedError("", {0: ProcessFailure(0, 0, done.returncode, "")})
"""
# They look into torch's launcher by mocks, or call its functions rather than launch.
NO_LAUNCH = re.compile(
    r"raise_exception|shutdown|entrypoint_name|configurations|nodes_parse|logs_spec"
)


# The client is torch's, the server Rallypoint's.
STORE_SERVER = """
import rallypoint
import torch.distributed as dist
import torch.distributed.rendezvous

NAMES = "host_name port world_size is_master timeout wait_for_workers multi_tenant master_listen_fd"
servers = {}

class TCPStore(dist.TCPStore):
    def __init__(self, *args, **kwargs):
        given = {**dict(zip([*NAMES.split(), "use_libuv"], args)), **kwargs}
        if given.get("is_master"):
            port = given["port"]
            if port not in servers or not given.get("multi_tenant"):
                server = rallypoint.StoreServer(port=port)
                port = server.port
                servers[port] = server
            given.update(port=port, is_master=False)
        super().__init__(**given)

dist.TCPStore = torch.distributed.rendezvous.TCPStore = TCPStore
"""
STORE_CLASSES = "TCP or TimeoutTest or MultiThreadedWait or ClientProtocol or PrefixStoreTest"
# They look at torch's own server: its text, its wait for clients in the constructor, its socket.
TORCHS_SERVER = "repr or missing_clients or listen_socket or already_in_use"


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def fetch(folder: Path) -> Path | None:
    """Fetches the source archive; None if there is none to be had."""
    if shutil.which("apt-get") is None:
        return None
    targets = output("apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)").splitlines()
    debian = [t.split()[0] for t in targets if re.fullmatch(r"\S+/debian/? main", t)]
    if not debian or not KEYRING.exists():
        return None
    for distribution in DISTRIBUTIONS:
        here = folder / distribution
        for name in ("lists/partial", "archives/partial"):
            (here / name).mkdir(parents=True, exist_ok=True)
        source = f"deb-src [signed-by={KEYRING}] {debian[0]} {distribution} main\n"
        (here / "source.list").write_text(source)
        options = {
            "Dir::Etc::sourcelist": here / "source.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": here / "lists",
            "Dir::Cache": here,
        }
        apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
        fetched = subprocess.run([*apt, "update"], capture_output=True).returncode == 0
        get = [*apt, "source", "--download-only", "--tar-only", "pytorch"]
        fetched = fetched and subprocess.run(get, cwd=here, capture_output=True).returncode == 0
        found = sorted(here.glob("pytorch_*.orig.tar.*"))
        if fetched and found:
            return found[-1]
        print(f"{distribution}: the source of PyTorch cannot be fetched")
    return None


def extract(archive: Path, folder: Path) -> None:
    """Takes the tests out of the archive."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, name = member.name.partition("/test/distributed/")
            ours = name.startswith(("elastic/", "launcher/")) or name == STORE
            if member.isfile() and ours and ".." not in name:
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                file.write_bytes(content.read())
                file.chmod(0o755 if member.mode & 0o100 else 0o644)


def rewrite(file: Path, forms: tuple[tuple[str, str], ...]) -> None:
    text = file.read_text()
    for old, new in forms:
        text = text.replace(old, new)
    file.write_text(text)


def pytest(folder: Path, *argv: str) -> list[str]:
    """The command that runs pytest in a folder, without the configuration of this repository."""
    bare = ["-q", "-c", os.devnull, f"--rootdir={folder}", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *bare, *argv]


def collect(folder: Path, *files: str) -> list[str]:
    """The tests of some files, by their ids."""
    argv = pytest(folder, "--collect-only", *files)
    listed = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"tests could not be collected: {listed.stdout}{listed.stderr}")
    return [line for line in listed.stdout.splitlines() if "::" in line]


def run(folder: Path, test: str) -> tuple[str, str]:
    """Runs one test: how it ended, and what it printed."""
    argv = pytest(folder, test)
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired as e:
        return "failed", f"it did not end within {PATIENCE:.0f} s\n{e.stdout!r}"
    if done.returncode != 0:
        return "failed", done.stdout + done.stderr
    return "passed" if " passed" in done.stdout else "skipped", ""


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    archive = fetch(folder)
    if archive is None:
        print("PyTorch's own tests are skipped: no Debian archive here has the source of PyTorch")
        return
    print(f"the tests of {archive.name.split('.orig')[0].replace('_', ' ')}")
    counts: dict[str, dict[str, int]] = {}
    for kind in compatible.SUITES:
        tests = folder / kind.replace("'", "").replace(" ", "-")
        shutil.rmtree(tests, ignore_errors=True)
        extract(archive, tests)
        for name in (AGENT, *LAUNCHER):
            rewrite(tests / name, FORMS)
        if kind == compatible.TORCHS:
            ids = collect(tests, AGENT, *LAUNCHER, *BESIDE)
        elif kind == compatible.OURS:
            rewrite(tests / AGENT, OWN_AGENT)
            ids = [i for i in collect(tests, AGENT) if not TORCHS_ALONE.search(i)]
        elif kind == compatible.WARM:
            for name in LAUNCHER:
                rewrite(tests / name, ((WARM_BEGINS, WARM_LAUNCHERS + WARM_BEGINS),))
            ids = [i for i in collect(tests, *LAUNCHER) if not NO_LAUNCH.search(i)]
        else:
            (tests / "conftest.py").write_text(STORE_SERVER)
            ids = collect(tests, STORE, f"-k({STORE_CLASSES}) and not ({TORCHS_SERVER})")
        print(f"{len(ids)} tests with {kind}", flush=True)
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            results = dict(zip(ids, pool.map(partial(run, tests), ids), strict=True))
        ended = {"passed": 0, "failed": 0, "skipped": 0}
        for test, (how, text) in results.items():
            if how == "failed":
                print(f"FAILED {test}\n{text}", flush=True)
                how, text = run(tests, test)
                print(f"  run again, alone: {how}\n{text}", flush=True)
            ended[how] += 1
        print(", ".join(f"{number} {how}" for how, number in ended.items()), flush=True)
        counts[kind] = ended
    source = re.sub(r"\+.*", "", archive.name.partition("_")[2])
    found = {"tests": source, "torch": version("torch").partition("+")[0], "counts": counts}
    compatible.record("suites", found)
    sys.exit(any(ended["failed"] for ended in counts.values()))


if __name__ == "__main__":
    main()

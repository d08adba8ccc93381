"""The examples in other languages: three nodes, one of which is killed.

Each is started as its own comment says, but against the library in build/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
BUILD = REPOSITORY / "build"


def environment(folder: Path) -> dict[str, str]:
    """Where programs find the library as an installed one, by its soname."""
    link = folder / "librallypoint.so.0"
    if not link.exists():
        link.symlink_to(BUILD / "librallypoint.so")
        (folder / "librallypoint.so").symlink_to(link)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "RALLYPOINT_LIBRARY": str(link)}


def build(*command: object, cwd: Path = REPOSITORY, **more: str) -> None:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **more},
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


class Node:
    """A process whose output can be waited for."""

    def __init__(self, command: list[object], env: dict[str, str], cwd: Path) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            list(map(str, command)),
            env=env,
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def find(self, pattern: str, timeout: float = 90) -> re.Match[str]:
        """Waits for a line that the pattern is found in."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.lines if (m := re.search(pattern, line))), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, timeout)
            match = found()
        assert match, f"no line with {pattern!r} in\n" + "\n".join(self.lines)
        return match

    def end(self, timeout: float = 90) -> int:
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.end()


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def started(*command: object) -> Node:
        nodes.append(Node(list(command), environment(tmp_path), tmp_path))
        return nodes[-1]

    yield started
    for node in nodes:
        if node.process.poll() is None:
            node.kill()


@pytest.fixture
def endpoint() -> str:
    """One that only this test uses: a loopback address of its own."""
    pid = os.getpid()
    return f"127.{1 + (pid >> 16 & 127)}.{pid >> 8 & 255}.{1 + (pid & 255) % 254}:29400"


ROUND = r"round (\d+): (?:rank|node) (\d+) of {}\b"


def three_nodes_lose_one(start: Start, command: list[object]) -> list[Node]:
    """Starts three, kills one when they have met, and returns those that are left."""
    host = start(*command)
    nodes = [host, start(*command), start(*command)]
    ranks = {int(node.find(ROUND.format(3))[2]) for node in nodes}
    assert ranks == {0, 1, 2}
    killed = find_killed(nodes)
    killed.kill()
    left = [node for node in nodes if node is not killed]
    ranks = {int(node.find(ROUND.format(2))[2]) for node in left}
    assert ranks == {0, 1}
    return left


def find_killed(nodes: list[Node]) -> Node:
    """A node that does not host the control plane: the end of the connections to it."""
    import psutil

    for node in nodes:
        listens = {
            c.laddr.port
            for c in psutil.Process(node.process.pid).net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
        }
        if 29400 not in listens:
            return node
    raise AssertionError("all of them host")


def test_first_commands_of_readme_and_index(start: Start, endpoint: str) -> None:
    """What a stranger tries first, as it stands but for the address and for how long workers and
    pauses last. What stands above it installs what this test has installed."""
    pages = [(REPOSITORY / page).read_text() for page in ("README.md", "docs/index.md")]
    assert all(page.partition("```sh\n")[2].startswith("pip install . ") for page in pages)
    tried = re.compile(r"```sh\n(for node in .*?)```", re.DOTALL)
    [block] = {m[1] for page in pages if (m := tried.search(page))}
    loop = re.search(r"do +#.*?\n +(.*?) &\n", block, re.DOTALL)
    assert loop and "kill -9 $!" in block
    host, _, _ = endpoint.partition(":")
    command = loop[1].replace("127.0.0.1", host).replace("sleep 10", "sleep 300")
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    three_nodes_lose_one(start, ["sh", "-c", f"{path}; exec env {command}"])
    status = re.search(r"^rallypoint status \S+", block, re.MULTILINE)
    assert status
    shown = start("sh", "-c", f"{path}; " + status[0].replace("127.0.0.1", host))
    assert shown.end() == 0
    shown.find(r"^Run \"none\": running, round 2 .*2 nodes of 2 to 3")


def test_c_program_of_the_page(start: Start, tmp_path: Path, endpoint: str) -> None:
    program = tmp_path / "meet"
    build(
        "cc",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{REPOSITORY / 'include'}",
        EXAMPLES / "c" / "meet.c",
        BUILD / "librallypoint.so",
        "-o",
        program,
    )
    nodes = [start(program, endpoint, "c") for _ in range(2)]
    assert {node.find(r"^round 1: rank (\d) of 2, store at ")[1] for node in nodes} == {"0", "1"}
    assert [node.end() for node in nodes] == [0, 0]
    refused = start(program, "::", "c")
    assert refused.end() == 1
    refused.find("^join: INVALID: the endpoint ")


def test_c_launcher(start: Start, tmp_path: Path, endpoint: str) -> None:
    launcher = tmp_path / "launcher"
    build(
        "cc",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{REPOSITORY / 'include'}",
        EXAMPLES / "c" / "launcher.c",
        BUILD / "librallypoint.so",
        "-o",
        launcher,
    )
    # A worker runs until there are but two nodes.
    worker = "echo worker $RANK of $WORLD_SIZE; [ $GROUP_WORLD_SIZE = 2 ] || exec sleep 300"
    left = three_nodes_lose_one(start, [launcher, endpoint, "c", 2, 3, 2, "/bin/sh", "-c", worker])
    for node in left:
        assert node.end() == 0, node.lines
        assert node.find("stopping the workers: .*lost")
        assert len([line for line in node.lines if re.match(r"worker \d of 4", line)]) == 2
        assert len([line for line in node.lines if line.endswith("exit code 0")]) == 2


def test_c_launcher_is_stopped(start: Start, tmp_path: Path, endpoint: str) -> None:
    launcher = tmp_path / "launcher"
    build(
        "cc",
        f"-I{REPOSITORY / 'include'}",
        EXAMPLES / "c" / "launcher.c",
        BUILD / "librallypoint.so",
        "-o",
        launcher,
    )
    node = start(launcher, endpoint, "c", 1, 1, 1, "/bin/sh", "-c", "echo up; exec sleep 300")
    node.find("up")
    node.process.terminate()
    assert node.end() == 1
    node.find("CANCELED")


def test_cpp_service_shares_its_store_with_torch(
    start: Start, tmp_path: Path, endpoint: str
) -> None:
    service = tmp_path / "service"
    build(
        "c++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{REPOSITORY / 'include'}",
        EXAMPLES / "cpp" / "service.cpp",
        BUILD / "librallypoint.so",
        "-o",
        service,
    )
    left = three_nodes_lose_one(start, [service, endpoint, "cpp", 2, 3])
    where = left[0].find(ROUND.format(2) + r", store at (\S+) (\d+)")
    reader = start(sys.executable, EXAMPLES / "cpp" / "read.py", where[3], where[4], 2)
    assert reader.end() == 0, reader.lines
    reader.find(r"requests of 1: \d+")
    for node in left:
        assert node.end() == 0, node.lines
        node.find("^done$")


def finish(left: list[Node]) -> None:
    for node in left:
        node.find("regrouping")
        node.find("^done$")
        assert node.end() == 0, node.lines


@pytest.mark.long
def test_go(start: Start, tmp_path: Path, endpoint: str) -> None:
    build("go", "build", "-o", tmp_path / "node", "./examples/go")
    finish(three_nodes_lose_one(start, [tmp_path / "node", endpoint, "go", 2, 3]))


@pytest.mark.long
def test_node(start: Start, tmp_path: Path, endpoint: str) -> None:
    folder = tmp_path / "node"
    shutil.copytree(EXAMPLES / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    build("npm", "ci", "--no-audit", "--no-fund", cwd=folder)
    finish(three_nodes_lose_one(start, ["node", folder / "node.js", endpoint, "node", 2, 3]))


@pytest.mark.long
def test_java(start: Start, tmp_path: Path, endpoint: str) -> None:
    jar = tmp_path / "jna-5.17.0.jar"
    build(
        "mvn",
        "-q",
        "-B",
        "dependency:copy",
        "-Dartifact=net.java.dev.jna:jna:5.17.0",
        f"-DoutputDirectory={tmp_path}",
        cwd=tmp_path,
    )
    sources = sorted((EXAMPLES / "java").glob("*.java"))
    build("javac", "-Xlint:all", "-Werror", "-cp", jar, "-d", tmp_path / "classes", *sources)
    path = f"{jar}:{tmp_path / 'classes'}"
    finish(three_nodes_lose_one(start, ["java", "-cp", path, "Node", endpoint, "java", 2, 3]))


@pytest.mark.long
def test_rust(start: Start, tmp_path: Path, endpoint: str) -> None:
    environment(tmp_path)  # the linker looks there
    build(
        "cargo",
        "build",
        "--quiet",
        "--locked",
        "--examples",
        cwd=EXAMPLES / "rust",
        CARGO_TARGET_DIR=str(tmp_path / "target"),
        RALLYPOINT_LIB_DIR=str(tmp_path),
    )
    build(
        "cargo",
        "test",
        "--quiet",
        "--locked",
        cwd=EXAMPLES / "rust",
        CARGO_TARGET_DIR=str(tmp_path / "target"),
        RALLYPOINT_LIB_DIR=str(tmp_path),
        LD_LIBRARY_PATH=str(tmp_path),
    )
    node = tmp_path / "target" / "debug" / "examples" / "node"
    finish(three_nodes_lose_one(start, [node, endpoint, "rust", 2, 3]))

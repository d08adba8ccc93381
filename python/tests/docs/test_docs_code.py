"""The code blocks of the documentation: their syntax, the options and names in them, and
what they do where one machine is enough.

docs/signals.md, docs/c.md and docs/libraries have tests of their own that run each block.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from harness import free_port

import rallypoint

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = [sys.executable, "-m", "rallypoint"]


def blocks(*kinds: str) -> list[tuple[str, str]]:
    """Page and text of each block of these languages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            heading = text[: match.start()].rstrip().rpartition("\n")[2].startswith("#")
            if page.name == "python.md" and heading:  # a signature, not a program
                continue
            if match[2] in kinds:
                found.append((str(page.relative_to(REPOSITORY)), textwrap.dedent(match[3])))
    return found


def ids(found: list[tuple[str, str]]) -> list[str]:
    return [f"{page}-{i}" for i, (page, _) in enumerate(found)]


SHELL, PYTHON, DATA = blocks("sh"), blocks("python"), blocks("json", "yaml")


def test_there_are_blocks() -> None:
    assert len(SHELL) > 20 and len(PYTHON) > 6 and DATA


@functools.cache
def options_of(*command: str) -> set[str]:
    """What the help of a command lists."""
    named = [word for word in command if word != "COMMAND"]  # any of its commands
    done = subprocess.run([*COMMAND, *named, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^\s+(?:-\w, )?(--[\w-]+)", done.stdout, re.MULTILINE)) | {"--help"}


@functools.cache
def options_of_torchrun() -> set[str]:
    from torch.distributed.run import get_args_parser

    options = set(get_args_parser()._option_string_actions)
    return options | {option.replace("_", "-") for option in options}


def commands(block: str) -> Iterator[list[str]]:
    """The simple commands of a block, as words."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"\w+=.*", words[0]):
            del words[0]
        if words:
            yield words


def given(words: list[str], with_values: bool) -> list[str]:
    """The options in front of the script, or all of them."""
    found = []
    for word in words:
        if word.startswith("--") and word != "--":
            found.append(word.partition("=")[0])
        elif with_values and (word.endswith((".py", ".sh")) or word.startswith(("./", "-m"))):
            break
    return found


def problems(words: list[str]) -> Iterator[str]:
    name, *rest = words
    if name == "rallypoint" and rest:
        command = [rest[0]]
        if rest[0] in ("admin", "store", "token", "completion") and len(rest) > 1:
            command.append(rest[1])
        known = options_of(*command)
        for option in given(rest[len(command) :], rest[0] in ("run", "launch", "prove")):
            if option not in known:
                yield f"rallypoint {' '.join(command)} has no option {option}"
    elif name == "torchrun":
        for option in given(rest, True):
            if option not in options_of_torchrun():
                yield f"torchrun has no option {option}"
    elif name == "make":
        makefiles = (REPOSITORY / "Makefile", *REPOSITORY.glob("*/*.mk"))
        text = "".join(file.read_text() for file in makefiles)
        for target in rest:
            if "=" not in target and not re.search(
                rf"^(?:[\w/.-]+ )*{re.escape(target)}(?: [\w/.-]+)*:", text, re.MULTILINE
            ):
                yield f"there is no target {target}"
    for word in rest:
        path = word.partition(":")[0]
        if path.startswith(("examples/", "packaging/", "bench/")) and not (
            (REPOSITORY / path).exists() or path == "bench/results"
        ):
            yield f"there is no file {path}"


@pytest.mark.parametrize(("page", "block"), SHELL, ids=ids(SHELL))
def test_shell(page: str, block: str) -> None:
    """bash takes the block; the commands have the options, the files and targets exist."""
    parsed = subprocess.run(["bash", "-n", "-c", block], capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    if "torchrun" in block:
        pytest.importorskip("torch")
    if "<<" not in block:
        assert [problem for words in commands(block) for problem in problems(words)] == []


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=ids(PYTHON))
def test_python(page: str, block: str) -> None:
    """The block is Python, and rallypoint has the names that it uses."""
    tree = ast.parse(block, page)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rallypoint"):
            if (node.module or "").startswith("rallypoint.integrations."):
                # It imports its library: test_libraries.py runs the block.
                source = REPOSITORY / "python" / f"{(node.module or '').replace('.', '/')}.py"
                made = {c.name for c in ast.parse(source.read_text()).body if hasattr(c, "name")}
                assert {name.name for name in node.names} <= made
                continue
            if node.module != "rallypoint":
                pytest.importorskip("torch")
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "rallypoint"
            and not (REPOSITORY / "python" / "rallypoint" / f"{node.attr}.py").exists()
        ):
            assert hasattr(rallypoint, node.attr), f"rallypoint has no {node.attr}"


@pytest.mark.parametrize(("page", "block"), DATA, ids=ids(DATA))
def test_data(page: str, block: str) -> None:
    try:
        json.loads(block)
    except ValueError:
        pytest.importorskip("yaml").safe_load(block)


def block_with(page: str, text: str) -> str:
    [found] = [block for name, block in SHELL + PYTHON if name == page and text in block]
    return found


def test_the_token_of_security(tmp_path: Path) -> None:
    """The three lines about a token, with a free port in the place of 0.0.0.0:29400."""
    make, serve, export = block_with("docs/security.md", "token new").strip().splitlines()
    endpoint = f"127.0.0.1:{free_port()}"
    serve = serve.replace("0.0.0.0:29400", endpoint)
    path = os.environ["PATH"]
    if not shutil.which("rallypoint"):
        path = f"{Path(sys.executable).parent}:{path}"
    env = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-ec", make], cwd=tmp_path, env=env, check=True)
    with subprocess.Popen(
        ["bash", "-c", f"exec {serve}"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout and endpoint in server.stdout.readline()
            ask = f"{export}\nrallypoint status {endpoint}"
            done = subprocess.run(
                ["bash", "-ec", ask], cwd=tmp_path, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0 and "No run is known" in done.stdout, done.stderr
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", ["rallypoint run", "torchrun"])
def test_the_first_job_of_start(launcher: str, tmp_path: Path) -> None:
    """docs/start.md: the script, and its command on two nodes, which are this machine."""
    pytest.importorskip("torch")
    (tmp_path / "hello.py").write_text(block_with("docs/start.md", "# hello.py"))
    [command] = [
        block
        for page, block in SHELL
        if page == "docs/start.md" and block.startswith(launcher) and "hello.py" in block
    ]
    command = command.replace("127.0.0.1:29400", f"127.0.0.1:{free_port()}")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    nodes = [
        subprocess.Popen(
            ["bash", "-c", command], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    deadline = time.monotonic() + 500
    said = [node.communicate(timeout=deadline - time.monotonic())[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    # print writes the end of a line by itself, so lines of two workers may mix.
    told = sorted(re.findall("rank . of 4, round 1", "".join(said)))
    assert told == [f"rank {rank} of 4, round 1" for rank in range(4)]

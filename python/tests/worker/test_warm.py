"""What the template of the workers imports, and what its workers do not share."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import REPOSITORY

SITE = REPOSITORY / "agent" / "process" / "sitecustomize.py"
TEMPLATE = SITE.with_name("template.py")


@pytest.fixture(scope="module")
def template() -> SimpleNamespace:
    """The functions of the template, which does nothing yet."""
    text, main, _ = SITE.read_text().partition("\nmain()\n")
    assert main
    names: dict[str, object] = {"__name__": "template", "__file__": str(TEMPLATE)}
    exec(compile(text, str(SITE), "exec"), names)
    exec(compile(TEMPLATE.read_text(), str(TEMPLATE), "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("import json, os.path as p", ["json", "os.path"]),
        ("from json import decoder\nfrom xml.dom import *", ["json", "xml.dom"]),
        ("import sys, no_such_module, json", ["json"]),
        ("def f():\n  import json\nclass C:\n  import json\nif True:\n  import json", []),
        ("try:\n  import json\nexcept ImportError:\n  import ast", ["json"]),
        ("import helper, ast", ["json", "xml.dom", "ast"]),
        ("import pkg.sub", ["json", "csv"]),
        ("from pkg import sub", ["json", "csv"]),
        ("import lightning, pytorch_lightning.x, ast", ["ast"]),
        ("import ast\nimport os\nos.environ['A'] = 'b'\nimport json", ["ast", "os"]),
        ("import os\nos.environ.setdefault('A', 'b')\nimport json", ["os"]),
        ("import os\nif os.environ.get('A'):\n  del os.environ['A']\nimport json", ["os"]),
        ("import os\nx = os.environ['HOME'], os.environ.get('A')\nimport json", ["os", "json"]),
        ("import os\ndef f(): os.environ['A'] = 'b'\nimport json", ["os", "json"]),
        ("import ast\nx = " + " + ".join(["1"] * 1200) + "\nimport json", ["ast", "json"]),
        ("import (", []),
        ("\0", []),
        ("import train, json", ["json"]),
    ],
)
def test_what_a_script_imports(
    template: SimpleNamespace, tmp_path: Path, script: str, wanted: list[str]
) -> None:
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "helper.py").write_text("raise SystemExit\nimport json\nfrom xml.dom import x")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import json")
    (tmp_path / "pkg" / "sub.py").write_text("from . import leaf")
    (tmp_path / "pkg" / "leaf.py").write_text("from .sub import x\nimport csv")
    reader = template.wanted_by("script", str(tmp_path / "train.py"))
    assert [name for name, _, _ in reader.wanted] == wanted
    assert reader.own == str(tmp_path)
    assert not [path for path in sys.path_importer_cache if path.startswith(str(tmp_path))]


def test_environment_of_a_worker(template: SimpleNamespace) -> None:
    before = {b"SAME": b"1", b"GONE": b"1", b"OWN": b"1"}
    after = {b"SAME": b"1", b"OWN": b"imports", b"NEW": b"1"}
    worker = {b"SAME": b"1", b"GONE": b"1", b"OWN": b"worker", b"RANK": b"0"}
    merged = template.merged(dict(worker), before, after)
    assert merged == {b"SAME": b"1", b"OWN": b"worker", b"NEW": b"1", b"RANK": b"0"}


LAUNCHES = """
import os, sys
import rallypoint

def loaded(expected):
    return os.environ["RANK"], os.getppid() == expected, "xml.dom" in sys.modules

def launch(entry, *args, **more):
    config = rallypoint.LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="job", max_restarts=0, **more)
    return rallypoint.elastic_launch(config, entry)(*args)

if __name__ == "__main__":
    me = os.getpid()
    print(launch(loaded, me))
    print(launch(loaded, me, warm=True, preload=["xml.dom"]))
    print(launch(loaded, me, warm=True, preload=["xml.dom"], virtual_local_rank=True))
    print(launch([sys.executable, sys.argv[1]], warm=True))
    for wrong in ("a b", ""):
        try:
            launch(loaded, me, warm=True, preload=[wrong])
        except rallypoint.InvalidError as e:
            print(e)
"""


def test_launches_that_fork(tmp_path: Path) -> None:
    """LaunchConfig(warm=) forks functions and commands, and says what it cannot fork."""
    (tmp_path / "launches.py").write_text(LAUNCHES)
    (tmp_path / "train.py").write_text(
        "import sys\nassert 'xml.dom' in sys.modules\nimport xml.dom\n"
    )
    ended = subprocess.run(
        [sys.executable, tmp_path / "launches.py", tmp_path / "train.py"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    cold, warm, virtual, command, *wrong = ended.stdout.splitlines()
    assert cold.count("True, False") == 2, ended.stdout
    assert warm.count("True, True") == 2, ended.stdout
    assert virtual == cold  # the workers' command lines differ
    assert command == "{0: None, 1: None}"
    assert [text for text in wrong if "is not the name of a module" in text] == wrong
    assert len(wrong) == 2


def test_steps_of_a_script_that_imports_the_call(tmp_path: Path) -> None:
    """The template has then imported it, and each worker has a record of its own."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "from rallypoint import progress\n"
        "record = lambda: open(os.environ['RALLYPOINT_PROGRESS_FILE'], 'rb').read()\n"
        "knows = record()[40]\n"
        "progress(int(os.environ['RANK']) + 7)\n"
        "sys.stdout.write(f'{knows} {record()[16]}\\n')\n"
    )
    run = [REPOSITORY / "build" / "rallypoint", "run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "INFO"}
    done = subprocess.run(
        [*run, "--warm", script], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and "forked from a template" in done.stderr, done.stderr
    assert sorted(done.stdout.splitlines()) == ["1 7", "1 8"]


_COVERED = """
import json
import os
import helper

def called():
    return json.dumps({"rank": os.environ["RANK"]})

def never():
    return 1

print(called(), helper.twice(2))
"""


def covered(folder: Path, how: str, *options: str) -> dict[str, object]:
    """What coverage reports for each file of a script that two workers run."""
    folder.mkdir()
    (folder / "train.py").write_text(_COVERED)
    (folder / "helper.py").write_text("def twice(x):\n    return 2 * x\ndef no():\n    pass\n")
    (folder / ".coveragerc").write_text("[run]\nparallel = true\nbranch = true\nsource = .\n")
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "INFO"}
    command = ["-m", "coverage", "run", "train.py"]
    if how != "coverage run":
        command = ["train.py"]
    if how == "pth":  # which coverage installs beside itself
        environment["COVERAGE_PROCESS_START"] = ".coveragerc"
    if how == "sitecustomize":
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(
            "import coverage, os\nos.environ['COVERAGE_PROCESS_START'] = '.coveragerc'\n"
            "coverage.process_startup()\n"
        )
        environment["PYTHONPATH"] = "site"
    run = [REPOSITORY / "build" / "rallypoint", "run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*run, *options, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert ("forked from a template" in done.stderr) == ("--warm" in options), done.stderr
    assert len(list(folder.glob(".coverage.*"))) == 2
    for then in ("combine", "json"):
        subprocess.run([sys.executable, "-m", "coverage", then, "-q"], cwd=folder, check=True)
    files: dict[str, object] = json.loads((folder / "coverage.json").read_text())["files"]
    return {name: data for name, data in files.items() if not name.startswith("site")}


@pytest.mark.parametrize("how", ["coverage run", "pth", "sitecustomize"])
def test_coverage_is_as_in_workers_that_start_cold(tmp_path: Path, how: str) -> None:
    pytest.importorskip("coverage", minversion="7.11")  # whose folder of packages has the .pth
    cold = covered(tmp_path / "cold", how)
    assert sorted(cold) == ["helper.py", "train.py"]
    assert covered(tmp_path / "warm", how, "--warm") == cold


@pytest.mark.long
def test_ranks_draw_numbers_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import random, os\nimport numpy, torch\n"
        "numbers = random.random(), numpy.random.rand(), torch.rand(1).item()\n"
        "os.write(1, f'{numbers}\\n'.encode())\n"
    )
    command = [REPOSITORY / "build" / "rallypoint", "run", "--warm", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node=4", script],
        env={**os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "INFO"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "template that has imported numpy, os, random, torch in" in done.stderr
    drawn = [line.strip("()").split(", ") for line in done.stdout.splitlines()]
    assert len(drawn) == 4
    for column in zip(*drawn):
        assert len(set(column)) == 4, drawn


_TORCH = {
    "data": """
import os
import torch
from torch.utils.data import DataLoader, get_worker_info

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, at):
        return at, get_worker_info().id, os.getppid() == parent

parent = os.getpid()
if __name__ == "__main__":
    torch.manual_seed(0)
    for start in ("fork", "forkserver", "spawn"):
        parent = os.getpid() if start == "fork" else 0
        loaded = DataLoader(Numbers(), 2, True, num_workers=2, multiprocessing_context=start)
        print(start, [[column.tolist() for column in batch[:2]] for batch in loaded])
""",
    "training": """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)

@torch.compile(backend="aot_eager")
def loss_of(batch):
    return model(batch).square().sum()

for step in range(3):
    optimizer.zero_grad()
    loss = loss_of(torch.rand(2, 4))
    loss.backward()
    optimizer.step()
    print(step, loss.item(), torch.initial_seed(), torch.get_num_threads())
dist.destroy_process_group()
""",
    "processes": """
import torch
import torch.multiprocessing as mp

class Model(torch.nn.Linear):
    pass

def work(rank, shared):
    shared[rank] = rank + 1

if __name__ == "__main__":
    shared = torch.zeros(2).share_memory_()
    mp.spawn(work, (shared,), nprocs=2)
    torch.save(Model(1, 1), f := __import__("io").BytesIO())
    f.seek(0)
    print(shared, type(torch.load(f, weights_only=False)), Model.__module__)
""",
    "rpc and checkpoint": """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import rpc
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def answer(number):
    return rank, number

if __name__ == "__main__":  # the process of the checkpoint imports this file
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world)
    print([rpc.rpc_sync(f"rank{to}", answer, (10 * rank + to,)) for to in range(world)])
    rpc.shutdown()
    dist.init_process_group("gloo")
    for how in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
        folder = f"checkpoint-{how.value}"
        weight = {f"weight{rank}": torch.full((4,), float(rank))}
        dcp.async_save(weight, checkpoint_id=folder, async_checkpointer_type=how).result()
        dist.barrier()
        other = {f"weight{(rank + 1) % world}": torch.empty(4)}
        dcp.load(other, checkpoint_id=folder)
        print(how, other)
        dist.barrier()
    dist.destroy_process_group()
""",
}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(_TORCH))
def test_torch_is_as_in_workers_that_start_cold(tmp_path: Path, name: str) -> None:
    """What each rank of two prints, with a template and without."""
    (tmp_path / "train.py").write_text(_TORCH[name])
    command = [REPOSITORY / "build" / "rallypoint", "run", "--standalone", "--nproc-per-node=2"]
    command += ["-r3", "--log-dir=logs"]
    said = []
    for kind in ("cold", "warm"):
        folder = tmp_path / kind
        folder.mkdir()
        done = subprocess.run(
            [*command, *["--warm"] * (kind == "warm"), "../train.py"],
            cwd=folder,
            env={**os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "INFO"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        logs = sorted((folder / "logs").glob("*/attempt_0/*/std*.log"))
        texts = [(*log.parts[-2:], log.read_text()) for log in logs]
        assert done.returncode == 0, (done.stderr, texts)
        assert ("forked from a template that has imported" in done.stderr) == (kind == "warm")
        assert "start cold" not in done.stderr
        assert all(text for _, stream, text in texts if stream == "stdout.log")
        # The lines of torch's loggers have times, pids, ports and uuids.
        plain = re.compile(r"[0-9a-f-]{36}|\d+")
        said.append([t if t[1] == "stdout.log" else plain.sub("", t[2]) for t in texts])
    assert said[0] == said[1]


_STEPS = """
import os, struct, sys, warnings
import torch

def counted():
    with open(os.environ["RALLYPOINT_PROGRESS_FILE"], "rb") as f:
        return struct.unpack("<8q", f.read())[7]

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
step = optimizer.step
if sys.argv[1] == "compiled":
    step = torch.compile(optimizer.step, backend="eager")
scaler = torch.amp.GradScaler("cpu", enabled=True)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    scaled = sys.argv[1] == "scaled"
    for i in range(10 if scaled else 5):
        loss = model(torch.ones(2, 4)).sum()
        if i >= 5:  # which the scaler skips
            loss = loss * float("inf")
        (scaler.scale(loss) if scaled else loss).backward()
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            step()
        optimizer.zero_grad()
print(counted(), sorted(str(each.message) for each in warned))
if sys.argv[1] == "compiled":
    from torch._dynamo.utils import counters
    print(sorted(counters["graph_break"].values()), counters["frames"]["ok"])
"""


def steps(folder: Path, how: str, *options: str) -> tuple[int, str]:
    """The steps that a worker's record counts, and what dynamo and warnings said."""
    (folder / "train.py").write_text(_STEPS)
    command = [REPOSITORY / "build" / "rallypoint", "run", "--standalone", *options]
    done = subprocess.run(
        [*command, folder / "train.py", how],
        env={**os.environ, "PYTHON_EXEC": sys.executable, "RALLYPOINT_AUTO_PROGRESS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    count, _, rest = done.stdout.partition(" ")
    return int(count), rest


@pytest.mark.parametrize(
    ("option", "counted"),
    [("", "5"), pytest.param(", auto_progress=False", "0", marks=pytest.mark.long)],
)
def test_steps_of_a_launch(tmp_path: Path, option: str, counted: str) -> None:
    """LaunchConfig counts the steps of a command that starts cold, unless it is told not to."""
    (tmp_path / "train.py").write_text(_STEPS)
    launch = (
        "import sys, rallypoint; rallypoint.elastic_launch(rallypoint.LaunchConfig(min_nodes=1,"
        f" max_nodes=1, nproc_per_node=1, run_id='job'{option}),"
        " [sys.executable, sys.argv[1], 'plain'])()"
    )
    command = [sys.executable, "-c", launch, tmp_path / "train.py"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, check=True)
    assert done.stdout.split()[0] == counted


def test_a_torch_without_the_hook(tmp_path: Path) -> None:
    """It is said once a node that its steps are not counted; the job runs."""
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    for file in ("__init__.py", "optim/__init__.py", "optim/optimizer.py"):
        (tmp_path / "torch" / file).write_text("")
    (tmp_path / "train.py").write_text("import torch.optim.optimizer\nprint('done')\n")
    command = [REPOSITORY / "build" / "rallypoint", "run", "--standalone", "--nproc-per-node=2"]
    for option in ("--auto-progress", "--warm"):
        done = subprocess.run(
            [*command, option, tmp_path / "train.py"],
            env={**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("done") == 2
        said = "rallypoint: the steps of torch's optimizers are not counted: torch has no hook"
        assert done.stderr.count(said) == 1, done.stderr


@pytest.mark.parametrize(("how", "option"), [("plain", "--auto-progress"), ("scaled", "--warm")])
def test_steps_of_torchs_optimizers(tmp_path: Path, how: str, option: str) -> None:
    """Those that a scaler skips are none."""
    assert steps(tmp_path, how, option)[0] == 5


@pytest.mark.long
def test_compiled_steps_are_as_without_the_hook(tmp_path: Path) -> None:
    without, said = steps(tmp_path, "compiled")
    assert without == 0
    assert steps(tmp_path, "compiled", "--auto-progress") == (5, said)

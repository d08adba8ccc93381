"""Every function of the header, with every argument wrong in turn, gives its code.

The cases follow from the header: a function that is added there is tested here, or the
test says that it does not know one of its arguments.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import header
import pytest

from rallypoint import Code
from rallypoint._native import abi, library

FUNCTIONS = header.functions()
STRUCTS = header.structs()
HANDLES = {name for name, fields in STRUCTS.items() if [f.name for f in fields] == ["id"]}
SIZED = {name for name, fields in STRUCTS.items() if fields[0].name == "struct_size"}

# Functions that return no code. rp_main has tests of its own; the others take what was
# handed out, or NULL.
WITHOUT_CODE = {name for name, f in FUNCTIONS.items() if f.result != "int32_t"}

# (function or "*", argument): NULL, or a length of 0, is allowed there.
OPTIONAL = {
    ("*", "err"),
    ("*", "reason"),
    ("*", "user"),
    ("rp_log_set_callback", "callback"),
    ("rp_member_reason", "text"),
}

# Structs that are read; the others are written.
READ = {name for name in SIZED if name.endswith(("_config", "_request", "_backend"))}

# Structs that have grown: how long they were at first, and may still be.
FIRST_SIZE = {
    abi.AgentConfig: abi.AgentConfig.numa_binding.offset,
    abi.Outcome: abi.Outcome.advertised_addr.offset,
    abi.AgentEvent: abi.AgentEvent.advertised_addr.offset,
}

HUGE = 1 << 40

COMPARE_SET, MULTI_SET = 4, 12


def make_text(n: int = 8) -> bytes:
    return b"x" * n


class Objects:
    """One open handle of each kind, and arguments that are right."""

    def __init__(self) -> None:
        self.keep: list[Any] = []
        self.handles: dict[str, Any] = {}
        lib = library.load()

        def made(kind: str, function: str, *args: Any) -> None:
            handle = abi.STRUCTS[kind]()
            code = getattr(lib, function)(*args, ctypes.byref(handle), None)
            assert code == abi.OK, function
            self.handles[kind] = handle

        made("rp_store", "rp_store_open_hash")
        server = abi.StoreServerConfig(host=b"127.0.0.1")
        made("rp_store_server", "rp_store_server_start", ctypes.byref(server))
        member = self.struct("rp_member_config")
        made("rp_member", "rp_member_open", ctypes.byref(member))
        agent = self.struct("rp_agent_config")
        made("rp_agent", "rp_agent_open", ctypes.byref(agent))
        etcd = self.struct("rp_etcd_server_config")
        made("rp_etcd_server", "rp_etcd_server_start", ctypes.byref(etcd), 1000)
        fence = self.struct("rp_fence_config")
        made("rp_fence", "rp_fence_open", ctypes.byref(fence), 1000)
        request = self.struct("rp_store_request")
        made("rp_op", "rp_store_start", self.handles["rp_store"], ctypes.byref(request))

    def struct(self, kind: str) -> Any:
        """A struct that a function would take."""
        made = abi.STRUCTS[kind]()
        if kind == "rp_member_config":
            made.run_id, made.endpoint, made.min_nodes, made.max_nodes = b"r", b"127.0.0.1", 1, 1
        elif kind == "rp_agent_config":
            argv = (ctypes.c_char_p * 1)(b"true")
            self.keep.append(argv)
            made.argv, made.argv_len, made.workers = argv, 1, 1
        elif kind == "rp_store_request":
            made.op, made.timeout_ms = 9, 1000  # num_keys
        elif kind == "rp_store_config":
            made.host, made.port = b"127.0.0.1", 1
        elif kind == "rp_store_server_config":
            made.host = b"127.0.0.1"
        elif kind == "rp_etcd_server_config":
            made.binary = b"/bin/true"  # a handle is made, whatever becomes of the process
        elif kind == "rp_store_file_config":
            made.path = b"/nonexistent/store"
        elif kind == "rp_fence_config":
            made.path = b"/nonexistent/checkpoint"
        elif kind == "rp_backend":
            made.get, made.set = abi.BackendGet(lambda *_: 0), abi.BackendSet(lambda *_: 0)
        self.keep.append(made)
        return made

    def right(self, argument: header.Variable) -> Any:
        kind = argument.type.removesuffix("*")
        if argument.type in HANDLES:
            return self.handles[argument.type]
        if argument.name == "err" or argument.type in ("rp_log_callback",):
            return None if argument.name == "err" else abi.LogCallback()
        if argument.type == "rp_op_callback":
            self.keep.append(abi.OpCallback(lambda _user: None))
            return self.keep[-1]
        if argument.type.endswith("*") and kind in abi.STRUCTS:
            return ctypes.byref(self.struct(kind))
        if argument.type in ("void*", "char*"):
            return None if argument.name == "user" else b"xxxxxxxx"
        if argument.type in ("int32_t*", "int64_t*", "size_t*"):
            number = {"int32_t*": ctypes.c_int32, "int64_t*": ctypes.c_int64}.get(
                argument.type, ctypes.c_size_t
            )()
            self.keep.append(number)
            return ctypes.byref(number)
        assert argument.type in ("int32_t", "int64_t", "uint64_t", "size_t"), argument
        if argument.type == "size_t":
            return 1
        return 1000 if argument.name == "within_ms" else 0


def arguments(objects: Objects, function: header.Function) -> list[Any]:
    return [objects.right(a) for a in function.arguments]


def optional(function: str, argument: str) -> bool:
    return ("*", argument) in OPTIONAL or (function, argument) in OPTIONAL


def wrong(function: header.Function) -> Iterator[tuple[str, int, str, Any, Code]]:
    """What is wrong, which argument, how to make it, and the code expected."""
    names = [a.name for a in function.arguments]
    for i, a in enumerate(function.arguments):
        kind = a.type.removesuffix("*")
        if a.type in HANDLES:
            for what in ("zero", "closed", "foreign", "any number"):
                yield f"{a.name} {what}", i, what, None, Code.HANDLE
        elif a.name == "timeout_ms":
            yield "timeout_ms -2", i, "value", -2, Code.INVALID
        elif a.type.endswith("*") and not optional(function.name, a.name):
            yield f"{a.name} NULL", i, "value", None, Code.INVALID
        if a.type.endswith("*") and kind in SIZED and a.name != "err":
            yield f"{a.name} too short", i, "short", None, Code.INVALID
            if kind in READ:
                yield f"{a.name} too long", i, "long", None, Code.INVALID
                yield f"{a.name} of the future", i, "future", None, Code.INVALID
                yield from text_fields(a, i)
        if a.name == "err":
            yield "err too short", i, "short", None, Code.INVALID
        if a.name == "within_ms":
            yield "within_ms 0", i, "value", 0, Code.INVALID
        if a.name == "step":
            yield "step negative", i, "value", -1, Code.INVALID
        if a.name in ("reason",):
            yield f"{a.name} not UTF-8", i, "value", b"\xff", Code.INVALID
        if a.type == "size_t" and f"{a.name.removesuffix('_len')}" in names:
            yield f"{a.name} huge", i, "value", HUGE, Code.TOO_LARGE
        if a.name == "len":
            yield "len huge", i, "value", HUGE, Code.TOO_LARGE


def text_fields(argument: header.Variable, i: int) -> Iterator[tuple[str, int, str, Any, Code]]:
    """Fields that are texts, or bytes or lists with a length."""
    fields = STRUCTS[argument.type.removesuffix("*")]
    names = {f.name for f in fields}
    for f in fields:
        if f.type == "char*":
            yield f"{argument.name}.{f.name} not UTF-8", i, "field", (f.name, b"\xff"), Code.INVALID
        elif f.type == "rp_bytes":
            huge, hole = abi.Bytes(b"x", HUGE), abi.Bytes(None, 3)
            yield f"{argument.name}.{f.name} huge", i, "field", (f.name, huge), Code.TOO_LARGE
            yield f"{argument.name}.{f.name} NULL", i, "field", (f.name, hole), Code.INVALID
        elif f.name.endswith("_len") and f.name.removesuffix("_len") in names:
            yield f"{argument.name}.{f.name} huge", i, "field", (f.name, HUGE), Code.TOO_LARGE
            if f.name != "argv_len":
                yield f"{argument.name}.{f.name} NULL", i, "field", (f.name, 1), Code.INVALID
        elif f.name == "flags":
            yield f"{argument.name}.flags unknown", i, "field", (f.name, 1 << 31), Code.INVALID


def spoil(objects: Objects, argument: header.Variable, how: str, value: Any) -> Any:
    """The wrong argument."""
    if how == "value":
        return value
    if argument.type in HANDLES:
        number = {"zero": 0, "any number": 2**64 - 1, "closed": closed(argument.type)}.get(how)
        if how == "foreign":
            other = "rp_member" if argument.type != "rp_member" else "rp_store"
            number = objects.handles[other].id
        return abi.STRUCTS[argument.type](number)
    struct = objects.struct(argument.type.removesuffix("*"))
    if how == "short":
        struct.struct_size = FIRST_SIZE.get(type(struct), struct.struct_size) - 1
    elif how == "long":
        struct.struct_size = 1 << 20
    elif how == "future":  # a newer program sets a field that this library does not know
        raw = ctypes.create_string_buffer(ctypes.sizeof(struct) + 8)
        struct.struct_size += 8
        ctypes.memmove(raw, ctypes.byref(struct), ctypes.sizeof(struct))
        raw[-1] = b"\1"
        objects.keep += [raw]
        return ctypes.cast(raw, ctypes.POINTER(type(struct)))
    else:
        setattr(struct, *value)
        if argument.type == "rp_store_request*":  # an operation that names the field
            struct.op = MULTI_SET if value[0] in ("keys_len", "values_len") else COMPARE_SET
    return ctypes.byref(struct)


def closed(kind: str) -> int:
    """The number of a handle of this kind that was closed."""
    once = Objects()
    number: int = once.handles[kind].id
    close(once)
    return number


def close(objects: Objects) -> None:
    for kind, function in CLOSERS:
        assert getattr(library.load(), function)(objects.handles[kind], None) == abi.OK


CLOSERS = [
    ("rp_op", "rp_op_free"),
    ("rp_fence", "rp_fence_close"),
    ("rp_agent", "rp_agent_close"),
    ("rp_member", "rp_member_close"),
    ("rp_store", "rp_store_close"),
    ("rp_store_server", "rp_store_server_stop"),
    ("rp_etcd_server", "rp_etcd_server_stop"),
]


@pytest.fixture(scope="module")
def objects() -> Iterator[Objects]:
    made = Objects()
    yield made
    close(made)


CASES = [
    pytest.param(name, *case, id=f"{name}: {case[0]}")
    for name, function in FUNCTIONS.items()
    if name not in WITHOUT_CODE
    for case in wrong(function)
]


@pytest.mark.parametrize(("name", "what", "index", "how", "value", "code"), CASES)
def test_wrong_argument(
    objects: Objects, name: str, what: str, index: int, how: str, value: Any, code: Code
) -> None:
    function = FUNCTIONS[name]
    args = arguments(objects, function)
    args[index] = spoil(objects, function.arguments[index], how, value)
    error = abi.Error(code=-1)
    if function.arguments[index].name != "err":
        args[-1] = ctypes.byref(error)
    got = getattr(library.load(), name)(*args)
    assert got == code, f"{what}: {Code(got).name if got > 1 else got}: {error.message.decode()}"
    if function.arguments[index].name != "err":
        assert error.code == code and error.message


def test_every_function_has_cases() -> None:
    covered = {case.values[0] for case in CASES}
    free = {"rp_handles_open", "rp_log_set_level", "rp_log_set_callback", "rp_world_changing"}
    assert covered | WITHOUT_CODE | {"rp_world_changing"} == set(FUNCTIONS)
    assert {
        *(name for name in FUNCTIONS if name.endswith("_free") and name != "rp_op_free"),
        "rp_abi_version",
        "rp_code_name",
        "rp_main",
        "rp_version",
    } == WITHOUT_CODE
    for name in set(FUNCTIONS) - WITHOUT_CODE - free:
        cases = [c for c in CASES if c.values[0] == name]
        assert len(cases) >= min(2, len(FUNCTIONS[name].arguments)), name


FORKED = """
import os, sys
from rallypoint._native.abi import PENDING
sys.path[:0] = sys.argv[1:]
import test_arguments as t
objects = t.Objects()
ready = [(n, t.arguments(objects, f)) for n, f in t.FUNCTIONS.items() if n not in t.WITHOUT_CODE]
library = t.library.load()
pid = os.fork()
if pid == 0:
    codes = {name: getattr(library, name)(*args) for name, args in ready}
    own = "rp_progress", "rp_progress_directive", "rp_get_directive", "rp_busy", "rp_busy_end"
    for name in own:
        assert codes.pop(name) == 0  # which need no thread of the library
    assert codes.pop("rp_saved") == PENDING
    assert codes.pop("rp_world_changing") == 0
    assert codes.pop("rp_world_get") == t.Code.INVALID  # there is no rank
    for name in "rp_world_can_regroup", "rp_regroup":
        assert codes.pop(name) == t.Code.UNSUPPORTED
    bad = {n: c for n, c in codes.items() if c != t.Code.FORKED}
    print(len(codes), bad, flush=True)
    os._exit(1 if bad else 0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_every_function_in_a_forked_child() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, here, os.path.dirname(header.__file__)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) == len(FUNCTIONS) - len(WITHOUT_CODE) - 10

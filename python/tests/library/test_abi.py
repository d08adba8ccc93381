"""The header, abi.py, which is written from it, and the library say the same."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import header
import pytest
import python_bindings

from rallypoint import Code, Ending, InvalidError
from rallypoint._launch import directive
from rallypoint._launch.agent import _ON_HANG
from rallypoint._native import abi, library, log

SCALARS = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
    "char*": ctypes.c_char_p,
    "void*": ctypes.c_char_p,
    "char**": ctypes.POINTER(ctypes.c_char_p),
    "char*const**": ctypes.POINTER(ctypes.c_char_p),
    "char*const*": ctypes.POINTER(ctypes.c_char_p),
    "void": None,
}


def ctype(c_type: str, array: int = 0):  # type: ignore[no-untyped-def]
    if array:
        return ctype(c_type) * array
    if c_type in SCALARS:
        return SCALARS[c_type]
    if c_type.endswith("*"):
        return ctypes.POINTER(ctype(c_type[:-1]))
    return abi.CALLBACKS.get(c_type) or abi.STRUCTS[c_type]


def exact(variable: header.Variable, handed_in: bool = True):  # type: ignore[no-untyped-def]
    """The type of an argument. void* is a pointer to bytes, but `user` is the program's.

    What a callback is handed may hold a NUL, where c_char_p would stop.
    """
    if variable.type == "void*" and (variable.name == "user" or not handed_in):
        return ctypes.c_void_p
    return ctype(variable.type, variable.array)


def test_declarations_are_current() -> None:
    assert Path(abi.__file__).read_text() == python_bindings.generate()


def test_functions() -> None:
    functions = header.functions()
    assert list(functions) == list(abi.TABLE), "same functions in the same order"
    for name, function in functions.items():
        result, arguments = abi.TABLE[name]
        assert result == ctype(function.result), name
        assert arguments == tuple(exact(a) for a in function.arguments), name


def test_callbacks() -> None:
    callbacks = header.callbacks()
    assert callbacks.keys() == abi.CALLBACKS.keys()
    for name, function in callbacks.items():
        want = abi.CALLBACKS[name]
        assert want._restype_ == ctype(function.result), name
        assert want._argtypes_ == tuple(exact(a, handed_in=False) for a in function.arguments), name


def test_structs() -> None:
    structs = header.structs()
    assert structs.keys() == abi.STRUCTS.keys()
    for name, fields in structs.items():
        want = []
        for field in fields:
            kind = ctype(field.type, field.array)
            if (name, field.name) in {("rp_buffer", "data"), ("rp_backend", "user")}:
                kind = ctypes.c_void_p  # c_char_p would stop at a NUL
            want.append((field.name, kind))
        assert list(abi.STRUCTS[name]._fields_) == want, name


def test_enums() -> None:
    enums = header.enums()
    for items in enums.values():
        assert items == {key: getattr(abi, key.removeprefix("RP_")) for key in items}
    codes = enums.pop("rp_code")
    assert codes.pop("RP_OK") == abi.OK
    assert codes.pop("RP_PENDING") == abi.PENDING
    assert codes == {f"RP_ERR_{code.name}": code.value for code in Code}
    assert enums.pop("rp_ending") == {f"RP_END_{e.name}": e.value for e in Ending}
    assert enums.pop("rp_member_flag") == {"RP_MEMBER_ENVIRONMENT": abi.MEMBER_ENVIRONMENT}
    assert enums.pop("rp_file_flag") == {"RP_FILE_REMOTE": abi.FILE_REMOTE}
    levels = enums.pop("rp_log_level")
    assert set(levels.values()) == set(log.LEVELS.values())
    kinds = {f"RP_DIRECTIVE_{name.upper()}": kind for kind, name in directive.KINDS.items()}
    assert enums.pop("rp_directive_kind") == {"RP_DIRECTIVE_NONE": 0, **kinds}
    actions = enums.pop("rp_admin_action")
    assert [actions[f"RP_ADMIN_{name.upper()}"] for name in directive.KINDS.values()] == [
        *directive.KINDS
    ]
    assert enums.pop("rp_on_hang") == {f"RP_HANG_{k.upper()}": v for k, v in _ON_HANG.items()}
    for name in (
        "rp_store_op",
        "rp_fence_flag",
        "rp_agent_flag",
        "rp_agent_event_kind",
        "rp_agent_state",
    ):
        del enums[name]  # which have no names but those of _abi
    assert not enums, "an enum that this test does not know"


def test_version() -> None:
    constants = {key.removeprefix("RP_"): value for key, value in header.constants().items()}
    assert constants == {key: getattr(abi, key) for key in constants}
    assert constants.keys() == {"ABI_MAJOR", "ABI_MINOR", "ABI_VERSION", "TEXT"}
    assert ctypes.c_size_t(-1).value == abi.TEXT
    assert library.load().rp_abi_version() == abi.ABI_MAJOR << 16 | abi.ABI_MINOR


def test_version_of_the_package() -> None:
    import rallypoint

    assert library.load().rp_version().decode() == rallypoint.__version__


def test_exported_symbols() -> None:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", library.path()], check=True, capture_output=True, text=True
    ).stdout
    symbols = {line.split()[-1] for line in out.splitlines() if line.split()[-2] != "A"}
    assert symbols == set(header.functions())


def test_names_of_codes() -> None:
    name = library.load().rp_code_name
    for code in Code:
        assert name(code).decode() == code.name
    assert name(12345) == b"UNKNOWN"


@pytest.mark.parametrize("cls", abi.STRUCTS.values(), ids=abi.STRUCTS)
def test_struct_size_is_filled_in(cls: type[ctypes.Structure]) -> None:
    made = cls()
    if hasattr(made, "struct_size"):
        assert made.struct_size == ctypes.sizeof(cls)


def test_agent_config_of_an_older_caller() -> None:
    """A struct that ends before later fields is taken; the bytes after it are not read."""
    config = abi.AgentConfig(
        workers=1, argv=(ctypes.c_char_p * 1)(b"true"), argv_len=1, events_fd=-1
    )
    agent, error = abi.AgentHandle(), abi.Error()
    opened = library.load().rp_agent_open

    def code(size: int) -> int:
        config.struct_size = size
        result: int = opened(ctypes.byref(config), ctypes.byref(agent), ctypes.byref(error))
        return result

    first = abi.AgentConfig.numa_binding.offset
    assert code(first - 8) == Code.INVALID and b"struct_size" in error.message
    assert code(ctypes.sizeof(config)) == Code.INVALID and b"events_fd is -1" in error.message
    assert code(first) == abi.OK
    library.call("rp_agent_close", agent)


@pytest.mark.parametrize("flag", [abi.AGENT_RDZV_EVENTS, abi.AGENT_METRICS])
def test_agent_flags_of_events_fd(flag: int) -> None:
    """They say what is written to a descriptor, and so there must be one."""
    config = abi.AgentConfig(workers=1, argv=(ctypes.c_char_p * 1)(b"true"), argv_len=1, flags=flag)
    agent = abi.AgentHandle()
    with pytest.raises(InvalidError, match="events_fd, but that is 0"):
        library.call("rp_agent_open", ctypes.byref(config), ctypes.byref(agent))


def test_every_function_refuses_missing_arguments(run_python) -> None:  # type: ignore[no-untyped-def]
    """With NULL, 0 and no handle for everything a function fails or does nothing: it does not
    crash, and a failure has a text."""
    run_python(
        """
        import ctypes
        from rallypoint._native import abi, library

        lib = library.load()
        tried = []
        for name, (result, kinds) in abi.TABLE.items():
            if kinds[-1:] != (ctypes.POINTER(abi.Error),):
                continue
            error = abi.Error()
            nothing = [None if issubclass(k, ctypes._Pointer) else k() for k in kinds[:-1]]
            code = getattr(lib, name)(*nothing, ctypes.byref(error))
            tried.append(name)
            assert code <= library.PENDING or (error.code == code and error.message), (name, code)
            assert getattr(lib, name)(*nothing, None) == code, name  # the text is not wanted
        assert len(tried) > 60, tried
        """
    )

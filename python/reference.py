"""Writes docs/python.md, the reference of the package, from its docstrings.

    python python/reference.py >docs/python.md      # make reference

A test compares the two (python/tests/docs/test_docstrings.py).
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import rallypoint
import rallypoint.admin
import rallypoint.agent
import rallypoint.handler
import rallypoint.survive
import rallypoint.timer
from rallypoint._launch import failure_plain as plain

INTRODUCTION = """\
# Python reference

<!-- Written by `make reference` from the docstrings. Do not edit. -->

`import rallypoint` loads neither the library nor torch; both are loaded where they are used, torch
only if it is installed. `examples/launch` shows a launch. Times are in seconds.
`rallypoint.integrations` has callbacks for [transformers](libraries/transformers.md),
[Lightning](libraries/lightning.md) and [accelerate](libraries/accelerate.md), and what
[JAX](libraries/jax.md) needs.

```python
import rallypoint

with rallypoint.Member("job7", "host0:29400", min_nodes=2, max_nodes=4) as member:
    place = member.next()  # waits for the others
    store = rallypoint.connect_store(place.store_addr, place.store_port)
    print(place.rank, place.world_size, store.add("here", 1))
```

Without another node to try it with: `Member("job7", "127.0.0.1:29400")` is a run of one. What a
member logs goes to the logger `rallypoint` of `logging`, or to stderr.
"""

SECTIONS: list[tuple[str, str, list[str]]] = [
    (
        "Launching workers",
        "What torchrun does, from a program. The entry point is a command or a function.",
        ["LaunchConfig", "LogsSpecs", "elastic_launch", "launch_agent"],
    ),
    (
        "In the workers",
        "A worker started with a function needs no `record`. Timers bound the time of a step "
        "where the agent has a watchdog.",
        [
            "progress",
            "directive",
            "saved",
            "Directive",
            "record",
            "ErrorHandler",
            "get_error_handler",
            "timer.configure",
            "timer.expires",
            "timer.FileTimerClient",
            "timer.TimerClient",
        ],
    ),
    (
        "Failures",
        "What `elastic_launch` raises. Where torch is installed these are torch's classes, too.",
        ["ChildFailedError", "ProcessFailure", "SignalException"],
    ),
    (
        "Meeting other nodes",
        "For launchers of your own; torch is not needed.",
        ["Member", "Outcome", "Ending"],
    ),
    (
        "Stores",
        "Key-value stores that torch's processes share.",
        [
            "Store",
            "connect_store",
            "StoreServer",
            "HashStore",
            "FileStore",
            "PrefixStore",
            "EtcdStore",
            "connect_etcd",
            "EtcdServer",
        ],
    ),
    (
        "Administration",
        "What `rallypoint admin` does, from a program: `import rallypoint.admin`.",
        [
            "admin.Run",
            "admin.Answer",
            "admin.Status",
            "admin.Member",
            "admin.Change",
            "admin.Stacks",
            "admin.Group",
            "admin.Thread",
            "admin.Frame",
            "admin.Worker",
            "admin.SilentNode",
            "admin.Logs",
            "admin.LogStream",
        ],
    ),
    (
        "Training that survives a loss",
        "See [Lose a rank, keep the rest](keep-the-rest.md). It needs torch: "
        "`from rallypoint import survive`.",
        ["survive.init_process_group", "survive.hsdp_mesh", "survive.Run"],
    ),
    (
        "A backend of your own",
        "Any blob that can be compared and set.",
        ["RendezvousBackend", "StoreBackend", "DynamicRendezvousHandler"],
    ),
    (
        "With torch",
        "These modules need torch when they are used.",
        [
            "handler.create_handler",
            "handler.RallypointHandler",
            "agent.RallypointElasticAgent",
        ],
    ),
]


_WIDEST = 80  # signature in one line


def find(name: str) -> Any:
    if inspect.isclass(found := getattr(plain, name, None)):
        return found  # without torch's bases
    thing: Any = rallypoint
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "()"
    parameters = [
        p.replace(default=_Default(p.default)) if p.default is not p.empty else p
        for p in found.parameters.values()
        if p.name != "self"
    ]
    returned = found.return_annotation
    shown = "" if returned in (found.empty, "None", None) else f" -> {returned}"
    texts = [str(p).replace("'", "") for p in parameters]
    for i, p in enumerate(parameters):
        if p.kind is p.KEYWORD_ONLY and not any(q.kind is q.VAR_POSITIONAL for q in parameters):
            texts.insert(i, "*")
            break
    line = f"({', '.join(texts)}){shown}"
    if len(line) <= _WIDEST:
        return line
    return "(\n" + "".join(f"    {text},\n" for text in texts) + f"){shown}"


class _Default:
    """A default as the source has it, and not by its address."""

    def __init__(self, value: object) -> None:
        self._text = "..." if " object at " in repr(value) else repr(value).replace("'", '"')
        if isinstance(value, enum.Enum):
            self._text = str(value)
        if "factory" in self._text:
            self._text = "{}"

    def __repr__(self) -> str:
        return self._text


def prose(text: str) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists."""
    item = re.compile(r"^    (\*{0,2}\w[\w., ]*): (.*)")
    code = False
    for line in text.split("\n"):
        head = re.match(r"^(Args|Returns|Raises|Attributes|Example):$", line)
        if head:
            if code:
                yield "```\n"
            code = head[1] == "Example"
            yield f"**{head[1]}**\n" if not code else "```python"
        elif code and line.startswith("    "):
            yield line[4:]
        elif code and line:
            code = False
            yield "```\n\n" + line
        elif code:
            continue
        elif found := item.match(line):
            names = ", ".join(f"`{part}`" for part in found[1].split(", "))
            yield f"- {names}: {found[2]}"
        elif line.startswith("        "):
            yield "  " + line.strip()
        elif line.startswith("    "):
            yield line.strip()
        else:
            yield line
    if code:
        yield "```"


def methods(cls: Any) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if (name == "__call__" or not name.startswith("_")) and inspect.isfunction(function):
            yield name, member


def entry(name: str) -> Iterator[str]:
    thing = find(name)
    yield f"### {name}\n"
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        yield f"{inspect.getdoc(thing)}\n"
        yield from enumeration(thing)
        return
    kind = "class " if inspect.isclass(thing) else ""
    yield f"```python\n{kind}{name.split('.')[-1]}{signature(thing)}\n```\n"
    yield from prose(inspect.getdoc(thing) or "")
    yield ""
    if not inspect.isclass(thing):
        return
    for method, member in methods(thing):
        if isinstance(member, property):
            yield f"#### {name}.{method}\n"
            yield from prose(inspect.getdoc(member) or "")
        else:
            member = inspect.unwrap(getattr(member, "__func__", member))
            shown = method
            if method == "__call__":
                method, shown = "()", f"{name}(...)"
            yield f"#### {name}{'' if method == '()' else '.'}{method}\n"
            yield f"```python\n{shown}{signature(member)}\n```\n"
            yield from prose(inspect.getdoc(member) or "")
        yield ""


def enumeration(cls: type[enum.Enum]) -> Iterator[str]:
    """The members with the comments after them."""
    source = inspect.getsource(cls)
    yield "| name | number | meaning |"
    yield "| --- | --- | --- |"
    for name, number, meaning in re.findall(r"^    (\w+) = (\d+)  # (.*)$", source, flags=re.M):
        yield f"| `{name}` | {number} | {meaning} |"
    yield ""


def errors() -> Iterator[str]:
    yield "## Errors\n"
    yield "Every error is a `RallypointError`. The classes are for what programs may want to catch;"
    yield "`code` tells the rest.\n"
    yield "| class | means |"
    yield "| --- | --- |"
    for name in rallypoint.__all__:
        thing = getattr(rallypoint, name)
        if inspect.isclass(thing) and issubclass(thing, rallypoint.RallypointError):
            if thing.__module__ != "rallypoint":
                continue
            first = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")
            yield f"| `{name}` | {first} |"
    yield ""
    yield from entry("Code")


def lines() -> Iterator[str]:
    yield INTRODUCTION
    for title, text, names in sections():
        yield f"## {title}\n"
        yield f"{text}\n"
        for name in names:
            yield from entry(name)
    yield from errors()


def sections() -> Iterator[tuple[str, str, list[str]]]:
    """SECTIONS with the names that there are, and those that none of them has."""
    known = set()
    for title, text, names in SECTIONS:
        known.update(names)
        if there := [n for n in names if "." in n or n in rallypoint.__all__]:
            yield title, text, there
    rest = [
        name
        for name in rallypoint.__all__
        if not (name in known or name == "__version__")
        and getattr(rallypoint, name).__module__ not in ("rallypoint", "rallypoint._errors")
    ]
    if rest:
        yield "More", "What belongs to none of the above.", rest


def check_fences(page: str) -> None:
    """Raises ValueError for a fence that is open: it swallows what follows it."""
    opened = 0
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("```"):
            if opened and line != "```":
                raise ValueError(f"line {number}: the fence of line {opened} is still open")
            opened = 0 if opened else number
        elif opened and line.startswith("#") and not line.startswith("# "):
            raise ValueError(f"line {number}: a heading within the fence of line {opened}")
    if opened:
        raise ValueError(f"the fence of line {opened} is never closed")


def reference() -> str:
    """The page."""
    page = re.sub(r"\n{3,}", "\n\n", "\n".join(lines())).rstrip("\n") + "\n"
    check_fences(page)
    return page


if __name__ == "__main__":
    sys.stdout.write(reference())

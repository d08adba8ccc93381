"""Every public name says what it does, and so do its arguments and results."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import rallypoint
import rallypoint._torch.store
import rallypoint.agent
import rallypoint.handler
import rallypoint.timer
from rallypoint._launch import failure_plain as plain


def public() -> list[tuple[str, Any]]:
    """Every public class, function and method, with its public name."""
    found: dict[str, Any] = {name: getattr(rallypoint, name) for name in rallypoint.__all__}
    # With torch these are subclasses of, or are, torch's.
    found.update({name: getattr(plain, name) for name in ("ChildFailedError", "ProcessFailure")})
    found["handler.create_handler"] = rallypoint.handler.create_handler
    found["handler.RallypointHandler"] = rallypoint.handler.RallypointHandler
    found["agent.RallypointElasticAgent"] = rallypoint.agent.RallypointElasticAgent
    found.update(
        {f"timer.{name}": getattr(rallypoint.timer, name) for name in rallypoint.timer.__all__}
    )
    del found["__version__"]
    items = []
    for name, thing in found.items():
        items.append((name, thing))
        if not inspect.isclass(thing):
            continue
        for attribute, member in vars(thing).items():
            member = inspect.unwrap(member) if callable(member) else member
            if attribute == "__call__" or not attribute.startswith("_"):
                member = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(member):
                    items.append((f"{name}.{attribute}", member))
    return items


def arguments(thing: Any) -> list[str]:
    function = thing.__init__ if inspect.isclass(thing) else thing
    if not inspect.isfunction(inspect.unwrap(function)):
        return []
    try:
        names = inspect.signature(function).parameters
    except ValueError:
        return []
    return [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize(("name", "thing"), public(), ids=lambda x: x if type(x) is str else "")
def test_docstring(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert text.endswith((".", ")", ":")) or "\n" in text, "a docstring of sentences"
    if inspect.isclass(thing) and issubclass(thing, (BaseException, int)) and "Args" not in text:
        return  # made by the package: no program calls it
    for argument in arguments(thing):
        assert re.search(rf"^\s+\*{{0,2}}{argument}: \S", text, flags=re.M), f"Args: {argument}"
    returned = getattr(thing, "__annotations__", {}).get("return", "None")
    if not inspect.isclass(thing) and returned not in ("None", None) and arguments(thing):
        assert re.search(r"^Returns:$", text, flags=re.M), "Returns"


def test_an_example_ends_where_arguments_begin() -> None:
    """An open fence swallows the sections after it, and is refused."""
    text = "What.\n\nExample:\n    a = 1\n\nArgs:\n    b: what.\n\nExample:\n    c = 2"
    module = reference()
    page = "\n".join(module.prose(text))
    assert page.count("```") == 4
    assert page.index("a = 1") < page.index("```\n\n**Args**") < page.index("- `b`: what.")
    module.check_fences(page)
    for wrong in ("```python\na = 1\n### next", "```\na", "```\n```python\n```"):
        with pytest.raises(ValueError, match="fence of line 1"):
            module.check_fences(wrong)


def reference() -> Any:
    """The module python/reference.py."""
    folder = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location("reference", folder / "reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_is_current() -> None:
    """docs/python.md is what python/reference.py writes."""
    module = reference()
    page = (Path(__file__).resolve().parents[3] / "docs" / "python.md").read_text()
    assert page == module.reference(), "run `make reference`"

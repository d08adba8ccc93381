"""The base of the C interface's structs."""

from __future__ import annotations

import ctypes
from typing import Any

from .._errors import Code, RallypointError, make_error


def out_of_range(name: str, number: int) -> RallypointError:
    """What is raised for a number that C's type for it cannot hold."""
    bits = int(number).bit_length()
    what = str(number) if bits <= 128 else f"a number of {bits} bits"
    return make_error(Code.INVALID, f"{name} is {what}, which is out of range", False)


class Struct(ctypes.Structure):
    """A struct that begins with struct_size, which it fills in by itself.

    Raises InvalidError for a number that does not fit its field, of which ctypes would take
    the lower bits.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        fields["struct_size"] = ctypes.sizeof(self)
        super().__init__(*args, **fields)
        for name, value in fields.items():
            if isinstance(value, int) and getattr(self, name) != value:
                raise out_of_range(name, value)

"""The base of the C interface's structs."""

from __future__ import annotations

import ctypes
from typing import Any

from .._errors import InvalidError, invalid


def out_of_range(name: str, number: int) -> InvalidError:
    """The error for a number that C's type for it cannot hold."""
    bits = int(number).bit_length()
    what = str(number) if bits <= 128 else f"a number of {bits} bits"
    return invalid(f"{name} is {what}, which is out of range")


class Struct(ctypes.Structure):
    """A struct that begins with struct_size, which it fills in by itself.

    Raises InvalidError for a number that does not fit its field, of which ctypes would take
    the lower bits.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        fields["struct_size"] = ctypes.sizeof(self)
        super().__init__(*args, **fields)
        for name, value in fields.items():
            if hasattr(value, "__index__") and getattr(self, name) != value:
                raise out_of_range(name, value)

"""Says whether `python -m NAME` would find a module, without running it.

Prints "missing: " and why where it would not; nothing where it would, or where that is not clear.
"""
import importlib.util
import os
import sys


def find(name):
    """The spec of a module, None if there is none. Its packages are imported only if need be."""
    spec, path, whole = None, None, ""
    for part in name.split("."):
        if whole and path is None:
            break
        whole = whole + "." + part if whole else part
        found = (finder.find_spec(whole, path) for finder in sys.meta_path)
        spec = next((s for s in found if s is not None), None)
        if spec is None:
            break
        path = spec.submodule_search_locations
    if spec is not None and spec.name == name:
        return spec
    try:
        return importlib.util.find_spec(name)  # what -m asks: imports the packages
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            return None
        raise


def main(name):
    # What a package prints while it is imported is no answer.
    answers = os.dup(1)
    os.dup2(2, 1)
    why = ""
    found = find(name)
    if found is None:
        why = f"No module named {name}"
    elif found.submodule_search_locations is not None and find(name + ".__main__") is None:
        why = f"{name} is a package without a __main__"
    if why:
        os.write(answers, ("missing: " + why).encode("utf-8", "backslashreplace"))


main(sys.argv[1])

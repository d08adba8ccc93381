"""What --run-path starts in each worker: the script, as a program in this interpreter.

An exception that it does not catch is written to TORCHELASTIC_ERROR_FILE.
"""
import sys

if sys.path[:1] == [""]:
    del sys.path[0]  # the current directory, which another user may own


def report(error, script):
    import json, os, time, traceback

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    place = error.__traceback__
    while place and place.tb_frame.f_code.co_filename != script:
        place = place.tb_next
    stack = "".join(traceback.format_exception(type(error), error, place or error.__traceback__))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": message}, file)
    except OSError as e:
        print(f"cannot write the error file: {e}", file=sys.stderr)


def main():
    import os.path, runpy

    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        report(error, script)
        raise


main()

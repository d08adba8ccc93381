# Asks a plug-in for logs where workers write. argv: its name, and its arguments as JSON.
import enum
import json
from importlib import metadata

name, arguments = sys.argv[2], json.loads(sys.argv[3])
try:
    from torch.distributed.elastic.multiprocessing import Std
except ImportError:
    Std = enum.IntFlag("Std", {"NONE": 0, "OUT": 1, "ERR": 2, "ALL": 3})


def streams(text):
    if ":" not in text:
        return Std(int(text))
    return {int(rank): Std(int(std)) for rank, std in (item.split(":") for item in text.split(","))}


found = metadata.entry_points()
if hasattr(found, "select"):
    found = found.select(group="torchrun.logs_specs", name=name)
else:  # Python 3.9
    found = [entry for entry in found.get("torchrun.logs_specs", ()) if entry.name == name]
if not found:
    refuse("could not find entrypoint torchrun.logs_specs[%s]" % name)
try:
    specs = list(found)[0].load()(
        log_dir=arguments["log_dir"] or None,
        redirects=streams(arguments["redirects"]),
        tee=streams(arguments["tee"]),
        local_ranks_filter=set(arguments["local_ranks_filter"] or ()) or None,
    )
except Exception as error:
    refuse("torchrun.logs_specs[%s]: %s" % (name, reason(error)))
ready()
DEST = "stdouts stderrs tee_stdouts tee_stderrs error_files".split()
NEWER_DEST = "filtered_stdout filtered_stderr".split()  # not in older versions of torch
for line in each_request():
    envs = dict(enumerate(json.loads(line)))
    try:
        dest = specs.reify(envs)
        answer = {field: getattr(dest, field) for field in DEST}
        answer.update((field, getattr(dest, field, "")) for field in NEWER_DEST)
        answer["envs"] = {rank: {str(k): str(v) for k, v in env.items()} for rank, env in envs.items()}
        text = json.dumps(answer, default=os.fspath, ensure_ascii=False)
    except Exception as error:
        text = json.dumps({"error": reason(error)})
    print(text, file=answers, flush=True)

"""Record what stock torchrun does with each command line of cases.json.

    python record.py TORCHRUN [--into FOLDER] [NAME...]

writes recorded/<name>.json, or FOLDER/<name>.json: exit code, both streams, the dumps of dump.py, and
the tree of the log folder with its files. What differs between machines and
runs is masked, so that a recording can be made again anywhere.
"""
import json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = {"PATH": os.environ["PATH"], "HOME": "/", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def masked(text, folder, python):
    text = text.replace(folder, "<DIR>").replace(python, "<PYTHON>").replace(sys.prefix, "<PREFIX>").replace(sys.base_prefix, "<BASE>")
    for host in sorted({socket.getfqdn(), socket.gethostname()}, key=len, reverse=True):
        text = re.sub(r"\b%s\b" % re.escape(host), "<HOST>", text)
    return text


def tree(folder):
    found = {}
    for path, folders, files in os.walk(folder):
        rel = os.path.relpath(path, folder)
        if not folders and not files:
            found[rel + "/"] = None
        for name in files:
            with open(os.path.join(path, name), encoding="utf-8", errors="replace") as f:
                found[os.path.normpath(os.path.join(rel, name))] = f.read()
    return found


def run(case, torchrun):
    folder = tempfile.mkdtemp(prefix="rp-record-")
    work, tmp = os.path.join(folder, "cwd"), os.path.join(folder, "tmp")
    shutil.copytree(os.path.join(HERE, "scripts"), work)
    deep = os.path.join(work, "scripts_with_a_rather_long_name_to_make_the_border_of_the_report_wide")
    shutil.copytree(os.path.join(HERE, "scripts"), deep)
    os.mkdir(tmp)
    env = BASE | {"TMPDIR": tmp} | case.get("env", {})
    port = free_port()
    args = [a.replace("<PORT>", port) for a in case["args"]]
    process = subprocess.Popen([torchrun, *args], cwd=work, env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if "signal" in case:
        while any(not os.path.exists(os.path.join(work, f"ready.{r}")) for r in range(case["ready"])):
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(getattr(signal, case["signal"]))
    out, err = process.communicate(timeout=120)
    python = os.path.join(os.path.dirname(torchrun), "python")
    try:
        python = open(torchrun).readline()[2:].strip() or python
    except OSError:
        pass
    dumps = {}
    for name in sorted(os.listdir(work)):
        if name.startswith("dump.") and name.endswith(".json"):
            with open(os.path.join(work, name)) as f:
                dump = json.load(f)
            dump["env"] = {k: v for k, v in dump["env"].items() if BASE.get(k) != v and k != "TMPDIR"}
            dumps[name] = dump
    record = {
        "exit": process.returncode,
        "stdout": out.decode("utf-8", "replace"),
        "stderr": err.decode("utf-8", "replace"),
        "dumps": dumps,
        "logs": tree(os.path.join(work, "logs")),
        "tmp": tree(tmp),
    }
    text = json.dumps(record, ensure_ascii=False, indent=1, sort_keys=True)
    shutil.rmtree(folder)
    return masked(text, folder, python).replace(port, "<PORT>") if "<PORT>" in str(case["args"]) else masked(text, folder, python)


def main():
    torchrun, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    into = os.path.join(HERE, "recorded")
    if names[:1] == ["--into"]:
        into, names = os.path.abspath(names[1]), names[2:]
    os.makedirs(into, exist_ok=True)
    for case in json.load(open(os.path.join(HERE, "cases.json"))):
        if not names or case["name"] in names:
            text = run(case, torchrun)
            with open(os.path.join(into, case["name"] + ".json"), "w") as f:
                f.write(text + "\n")
            print(case["name"], json.loads(text)["exit"], flush=True)


main()

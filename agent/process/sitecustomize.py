"""What the agent has the interpreter of a worker load before the script, as sitecustomize.

The agent puts this file first on PYTHONPATH. In a worker that starts cold (stage "observe") it has
optimizers' steps counted and stacks answered, and the interpreter runs the script. It is compiled
at each start of a worker, so what only the template needs is in template.py.
"""

import os
import sys

STAGE = "RALLYPOINT_TEMPLATE"
SOCKET = 3
STEP, COUNTED = 2, 7  # words of the progress record
MAX_FORKS = 16  # of one request, as in template.go
OPTIMIZERS = "torch.optim.optimizer"


def receive(conn, socket):
    """One message of the agent: its bytes, and the descriptors that came with it."""
    head, files = b"", []
    while len(head) < 4:
        data, control, _, _ = conn.recvmsg(4 - len(head), socket.CMSG_SPACE(4 * MAX_FORKS))
        for _, _, raw in control:
            files += [int.from_bytes(raw[i : i + 4], sys.byteorder) for i in range(0, len(raw), 4)]
        if not data:
            os._exit(0)  # the agent has ended, or needs no template any more
        head += data
    body, size = bytearray(), int.from_bytes(head, "big")
    while len(body) < size:
        data = conn.recv(min(size - len(body), 1 << 16))
        if not data:
            os._exit(0)
        body += data
    return bytes(body), files


def observe(counts):
    """Lets the agent see where this worker is, and with counts how far."""
    answer_stacks()
    if counts:
        count_steps()


def high_descriptor():
    """The first number of a descriptor that is out of the way of those of the script's own files."""
    limit = os.sysconf("SC_OPEN_MAX")
    return (min(limit, 1024) if limit > 0 else 1024) * 3 // 4


def answer_stacks():
    """Has faulthandler write stacks into the agent's file: see rallypoint/_launch/stacks.py."""
    path = os.environ.get("RALLYPOINT_STACKS_FILE")
    if not path:
        return
    try:
        import faulthandler
        import fcntl

        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, high_descriptor())
        os.close(fd)
        faulthandler.register(62, file=high, all_threads=True)
        if sys.version_info >= (3, 11):
            faulthandler.register(61, file=high, all_threads=False)
        os.write(high, b"rallypoint-stacks %d %d\n" % (os.getpid(), high))
    except (AttributeError, ImportError, OSError, RuntimeError, ValueError):
        pass  # the job runs as well


class OptimizerImport:
    """A finder of modules that has done with what it is given once torch's optimizer is imported."""

    def __init__(self, done):
        self.done = done

    def find_spec(self, name, path=None, target=None):
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self.wrap(spec.loader)
                return spec
        return None

    def wrap(self, loader):
        run = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            run(module)
            self.done(module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            say_uncounted("its modules have a loader of their own")


def open_record():
    """The words of the progress record (docs/progress-record.md); None where there is none."""
    import mmap

    try:
        fd = os.open(
            os.environ["RALLYPOINT_PROGRESS_FILE"], os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        try:
            record = mmap.mmap(fd, 64)
        finally:
            os.close(fd)
    except (KeyError, OSError, ValueError):
        return None
    layout = b"rp-steps" + (1).to_bytes(4, "little") + (64).to_bytes(4, "little")
    return memoryview(record).cast("q") if record[:16] == layout else None


def say_uncounted(why):
    """Says once a node, in its worker's stderr, that no steps are counted."""
    if os.environ.get("LOCAL_RANK") == "0":
        text = "rallypoint: the steps of torch's optimizers are not counted: %s\n" % why
        os.write(2, text.encode())


def count_steps():
    """Has torch's optimizers count their steps into the progress record, until the script reports
    steps itself."""

    def register(module):
        words = open_record()
        if words is None:
            say_uncounted("this worker has no progress record")
            return

        def count(optimizer, args, kwargs):  # dynamo runs it as it is: no graph breaks for it
            if words[STEP] < 0:
                words[COUNTED] += 1

        try:
            handle = module.register_optimizer_step_post_hook(count)
        except AttributeError:
            say_uncounted("torch has no hook for them before 2.0")
            return
        os.register_at_fork(after_in_child=handle.remove)  # a worker's child counts nothing

    module = sys.modules.get(OPTIMIZERS)
    if module is not None:
        register(module)
    else:
        sys.meta_path.insert(0, OptimizerImport(register))


def main():
    stage = os.environ.pop(STAGE, "")
    if stage == "probe" and sys.implementation.name == "cpython":
        # This interpreter runs what stands here: so it will with the workers' command line.
        import _socket

        conn = _socket.socket(fileno=os.dup(SOCKET))
        environment = receive(conn, _socket)[0]  # without what a wrapper and we have changed in it
        conn.close()
        given = dict(entry.split(b"=", 1) for entry in environment.split(b"\0"))
        os.execve(sys.argv[1], sys.argv[2:], given)
    if stage not in ("hold", "observe"):
        os._exit(1)
    os.environ.pop(STAGE + "_OF", None)  # it stays where the kernel shows it
    here = os.path.dirname(__file__)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    path = os.environ.pop("PYTHONPATH").partition(os.pathsep)[2]
    if path:
        os.environ["PYTHONPATH"] = path
    if stage == "observe":
        observe(True)
        return
    try:
        with open(os.path.join(here, "template.py"), encoding="utf-8") as file:
            exec(compile(file.read(), file.name, "exec"), globals())
        hold()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


main()
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402  the user's own, if there is one

"""The template of a node's workers, in the namespace of sitecustomize.py.

It is their own command line, started early and held here, with the socket that it talks over at
descriptor 3. It imports, says that it is ready, and forks the workers of each request. A worker
returns from hold as a cold one does from observe; the template never does.
"""

import os
import sys

# Packages that read a rank while they are imported: one template serves all ranks.
RANKED = {"lightning", "lightning_fabric", "pytorch_lightning"}  # rank_zero_only.rank
MAX_FILES, MAX_SIZE = 1000, 1 << 20  # of own modules that are read
FORKED = {"jemalloc_bg_thd"}  # threads whose library does without them after a fork: pyarrow's
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render", "/dev/accel")

# The first optimizer of torch that a process makes imports torch's compiler, for seconds, and so do
# a model in parallel and torch.compile. A script that has a library do so mentions a trainer. The
# compiler reads variables with such names while it is imported.
COMPILER = "torch._dynamo"
COMPILER_USES = (b"ptim", b"arallel", b"shard", b"compile", b"rainer")
COMPILER_VARIABLES = (
    b"TORCHDYNAMO",
    b"TORCHINDUCTOR",
    b"TORCH_COMPILE",
    b"TORCH_DYNAMO",
    b"TRITON_",
)


class Refused(Exception):
    """Why the workers have to start cold."""


class EnvironmentChanges(Exception):
    """Later imports may depend on what the script has put into its environment."""


class Reader:
    """Finds what a script imports at its top, in order, without running a line of it."""

    def __init__(self, own):
        self.own = own  # the folder that will be first on sys.path
        self.seen = set()
        self.wanted = []  # (name, names after `from`, whether a failure is caught)
        self.compiles = False  # it may use torch's compiler
        self.configures = False  # it may set variables that torch's compiler reads

    def find(self, name):
        """The specs of a module and of its packages, as far as they are found; imports none."""
        from importlib.machinery import PathFinder

        specs, path, whole = [], None, ""
        for part in name.split("."):
            whole = whole + "." + part if whole else part
            if specs:
                spec = PathFinder.find_spec(whole, path)
            elif part in sys.builtin_module_names:
                return []
            else:
                spec = PathFinder.find_spec(part, [self.own])
                finders = (finder.find_spec(part, None) for finder in sys.meta_path)
                spec = spec or next((found for found in finders if found), None)
            if spec is None:
                return specs
            specs.append(spec)
            path = spec.submodule_search_locations
            if path is None:
                return specs
        return specs

    def want(self, name, names, caught):
        specs = self.find(name) if name.partition(".")[0] not in RANKED else []
        if not specs:
            return
        if installed(specs[0]):
            self.wanted.append((name, names, caught))
            return
        for each in names:
            specs += self.find(name + "." + each)
        for spec in specs:
            package = spec.name if spec.submodule_search_locations else spec.name.rpartition(".")[0]
            self.read(spec.origin, package, caught)

    def read(self, path, package="", caught=False):
        """Reads a file of the user's."""
        if path in self.seen or len(self.seen) >= MAX_FILES:
            return
        self.seen.add(path)
        try:
            with open(path, "rb") as file:
                text = file.read(MAX_SIZE + 1)
            tree = compile(text, path, "exec", 0x400, dont_inherit=True)  # ast.PyCF_ONLY_AST
        except (OSError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return  # the worker will say what is wrong
        self.compiles |= any(use in text for use in COMPILER_USES)
        self.configures |= any(name in text for name in COMPILER_VARIABLES)
        if len(text) <= MAX_SIZE:
            self.body(tree.body, package, caught)

    def body(self, statements, package, caught):
        for node in statements:
            kind = type(node).__name__
            if kind == "Import":
                for alias in node.names:
                    self.want(alias.name, (), caught)
            elif kind == "ImportFrom":
                name = node.module or ""
                if node.level:
                    parts = package.split(".")
                    parts = parts[: len(parts) + 1 - node.level]
                    name = ".".join([part for part in [*parts, name] if part])
                if name:
                    self.want(name, tuple(alias.name for alias in node.names), caught)
            elif kind in ("Try", "TryStar"):
                self.body(node.body, package, True)
            elif changes_environment(node):
                self.configures = True
                raise EnvironmentChanges


def installed(spec):
    """Whether a module belongs to the interpreter or to an installed package, not to the user."""
    where = (
        spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), "")
    )
    parts = (where or "").split(os.sep)
    return (
        not where
        or "site-packages" in parts
        or "dist-packages" in parts
        or where.startswith(os.path.dirname(os.__file__) + os.sep)
    )


def changes_environment(statement):
    """Whether a statement writes into os.environ, other than in a function that it defines."""
    pending = [statement]  # a sum of a thousand terms is a thousand deep
    while pending:
        node = pending.pop()
        if type(node).__name__ in ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Lambda"):
            continue
        if writes_environment(node):
            return True
        for field in node._fields:
            value = getattr(node, field, None)
            children = value if isinstance(value, list) else [value]
            pending += [child for child in children if hasattr(child, "_fields")]
    return False


def writes_environment(node):
    """Whether a node of a syntax tree itself does."""
    kind = type(node).__name__
    if kind == "Subscript" and type(node.ctx).__name__ != "Load":
        target = node.value
    elif kind == "Call":
        target = node.func
        name = getattr(target, "attr", getattr(target, "id", ""))
        if name in ("putenv", "unsetenv", "load_dotenv"):
            return True
        if name not in ("setdefault", "update", "pop", "clear"):
            return False
        target = getattr(target, "value", None)
    else:
        return False
    return getattr(target, "attr", getattr(target, "id", "")) in ("environ", "environb")


def wanted_by(kind, name):
    """Reads what a script, or a module as -m runs it, imports at its top."""
    own = os.getcwd()
    if kind == "script":
        folder = os.path.isdir(name)
        own = os.path.abspath(name) if folder else os.path.dirname(os.path.realpath(name))
        name = os.path.join(own, "__main__.py") if folder else name
    reader = Reader(own)
    try:
        if kind == "script":
            reader.read(name)
        elif not installed((reader.find(name) or [os.__spec__])[0]):
            reader.want(name, ("__main__",), False)
    except EnvironmentChanges:
        pass
    for path in list(sys.path_importer_cache):
        if path == own or path.startswith(own + os.sep):
            del sys.path_importer_cache[path]
    return reader


def preload(wanted):
    """Imports."""
    for name, names, caught in wanted:
        try:
            __import__(name, {}, {}, names, 0)
        except ImportError as error:
            if not caught:
                raise Refused("importing %s failed: %s" % (name, error)) from error
        except BaseException as error:
            raise Refused(
                "importing %s failed: %s: %s" % (name, type(error).__name__, error)
            ) from error


def check_names(before, own):
    """Refuses what was imported too early, or from elsewhere than the script's own folder."""
    for name in {name.partition(".")[0] for name in set(sys.modules) - before}:
        path = os.path.join(own, name)
        if name in RANKED:
            raise Refused("%s reads its rank while it is imported" % name)
        if (
            own not in sys.path
            and name not in sys.builtin_module_names
            and (os.path.exists(path + ".py") or os.path.exists(os.path.join(path, "__init__.py")))
        ):
            raise Refused("%s of the script's folder hides the module of that name" % name)


def check_process():
    """Refuses where a fork would not have what this process has."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        raise Refused("an import has left a child process")
    except ChildProcessError:
        pass
    try:
        child = os.fork()  # threads of libraries with fork handlers, such as OpenBLAS, end here
    except OSError as error:
        raise Refused("it cannot fork: %s" % error) from error
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if path.startswith(DEVICES):
            raise Refused("the imports have opened %s" % path)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise Refused("the imports have initialised CUDA")
    for _ in range(100):  # a thread that was joined is listed for a moment
        threads = started_threads()
        if not threads:
            break
        __import__("time").sleep(0.002)
    else:
        raise Refused(
            "the imports have started %s, which a fork would not have"
            % ("a thread" if threads == 1 else "%d threads" % threads)
        )


def started_threads():
    """How many threads this process has beside its first one, without those of FORKED."""
    threads = -1
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as file:
                threads += file.read().strip() not in FORKED
        except OSError:  # it has ended
            continue
    return threads


def stamps():
    """What the files of all imported modules, and the interpreter's, were when they were read."""
    files = {sys.executable}
    for module in list(sys.modules.values()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if getattr(spec, "has_location", False) and module.__name__ != __name__:
            files.add(spec.origin)
    return {path: stamp(path) for path in files}


def stamp(path):
    try:
        info = os.stat(path)
    except (OSError, TypeError, ValueError):
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns


def answer(conn, text):
    text = " ".join(text.split())[:500]
    conn.sendall(text.encode("utf-8", "backslashreplace") + b"\n")


def fork(conn, sockets):
    """Forks a worker for each socket, from a process whose end has the agent adopt them. Returns
    its socket in a worker, and None in the template."""
    try:
        child = os.fork()
    except OSError as error:
        child, reason = -1, str(error)
    if child == 0:
        conn.close()
        try:
            for fd in sockets:
                if not os.fork():
                    return fd
        except OSError:
            os._exit(1)
        os._exit(0)
    for fd in sockets:
        os.close(fd)
    if child > 0:
        status = os.waitpid(child, 0)[1]
        reason = "a second fork failed" if status else ""
    answer(conn, reason)  # without a reason: the agent is the workers' parent by now
    return None


def become(conn, socket, before, after, agent, libc):
    """Makes the worker of this process that the agent asks for, once the agent lets it go."""
    os.setsid()
    request, files = receive(conn, socket)
    for target, fd in enumerate(files):
        os.dup2(fd, target)
        os.close(fd)
    given = dict(entry.split(b"=", 1) for entry in request.split(b"\0"))
    environment = merged(given, before, after)
    for name in list(os.environb):
        del os.environb[name]
    for name, value in environment.items():
        os.environb[name] = value
    renew()
    reseed()
    report()
    try:
        conn.sendall(b"%d\n" % os.getpid())
        word = conn.recv(1)
    except OSError:
        word = b""  # the agent has closed its end
    if word != b"g":
        os._exit(1)
    conn.close()
    libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != agent:
        os._exit(1)


def renew():
    """Opens what is now at 0, 1 and 2 as the interpreter does, in the same stream objects."""
    for fd, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        through = stream.write_through  # -u
        buffer = open(fd, "wb" if fd else "rb", 0 if fd and through else -1, closefd=False)
        raw = getattr(buffer, "raw", buffer)
        raw.name = stream.name
        lines = not through and (raw.isatty() or fd == 2)
        stream.__init__(
            buffer,
            stream.encoding,
            stream.errors,
            newline="\n",
            line_buffering=lines,
            write_through=through,
        )


def reseed():
    """Gives the generators that libraries have seeded at random another seed; random does so itself."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def report():
    """Has rallypoint, if an import has loaded it, report this worker's steps."""
    become_worker = getattr(sys.modules.get("rallypoint"), "_become_worker", None)
    if become_worker is not None:
        become_worker()


def merged(environment, before, after):
    """A worker's environment with what is not in the template's as the agent gave it: a wrapper of
    the interpreter, the interpreter itself and the imports may have changed it."""
    for name in {*before, *after}:
        if before.get(name) != after.get(name) and environment.get(name) == before.get(name):
            environment.pop(name, None)
            if name in after:
                environment[name] = after[name]
    return environment


def import_ctypes():
    """ctypes, whose libffi may keep a file open: each worker has that one, too."""
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < high_descriptor():
        taken.append(os.dup(taken[0]))
    import ctypes

    for fd in taken:
        os.close(fd)
    return ctypes


def hold():
    """Imports, and forks a worker for each request. It returns in the workers alone."""
    modules = set(sys.modules)
    import _socket as socket
    import faulthandler  # as fcntl and mmap, for what observe does in each worker
    import fcntl
    import gc
    import mmap

    high = os.sysconf("SC_OPEN_MAX")  # out of the way of what the imports open
    high = (min(high, 1000) if high > 0 else 1000) - 1
    os.dup2(SOCKET, high, inheritable=False)
    os.close(SOCKET)
    conn = socket.socket(fileno=high)
    answer(conn, "here")
    instructions = receive(conn, socket)[0].split(b"\0")
    agent, kind, name, count = map(os.fsdecode, instructions[:4])
    names = [os.fsdecode(each) for each in instructions[4 : 4 + int(count)]]
    before = dict(entry.split(b"=", 1) for entry in instructions[4 + int(count) :])
    try:
        libc = import_ctypes().CDLL(None)
        script = wanted_by(kind, name)
        wanted = [(each, (), False) for each in names] or script.wanted
        preload(wanted)
        if OPTIMIZERS in sys.modules and not names and script.compiles and not script.configures:
            preload([(COMPILER, (), True)])
        check_names(modules, script.own)
        check_process()
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)  # the agent sees the end of what was printed
        os.dup2(null, 2)
        os.close(null)
    except Refused as refused:
        answer(conn, "no " + str(refused))
        os._exit(1)
    except Exception as error:
        answer(conn, "no preparing the imports failed: %s: %s" % (type(error).__name__, error))
        os._exit(1)
    after = dict(os.environb)
    known = stamps()
    gc.collect()
    gc.freeze()
    answer(conn, "ready " + ", ".join(sorted({each.partition(".")[0] for each, _, _ in wanted})))
    while True:
        sockets = receive(conn, socket)[1]
        if not sockets:
            answer(conn, next((path for path, then in known.items() if stamp(path) != then), ""))
            continue
        mine = fork(conn, sockets)
        if mine is not None:
            for fd in sockets:
                if fd != mine:
                    os.close(fd)
            become(socket.socket(fileno=mine), socket, before, after, int(agent), libc)
            observe(os.environ.pop(STAGE, "") == "observe")
            return

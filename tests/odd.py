"""Fifty-one odd environments: what shells, containers, schedulers, settings and full disks do to a command."""

from __future__ import annotations

from typing import NamedTuple

TOOLS = '''
import ctypes, os, resource, signal, sys

def allowed_nothing_more():
    """A root may write whatever it is told it may not; let it be an owner like any other."""
    for override in (1, 2):
        ctypes.CDLL(None).prctl(24, override, 0, 0, 0)

def folder(name, mode=0o755):
    os.makedirs(name)
    os.chmod(name, mode)

def limit(what, most):
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))

def full_pipe():
    """What is written into it would have to wait for a reader."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.dup2(writer, 1)

def small_device(name):
    """A device of 64 kB, which only this process and what it becomes sees; not every system lets it."""
    libc, own_user = ctypes.CDLL(None), 0x10000000 if os.getuid() else 0
    folder(name)
    if (
        libc.unshare(0x20000 | own_user)
        or libc.mount(None, b"/", None, 0x44000, None)
        or libc.mount(b"tmpfs", name.encode(), b"tmpfs", 0, b"size=64k")
    ):
        sys.exit(77)
'''
"""What the preparations below use. Python's own `os.unshare` is newer."""


NOTHING = "nothing"


class Odd(NamedTuple):
    """An environment.

    Attributes
    ----------
    prepare
        Python that a process runs in the test's folder before it becomes the command.
    env
        What is set; None: not set.
    within
        Python that the command's process runs before the command.
    flags
        Of Python.
    out
        The folder of results; in the test's folder.
    says
        Part of the one message in place of a table; without it the table and the files are those of a plain
        environment; `NOTHING`: only the exit code tells.
    depends
        The machine decides whether it is the message or the table.
    output
        Where the table goes: to a pipe that is read, to a terminal, or to nobody, so that only the files tell.
    """

    prepare: str = ""
    env: dict[str, str | None] = {}
    within: str = ""
    flags: tuple[str, ...] = ()
    out: str = "out"
    says: str = ""
    depends: bool = False
    output: str = "pipe"


def read_only(name: str) -> str:
    """A folder in which nothing can be made."""
    return f"allowed_nothing_more(); folder({name!r}, 0o555)"


def signals(*names: str) -> str:
    """These signals are ignored, as what starts the command wants it."""
    return "; ".join(f"signal.signal(signal.{name}, signal.SIG_IGN)" for name in names)


FULL = "found No space left on device"
ENVIRONMENTS = {
    # folders of the user and of the system
    "no HOME": Odd(env={"HOME": None}),
    "HOME that is not there": Odd(env={"HOME": "{here}/none"}),
    "HOME that is read-only": Odd(read_only("home"), {"HOME": "{here}/home"}),
    "TMPDIR that is not there": Odd(env={"TMPDIR": "{here}/none"}),
    "TMPDIR that is read-only": Odd(read_only("tmp"), {"TMPDIR": "{here}/tmp"}),
    # language, terminal, colours, time
    "LANG=C": Odd(env={"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "LC_ALL that nobody has": Odd(env={"LC_ALL": "tr_TR.nonsense"}),
    "TERM=dumb": Odd(env={"TERM": "dumb"}, output="terminal"),
    "no TERM": Odd(env={"TERM": None}, output="terminal"),
    "COLUMNS=1": Odd(env={"COLUMNS": "1"}, output="terminal"),
    "COLUMNS=0": Odd(env={"COLUMNS": "0"}, output="terminal"),
    "COLUMNS=nonsense": Odd(env={"COLUMNS": "nonsense"}, output="terminal"),
    "no colour": Odd(env={"NO_COLOR": "1", "CLICOLOR": "0"}, output="terminal"),
    "colour by force": Odd(env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}),
    "TZ that nobody has": Odd(env={"TZ": "Mars/Olympus+99:99"}),
    # streams
    "closed stdin": Odd("os.close(0)"),
    "closed stdout": Odd("os.close(1)", output="nobody"),
    "closed stderr": Odd("os.close(2)"),
    "all closed": Odd("os.closerange(0, 3)", output="nobody"),
    "stdout to a full device": Odd("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", says=FULL),
    "stdout to a pipe that nobody reads": Odd("r, w = os.pipe(); os.dup2(w, 1); os.close(r)", says=NOTHING),
    "stdout that cannot wait": Odd("full_pipe()", {"PYTHONUNBUFFERED": "1"}, says="without blocking"),
    # Python
    "another hash seed": Odd(env={"PYTHONHASHSEED": "4711"}),
    "warnings are errors": Odd(env={"PYTHONWARNINGS": "error"}),
    "development mode": Odd(flags=("-X", "dev")),
    "optimised twice": Odd(env={"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}),
    "ascii alone": Odd(env={"PYTHONIOENCODING": "ascii"}),
    "unbuffered": Odd(env={"PYTHONUNBUFFERED": "1"}),
    "isolated": Odd(env={"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}, flags=("-I",)),
    # matplotlib
    "MPLBACKEND that nobody has": Odd(env={"MPLBACKEND": "nonsense"}),
    "a style with TeX": Odd("open('matplotlibrc', 'w').write('text.usetex: True\\nfont.size: 30\\n')"),
    "MPLCONFIGDIR that is not there": Odd(env={"MPLCONFIGDIR": "{here}/none/nor/here"}),
    "MPLCONFIGDIR that is read-only": Odd(read_only("config"), {"MPLCONFIGDIR": "{here}/config"}),
    # cores and threads
    "a thousand threads": Odd(env={"OMP_NUM_THREADS": "1000", "OPENBLAS_NUM_THREADS": "1000"}),
    "threads that are no number": Odd(env={"OMP_NUM_THREADS": "x", "OPENBLAS_NUM_THREADS": "-1"}),
    "one core": Odd(within="os.cpu_count = lambda: 1"),
    "cores that nobody counts": Odd(within="os.cpu_count = lambda: None"),
    "one core of several": Odd("os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1]); os.nice(19)"),
    # where it runs and writes
    "a working directory that is read-only": Odd(read_only("here") + "; os.chdir('here')"),
    "a working directory that is gone": Odd("folder('gone'); os.chdir('gone'); os.rmdir('../gone')"),
    "a deep working directory": Odd("[(folder('d' * 200), os.chdir('d' * 200)) for _ in range(18)]"),
    "names with all that names may have": Odd(
        "folder(' ü\\n*?'); os.chdir(' ü\\n*?')", out="-- ä 名 [*]?{{}}%s $HOME\n'\"\\x"
    ),
    # limits
    "few open files": Odd("limit(resource.RLIMIT_NOFILE, 8)", says="Too many open files"),
    "little memory": Odd("limit(resource.RLIMIT_AS, 150 << 20)", says="memory", depends=True),
    "small files": Odd("limit(resource.RLIMIT_FSIZE, 10_000)", says="found File too large"),
    "no more processes": Odd("limit(resource.RLIMIT_NPROC, 0); limit(resource.RLIMIT_STACK, 512 << 10)"),
    "little time": Odd("limit(resource.RLIMIT_CPU, 1)", says="stopped; nothing was written", depends=True),
    "a small device": Odd("small_device('full')", out="full/out", says=FULL),
    "umask 777": Odd("allowed_nothing_more(); os.umask(0o777)", says="Permission denied"),
    # who starts it
    "nothing in the environment": Odd("os.environ.clear(); os.umask(0o077)"),
    "ignored signals, as of a daemon": Odd(signals("SIGINT", "SIGHUP", "SIGPIPE", "SIGCHLD") + "; os.chdir('/')"),
}

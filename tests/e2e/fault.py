"""One system call of the shim fails, and what comes of it: fault_inject.c driven from a test.

    programme = Programme(t)
    calls = programme.record()                      # which calls a life makes, by phase and site
    broken = programme.run(Fault(calls[0], errno.EIO))   # laws that did not hold; empty: all did

A life is all that containerd makes of a pod: `start`, Create and Start of its first container,
which boots the VM, then a second container, an exec in it, the end of all, and `delete`.
"""

import collections
import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import leaks
import members
import packages
import shimcall
from harness import Failure, compile_c
from shimcall import NOT_FOUND, Status, number, text

PHASES = ("launch", "boot", "create", "exec", "delete", "leave", "cleanup")
IN_POD = ("create", "exec", "delete")  # faults in these need no pod of their own
FRAMES = 3
ANSWER_SECONDS = 45   # no call takes longer, whatever fails; boot_timeout_s is less
LEAVE_SECONDS = 80    # nor the end of a shim that has nothing left to serve, or was forgotten
TRIES = 3             # of what a client repeats when it failed: one fault makes one call fail
EXIT_CODE = 7         # of the exec: a report of 0 is wrong
RUNNING = 2

# What each call may fail with on a machine in trouble. Calls that cannot fail, or whose failure
# the program never sees (exit, getpid, rt_sigreturn), are not here.
E = errno
MEMORY, FILES = (E.ENOMEM,), (E.EMFILE, E.ENFILE)
PATHS = (E.ENOENT, E.EACCES, E.EIO)
ERRORS = {
    "openat": (E.EMFILE, E.ENOMEM, *PATHS), "open": (E.EMFILE, *PATHS), "openat2": FILES + PATHS,
    "read": (E.EIO, E.EINTR), "pread64": (E.EIO, E.EINTR), "readv": (E.EIO, E.EINTR),
    "write": (E.ENOSPC, E.EIO, E.EINTR), "pwrite64": (E.ENOSPC, E.EIO, E.EINTR),
    "writev": (E.ENOSPC, E.EIO), "close": (E.EIO, E.EINTR), "fsync": (E.EIO, E.ENOSPC),
    "fdatasync": (E.EIO, E.ENOSPC), "ftruncate": (E.ENOSPC, E.EIO), "fallocate": (
        E.ENOSPC, E.EOPNOTSUPP), "lseek": (E.EIO,), "copy_file_range": (E.ENOSPC, E.EIO),
    "sendfile": (E.EIO,), "splice": (E.ENOMEM, E.EIO), "tee": MEMORY,
    "stat": PATHS, "lstat": PATHS, "newfstatat": PATHS, "fstat": (E.EIO,), "statx": PATHS,
    "fstatfs": (E.EIO,), "statfs": (E.EIO,), "access": PATHS, "faccessat": PATHS,
    "faccessat2": PATHS, "readlink": PATHS, "readlinkat": PATHS, "getdents64": (E.EIO,),
    "getcwd": (E.ENOENT,), "chdir": PATHS, "fchdir": (E.EACCES,), "mkdir": (E.ENOSPC, E.EACCES),
    "mkdirat": (E.ENOSPC, E.EACCES), "rmdir": (E.EBUSY, E.EIO), "unlink": (E.EACCES, E.EIO),
    "unlinkat": (E.EACCES, E.EIO), "rename": (E.ENOSPC, E.EIO), "renameat2": (E.ENOSPC, E.EIO),
    "renameat": (E.ENOSPC, E.EIO), "link": (E.ENOSPC,), "linkat": (E.ENOSPC,),
    "symlink": (E.ENOSPC,), "symlinkat": (E.ENOSPC,), "mknod": (E.ENOSPC, E.EPERM),
    "mknodat": (E.ENOSPC, E.EPERM), "chmod": (E.EPERM, E.EIO), "fchmod": (E.EPERM, E.EIO),
    "fchmodat": (E.EPERM, E.EIO), "chown": (E.EPERM, E.EIO), "fchown": (E.EPERM, E.EIO),
    "fchownat": (E.EPERM, E.EIO), "lchown": (E.EPERM,), "utimensat": (E.EPERM,),
    "flock": (E.EINTR, E.ENOLCK), "fcntl": (E.EMFILE, E.ENOLCK), "umask": (),
    "dup": FILES, "dup2": (E.EMFILE,), "dup3": (E.EMFILE,), "pipe": FILES, "pipe2": FILES,
    "socket": (*FILES, E.ENOBUFS, E.EAFNOSUPPORT), "socketpair": FILES,
    "bind": (E.EADDRINUSE, E.EACCES), "listen": (E.EADDRINUSE,), "connect": (
        E.ECONNREFUSED, E.EAGAIN), "accept": (E.EMFILE, E.ECONNABORTED),
    "accept4": (E.EMFILE, E.ECONNABORTED), "getsockopt": (E.ENOBUFS,), "setsockopt": (E.ENOMEM,),
    "getsockname": (E.ENOBUFS,), "getpeername": (E.ENOTCONN,), "shutdown": (E.ENOTCONN,),
    "sendto": (E.ENOBUFS, E.EPIPE), "sendmsg": (E.ENOBUFS, E.EPIPE), "recvfrom": (
        E.ECONNRESET, E.EINTR), "recvmsg": (E.ECONNRESET, E.EINTR),
    "epoll_create1": FILES, "epoll_ctl": (E.ENOMEM, E.ENOSPC), "epoll_wait": (E.EINTR,),
    "epoll_pwait": (E.EINTR,), "epoll_pwait2": (E.EINTR,), "keyctl": (E.EDQUOT,),
    "poll": (E.EINTR, E.ENOMEM), "ppoll": (E.EINTR, E.ENOMEM),
    "select": (E.EINTR,), "pselect6": (E.EINTR,), "eventfd2": FILES, "signalfd4": FILES,
    "timerfd_create": FILES, "timerfd_settime": (E.ECANCELED,), "inotify_init1": FILES,
    "inotify_add_watch": (E.ENOSPC,), "memfd_create": FILES + MEMORY,
    "clone": (E.EAGAIN, E.ENOMEM), "clone3": (E.EAGAIN, E.ENOMEM), "fork": (E.EAGAIN,),
    "vfork": (E.EAGAIN,), "execve": (E.ENOENT, E.ENOMEM), "execveat": (E.ENOENT, E.ENOMEM),
    "wait4": (E.EINTR,), "waitid": (E.EINTR,), "kill": (E.EPERM,), "pidfd_open": (*FILES, E.ESRCH),
    "pidfd_send_signal": (E.ESRCH, E.EPERM), "prctl": (E.EPERM, E.EINVAL), "setsid": (E.EPERM,),
    "setuid": (E.EAGAIN, E.EPERM), "setgid": (E.EPERM,), "setgroups": (E.EPERM, E.ENOMEM),
    "setresuid": (E.EAGAIN, E.EPERM), "setresgid": (E.EPERM,), "capset": (E.EPERM,),
    "prlimit64": (E.EPERM,), "setrlimit": (E.EPERM,), "setpriority": (E.EACCES,),
    "sched_setaffinity": (E.EINVAL,), "sched_getaffinity": (E.EINVAL,), "seccomp": (E.EINVAL,),
    "unshare": (E.ENOSPC, E.EPERM), "setns": (E.EPERM, E.EINVAL), "mount": (E.ENOMEM, E.EPERM),
    "umount2": (E.EBUSY, E.EINVAL), "pivot_root": (E.EINVAL,), "chroot": (E.EPERM,),
    "sethostname": (E.EPERM,), "open_tree": (E.EMFILE, E.ENOMEM, E.EPERM),
    "move_mount": (E.ENOMEM, E.EINVAL), "mount_setattr": (E.EINVAL, E.EPERM),
    "fsopen": (E.ENODEV, E.EMFILE), "fsconfig": (E.EINVAL, E.ENOMEM), "fsmount": (E.EMFILE,
                                                                                 E.ENOMEM),
    "mmap": MEMORY, "mprotect": MEMORY, "mremap": MEMORY, "brk": MEMORY, "madvise": (E.EAGAIN,),
    "munmap": (), "ioctl": (E.EBUSY, E.EPERM, E.ENOMEM), "getrandom": (E.EINTR,),
    "nanosleep": (E.EINTR,), "clock_nanosleep": (E.EINTR,), "close_range": (E.ENOMEM,),
    "setxattr": (E.ENOSPC,), "fsetxattr": (E.ENOSPC,), "getxattr": (E.EIO,), "fgetxattr": (E.EIO,),
    "futimesat": (E.EPERM,), "process_vm_readv": (E.EPERM,), "io_setup": (E.EAGAIN,),
    "quotactl": (E.EPERM,), "quotactl_fd": (E.EPERM,),
}
# The program gives up when there is no memory (mem.h), and `delete` cleans up after it.
GIVES_UP = {"mmap", "mprotect", "mremap", "brk"}
LATE = {"close", "fsync", "fdatasync"}  # the kernel has done its part when these fail

Call = collections.namedtuple("Call", "phase number frames")
Fault = collections.namedtuple("Fault", "call error")


class Control:
    """struct control of fault_inject.c, in the file that it has mapped: an attribute per field."""
    FIELDS = ("phase", "recording", "armed", "number", *(f"frame{i}" for i in range(FRAMES)),
              "error", "late", "skip", "hit", "freeze_at", "records", "frozen", "died", "tracer",
              "noticed")

    def __init__(self, path):
        super().__setattr__("fd", os.open(path, os.O_RDWR))

    def __getattr__(self, name):
        return struct.unpack("I", os.pread(self.fd, 4, 4 * self.FIELDS.index(name)))[0]

    def __setattr__(self, name, value):
        os.pwrite(self.fd, struct.pack("I", value), 4 * self.FIELDS.index(name))


def call_names():
    """number -> name, as the compiler's headers have them."""
    out = subprocess.run(["gcc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
                         capture_output=True, text=True, check=True).stdout
    lines = (line.split() for line in out.splitlines() if line.startswith("#define __NR_"))
    return {int(f[2]): f[1].removeprefix("__NR_") for f in lines if f[2].isdigit()}


def places(addresses):
    """address -> function and line, by addr2line."""
    addresses = sorted(a for a in addresses if a)
    out = subprocess.run(["addr2line", "-f", "-s", "-e", packages.SHIM],
                         input="\n".join(hex(a - 1) for a in addresses), capture_output=True,
                         text=True).stdout.splitlines()
    return {a: f"{f} ({line.split(' ')[0]})" for a, f, line in
            zip(addresses, out[::2], out[1::2])}


class FaultyShim(shimcall.Shim):
    """Its binary runs under fault_inject."""

    def __init__(self, t, name, programme):
        super().__init__(t, name)
        self.programme = programme
        self.spec({**self.document(),
                   "annotations": {members.GROUP: name, members.KIND: "sandbox"}})

    def program(self):
        p = self.programme
        return [p.inject, p.control_path, p.record_path, super().program()[0]]

    def connect(self):
        s = super().connect()
        s.settimeout(ANSWER_SECONDS)
        return s


class Outcome:
    """What one life came to."""

    def __init__(self):
        self.broken = []   # laws
        self.errors = []   # what was answered instead of success
        self.gave_up = False  # SIGABRT for want of memory, by design
        self.slow = None   # the longest call: (seconds, name)


class Programme:
    def __init__(self, t):
        self.t, self.count = t, 0
        self.inject = compile_c("../e2e/fault_inject.c", "-D_GNU_SOURCE")
        self.control_path = t.write("control", bytes(4096))
        self.record_path = t.write("record", b"")
        self.control = Control(self.control_path)
        self.names = call_names()
        t.config(boot_timeout_s=20)
        self.before = self.pod = self.pod_before = None

    def close(self):
        self.end_pod()
        os.close(self.control.fd)

    def tell_tracer(self):
        """The shim stops at its next call, and from then on at each."""
        seen, deadline = self.control.noticed, time.monotonic() + 10
        os.kill(self.control.tracer, signal.SIGUSR1)
        while self.control.noticed == seen and time.monotonic() < deadline:
            time.sleep(0.001)

    # ------------------------------------------------------------ which calls there are

    def record(self, times=2):
        """Each call of a life whose failure is plausible, once; in the order of first use."""
        self.control.recording = 1
        for _ in range(times):
            outcome = self.life()
            self.t.equal(outcome.broken + outcome.errors, [], "a life without a fault")
        self.control.recording = 0
        found = {}
        with open(self.record_path) as f:
            for line in f:
                phase, nr, *frames = line.split()
                call = Call(PHASES[int(phase)], int(nr), tuple(int(a, 16) for a in frames))
                if call.frames[0] and self.names.get(call.number) in ERRORS:
                    found[call] = found.get(call, 0) + 1
        self.unknown = sorted({self.names.get(int(line.split()[1]), "?")
                               for line in open(self.record_path)} - set(ERRORS))
        os.truncate(self.record_path, 0)
        self.places = places({a for call in found for a in call.frames})
        return found

    def faults(self, calls):
        return [Fault(call, error) for call in calls for error in ERRORS[self.names[call.number]]
                if not self.cannot_fail(call)]

    def cannot_fail(self, call):
        """The flags of an open descriptor can always be read and set."""
        return (self.names[call.number] == "fcntl" and
                self.places[call.frames[0]].startswith("fd_nonblock"))

    def describe(self, fault):
        return (f"{fault.call.phase}: {self.names[fault.call.number]} "
                f"{errno.errorcode[fault.error]} in " +
                " < ".join(self.places[a] for a in fault.call.frames if a))

    # ------------------------------------------------------------ one fault

    def run(self, fault):
        """(outcome, whether the call was made at all)"""
        c = self.control
        c.number, c.error, c.skip, c.hit = fault.call.number, fault.error, 0, 0
        for i, frame in enumerate(fault.call.frames):
            setattr(c, f"frame{i}", frame)
        name = self.names[fault.call.number]
        c.late = name in LATE
        run = self.in_pod if fault.call.phase in IN_POD else self.life
        return run(fault.call.phase, name in GIVES_UP), c.hit != 0

    def new_life(self):
        self.control.died = self.control.armed = 0
        self.count += 1
        return Life(self, FaultyShim(self.t, f"p{self.count}", self))

    def life(self, armed_in=None, may_abort=False):
        """The whole life of a pod, with a fault in one phase."""
        self.end_pod()
        if self.before is None:  # what is made once: directories, a scratch disk ahead
            self.whole(self.new_life())
            self.before = leaks.snapshot(self.t.scope)
        life = self.new_life()
        life.armed_in = armed_in
        self.whole(life)
        self.judge(life, may_abort, self.before)
        return life.outcome

    def whole(self, life):
        try:
            life.run()
        finally:
            life.end()

    def judge(self, life, may_abort, before):
        died, self.control.died = self.control.died, 0
        if died == signal.SIGABRT and may_abort:
            life.outcome.gave_up = True
        elif died:
            life.broken(f"a process of the shim died of {signal.Signals(died).name}")
        left = leaks.left(before, self.t.scope, self.t.allowed)
        sockets = len(leaks.unix_sockets(self.t.scope))
        if before is self.pod_before and sockets <= len(before["unix socket"]):
            # The shim has connected to containerd anew, with another socket.
            left = [line for line in left if not line.startswith("unix socket left:")]
        if before is self.pod_before:  # a journal begins with the first error, and is locked
            left = [line for line in left if "/.journal/" not in line]
        if left and before is self.before:  # told once, not of every case that follows
            self.before = leaks.snapshot(self.t.scope)
        life.outcome.broken += left

    # ------------------------------------------------------------ kill -9 after a ledger's record

    def count_records(self):
        """How many records a life writes to its ledgers. It is traced from its first call on."""
        self.life()  # the first one includes another
        self.control.records, self.control.freeze_at = 0, 1 << 31
        outcome = self.life()
        self.control.freeze_at = 0
        self.t.equal(outcome.broken + outcome.errors, [], "a life without a fault")
        return self.control.records

    def kill_after(self, record, victim):
        """The life stands still after that record until victim(life's tracee) has returned whether
        there was somebody to kill. (outcome, whether there was)"""
        self.end_pod()
        control, killed = self.control, []
        control.records, control.freeze_at, control.frozen = 0, record, 0
        life, over = self.new_life(), threading.Event()

        def kill():
            while not control.frozen and not over.is_set():
                time.sleep(0.001)
            if control.frozen:
                killed.append(victim(life, control.frozen))
                control.frozen = 0
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            self.whole(life)
        finally:
            over.set()
            thread.join()
            control.freeze_at = 0
        self.judge(life, False, self.before)
        return life.outcome, any(killed)

    # ------------------------------------------------------------ many faults in one pod

    def in_pod(self, armed_in, may_abort):
        """A container's life in a pod that stays, if it outlives the fault."""
        if not self.pod:
            self.pod = self.new_life()
            self.t.check(self.pod.boot(), "a pod without a fault", self.pod.outcome.errors)
            self.pod.inner()
            self.pod_before = leaks.snapshot(self.t.scope)
            self.pod_fds = self.pod.fds()
        life, life.outcome, life.armed_in = self.pod, Outcome(), armed_in
        life.inner()
        life.leave_phase()
        if not life.is_well():
            life.outcome.errors.append("the pod has ended")
            self.end_pod()
            self.judge(life, may_abort, self.before)
        else:
            self.judge(life, may_abort, self.pod_before)
            if more := life.fds_beyond(self.pod_fds):
                life.broken(f"the shim has more open files: {more}")
            if life.outcome.broken:
                self.end_pod()
        return life.outcome

    def end_pod(self):
        life, self.pod = self.pod, None
        if life:
            life.armed_in = None
            try:
                life.finish(life.shim.name, "the pod")
            finally:
                life.end()


class Life:
    """One life. Steps that need one that failed are left out; what ends things is repeated."""

    def __init__(self, programme, shim):
        self.programme, self.shim, self.armed_in = programme, shim, None
        self.t, self.outcome = programme.t, Outcome()
        self.pid = self.inners = 0

    def broken(self, why):
        self.outcome.broken.append(why)

    def enter(self, phase):
        control = self.programme.control
        control.phase = PHASES.index(phase)
        control.armed = int(phase == self.armed_in)
        if control.armed and self.pid and self.shim_runs():
            self.programme.tell_tracer()

    def leave_phase(self):
        self.programme.control.armed = 0

    def ask(self, what, call, *args):
        """The answer, or None after an error; a hang and an error without words break laws."""
        start = time.monotonic()
        try:
            return call(*args)
        except Status as e:
            if not e.message.strip():
                self.broken(f"{what}: an error without text (code {e.code})")
            self.outcome.errors.append(f"{what}: {e}")
            return e
        except (socket.timeout, subprocess.TimeoutExpired):
            self.broken(f"{what}: no answer in {ANSWER_SECONDS} s")
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)  # else each call that follows takes as long
            return None
        except (OSError, Failure) as e:
            self.outcome.errors.append(f"{what}: {e}")
            return None
        finally:
            took = (time.monotonic() - start, what)
            self.outcome.slow = max(self.outcome.slow or took, took)

    def good(self, answer):
        return answer is not None and not isinstance(answer, Status)

    # ------------------------------------------------------------ steps

    def run(self):
        if self.boot():
            self.inner()
        if self.shim.address:
            self.enter("leave")
            self.finish(self.shim.name, "the pod")

    def boot(self):
        """Is there a pod then?"""
        self.enter("launch")
        if not self.launch():
            return False
        self.enter("boot")
        return self.good(self.ask("Create", self.shim.create)) and self.good(
            self.ask("Start", self.shim.call, "Start", text(1, self.shim.name)))

    def launch(self):
        r = self.ask("start", self.shim.binary, "start")
        if r is None or isinstance(r, Status):
            return False
        if r.returncode != 0:
            said = r.stderr.decode(errors="replace")
            if not said.strip():
                self.broken(f"start failed with {r.returncode} and said nothing")
            self.outcome.errors.append(f"start: {said.strip()}")
            self.pid = next(iter(self.t.shim_pids()), 0)  # its answer may have been lost
            return False
        self.shim.found(r.stdout)
        self.pid = self.t.shim_pid()
        return True

    def inner(self):
        self.inners += 1
        member = members.Member(self.shim, f"{self.shim.name}-{self.inners}",
                                self.shim.document())
        self.enter("create")
        created = self.good(self.ask("Create", member.create))
        if created and self.good(self.ask("Start", member.call, "Start")):
            self.enter("exec")
            answer = self.ask("exec", member.exec, "sh", "-c", f"echo out; exit {EXIT_CODE}")
            if isinstance(answer, tuple) and answer[0] != EXIT_CODE:
                self.untrue("the exec", answer[0])
        self.enter("delete")
        self.finish(member.name, "the container")
        member.wipe()

    def untrue(self, who, code):
        """A program whose exit was not seen may be reported as killed, never as a success."""
        if code == 0:
            self.broken(f"{who} is said to have ended with 0")
        else:
            self.outcome.errors.append(f"{who} is reported with exit status {code}")

    def finish(self, name, who):
        """Kill, Wait, Delete: each until it succeeds or the container is unknown."""
        for method, more in (("Kill", number(3, 9) + number(4, 1)), ("Wait", b""),
                             ("Delete", b"")):
            answer = self.until_done(f"{method} of {who}", method, text(1, name), more)
            if method == "Wait" and isinstance(answer, dict) and answer.get(1, 0) != 137:
                self.untrue(who, answer.get(1, 0))

    def until_done(self, what, method, *parts):
        for _ in range(TRIES):
            answer = self.ask(what, self.shim.call, method, *parts)
            if isinstance(answer, dict) or isinstance(answer, Status) and answer.code == NOT_FOUND:
                return answer
            if answer is None and not self.shim_runs():
                return None
        self.broken(f"{what} does not succeed: {answer}")
        return None

    def shim_runs(self):
        return self.pid and leaks.parents().get(self.pid, (0, "Z"))[1] != "Z"

    def is_well(self):
        """Does the pod's first container run?"""
        state = self.shim_runs() and self.ask("State", self.shim.call, "State",
                                              text(1, self.shim.name))
        return isinstance(state, dict) and state.get(4) == RUNNING

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def fds_beyond(self, count, seconds=3):
        """How many more there are, after a moment for connections that are being closed."""
        deadline = time.monotonic() + seconds
        while (more := self.fds() - count) > 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        return max(more, 0)

    # ------------------------------------------------------------ the end

    def end(self):
        """Shutdown, and `delete` as containerd runs it at last."""
        if self.shim.address and self.shim_runs():
            self.ask("Shutdown", self.shim.call, "Shutdown", text(1, self.shim.name))
        self.await_end()
        self.enter("cleanup")
        for i in range(TRIES):
            r = self.ask("delete", self.shim.delete)
            if r and r.returncode == 0:
                if shimcall.fields(r.stdout).get(2, 0) == 0:
                    self.broken("delete says that the pod ended with 0")
                break
            if r and not r.stderr.strip():
                self.broken("delete failed and said nothing")
        else:
            self.broken(f"delete does not succeed: {r}")
        self.leave_phase()
        self.shim.forget()
        shutil.rmtree(self.shim.bundle)

    def await_end(self):
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.shim_runs():
            if time.monotonic() > deadline:
                self.broken(f"the shim still runs after {LEAVE_SECONDS} s")
                os.kill(self.pid, signal.SIGKILL)
                deadline += LEAVE_SECONDS
            time.sleep(0.005)

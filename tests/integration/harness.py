"""What the tests are written with: declaring one, running lcow, waiting, comparing.

    @test("sh -c 'exit 7' exits with 7")
    def exit_code(t):
        t.equal(t.boot("sh", "-c", "exit 7").code, 7)

Each test has a private directory with run_root, TMPDIR and configuration below it, a range of user
ids of its own and a deadline. After each, whatever its outcome, the audit of leaks.py compares.
"""

import json
import math
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import cell
import leaks

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
# A directory with programs and image (make scrambled: build/words) in which the words of errors and log
# lines are scrambled (src/base/words.h): what depends on them beside golden lines fails.
SCRAMBLED = os.environ.get("LCOW_TEST_SCRAMBLED")
BUILD = os.path.join(TOP, SCRAMBLED or "build")
LCOW = os.environ.get("LCOW_TEST_PROGRAM", os.path.join(BUILD, "bin/lcow"))
IMAGE = os.environ.get("LCOW_TEST_IMAGE", os.path.join(BUILD, "image"))
CACHE = os.path.join(TOP, "build/integration")  # compiled helpers of the tests

DEADLINE = 180      # seconds for a whole test, unless it says otherwise
BOOT_SECONDS = 90   # a ceiling for one boot on a busy machine; 2 to 3 are usual
UIDS_PER_TEST = 64

SECTIONS = {"allow_emulation": "vm", "memory_mib": "vm", "cpus": "vm", "boot_timeout_s": "vm",
            "qemu": "vm", "image_dir": "vm", "template": "vm",
            "nested_virtualization": "vm"}

# The progress line on a terminal after each stage: it shows from outside how far a boot has come.
STAGES = {"spawned": "QEMU is running", "kernel": "the guest's kernel is starting",
          "init": "the agent is starting", "agent": "the agent is connected", "negotiated": "ready"}

# A template has a disk of that size in it: VMs with another size cannot be clones of it.
SCRATCH_MIB = 512

# May stay in run_root: the file of user ids in use, and how acceleration was found.
PERSISTENT = ("uids", "accel", "starts", "tsc")


def _flags():
    with open("/proc/cpuinfo") as f:
        text = f.read()
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(flags.group(1).split()) if flags else set(), "QEMU TCG" in text


def has_kvm():
    return bool({"vmx", "svm"} & _flags()[0]) and os.path.exists("/dev/kvm")


# In a host that is emulated itself (tests/host) everything is slow: ceilings are so much higher.
PATIENCE = 4 if has_kvm() and _flags()[1] else 1

# The verdict on KVM of the template's builder, which each test begins with: without one its first
# VM would not be a clone.
ACCEL = None


def without_kvm(t):
    """The CPU shows no virtualization, whatever it has."""
    with open("/proc/cpuinfo") as f:
        path = t.write("cpuinfo", re.sub(r"\b(vmx|svm)\b", "", f.read()))
    cell.mount(path, "/proc/cpuinfo", None, cell.MS_BIND)
    t.at_end(cell.umount, "/proc/cpuinfo")


def jobs():
    """One test more than there are processors: most of them wait for something now and then."""
    return min(len(os.sched_getaffinity(0)), 8) + 1


def keep():
    """What the workers must see although their /tmp is empty."""
    paths = sorted({TOP, os.path.dirname(os.path.realpath(LCOW)), os.path.realpath(IMAGE)})
    return [p for p in paths if not any(p.startswith(q + "/") for q in paths)]


class Failure(Exception):
    pass


class TooSlow(Failure):
    """The deadline that the test wanted to see passed before the boot had come that far."""


class Skip(Exception):
    pass


class Deadline(BaseException):
    """Not an Exception: no test may catch it by accident."""


TESTS = []
TEMPLATE = "off"  # the directory of the template that clones are made of; set by the runner


def test(name, deadline=DEADLINE, full=False, clone=False):
    """Declares a test. full: only with --full. clone: it is not about booting, so that its VM may
    be a clone of the template, a sixth of the work under emulation."""
    def declare(body):
        if any(t.name == name for t in TESTS):
            raise ValueError(f"two tests are called: {name}")
        TESTS.append(Case(name, body, deadline, full, clone))
        return body
    return declare


class Case:
    def __init__(self, name, body, deadline, full, clone=False):
        self.name, self.body, self.deadline, self.full = name, body, deadline, full
        self.clone = clone


# One frame of the line of progress, which the next one overwrites.
FRAME = re.compile(r"\r\x1b\[K[^\r\n]*(?=\r\x1b)")
# What a program that was built with ASan says of fibers, harmlessly (LCOW_TEST_PROGRAM).
SANITIZER = re.compile(r"==\d+==WARNING: ASan doesn't fully support makecontext[^\n]*\n")


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out_bytes, self.seconds = code, out, seconds
        self.out, self.err = (b.decode(errors="replace") for b in (out, err))
        self.err = SANITIZER.sub("", FRAME.sub("", self.err))

    def __str__(self):
        return (f"exit code {self.code} after {self.seconds:.1f} s\n"
                f"stdout: {self.out[-2000:]}\nstderr: {self.err[-4000:]}")


class Process:
    """A running lcow. Its output goes to files, so that nobody has to read in time."""

    def __init__(self, t, argv, stdin, stdout, env, wrap, progress):
        self.t, self.started, self._threads = t, time.monotonic(), []
        base = os.path.join(t.work, f"p{len(t.processes)}")
        self.out_path, self.err_path = base + ".out", base + ".err"
        data, stdin = (stdin, subprocess.PIPE) if isinstance(stdin, bytes) else (None, stdin)
        master, slave = os.openpty() if progress else (-1, -1)
        if progress:
            env = {**env, "TERM": "xterm"}
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.popen = subprocess.Popen(
                [*wrap, *argv], stdin=stdin, stdout=out if stdout is None else stdout,
                stderr=slave if progress else err, env={**t.env, **env}, cwd=t.work,
                start_new_session=True)
        self.pid = self.popen.pid
        if progress:
            os.close(slave)
            self._run(self._collect, master)
        if data is not None:
            self._run(self._feed, data)

    def _run(self, target, argument):
        self._threads.append(threading.Thread(target=target, args=(argument,), daemon=True))
        self._threads[-1].start()

    def _collect(self, master):
        """The terminal that is lcow's stderr, into the file."""
        with open(self.err_path, "ab", buffering=0) as err:
            try:
                while part := os.read(master, 65536):
                    err.write(part)
            except OSError:
                pass  # EIO: nobody has it open any more
        os.close(master)

    def _feed(self, data):
        try:
            self.popen.stdin.write(data)
            self.popen.stdin.flush()
        except OSError:
            pass  # the reader has gone: that may be what the test is about
        finally:
            try:
                self.popen.stdin.close()
            except OSError:
                pass

    @property
    def running(self):
        return self.popen.poll() is None

    @property
    def err(self):
        with open(self.err_path, errors="replace", newline="") as f:
            return f.read()

    def signal(self, signo):
        self.popen.send_signal(signo)

    def wait(self, seconds=BOOT_SECONDS):
        seconds *= PATIENCE
        if not self._ends_within(seconds):
            raise Failure(f"{' '.join(self.popen.args)}: no end within {seconds} s\n"
                          f"stderr: {FRAME.sub('', self.err)[-4000:]}")
        self.join()
        with open(self.out_path, "rb") as out, open(self.err_path, "rb") as err:
            return Result(self.popen.returncode, out.read(), err.read(),
                          time.monotonic() - self.started)

    def _ends_within(self, seconds):
        """Popen.wait(seconds) looks every 50 ms, which is in every time that is measured."""
        if self.popen.poll() is None:
            fd, poll = os.pidfd_open(self.popen.pid), select.poll()
            try:
                poll.register(fd, select.POLLIN)
                poll.poll(seconds * 1000)
            finally:
                os.close(fd)
        return self.popen.poll() is not None

    def join(self):
        for thread in self._threads:
            thread.join(5)

    def vmm_pids(self):
        """QEMU, or what stands in for it: the descendants in pid namespaces of their own."""
        own, found = os.readlink("/proc/self/ns/pid"), []
        for pid in leaks.descendants(self.pid):
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") != own:
                    found.append(pid)
            except OSError:
                pass  # gone meanwhile
        return found

    def await_vmm(self, seconds=BOOT_SECONDS):
        """The VMM's pid, once it has left our program behind."""
        def look():
            for pid in self.vmm_pids():
                try:
                    if os.readlink(f"/proc/{pid}/exe") != os.path.realpath(LCOW):
                        return pid
                except OSError:
                    pass
            return None
        return self.t.until(look, "the VMM runs", seconds, self)

    def await_stage(self, stage, seconds=BOOT_SECONDS):
        """Only with progress=True."""
        self.await_text(re.escape(STAGES[stage]), seconds)

    def await_text(self, pattern, seconds=BOOT_SECONDS):
        """The first match in stderr."""
        return self.t.until(lambda: re.search(pattern, self.err), f"stderr shows {pattern}",
                            seconds, self)

    def await_output(self, pattern, seconds=BOOT_SECONDS):
        def look():
            with open(self.out_path, errors="replace") as f:
                return re.search(pattern, f.read())
        return self.t.until(look, f"stdout shows {pattern}", seconds, self)


class Test:
    """One run of one test."""
    _count = 0
    _usual_boot = None  # seconds, measured once per worker

    def __init__(self, case):
        Test._count += 1
        self.case, self.processes, self.notes, self._undo = case, [], [], []
        number = os.getpid() % 100000
        self.tag = f"lcow-test-{number}-{Test._count}"
        self.dir = os.path.join("/tmp", self.tag)
        self.uid_base = 2100000000 + number * 1000 + Test._count % 10 * UIDS_PER_TEST
        self.scope = leaks.Scope(self.dir, self.tag, self.uid_base, UIDS_PER_TEST)
        self.work, self.run_root = (os.path.join(self.dir, d) for d in ("work", "run"))
        self.config_path = os.path.join(self.dir, "work", "lcow.conf")
        self.env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "TERM": "dumb",
                    "HOME": os.path.join(self.dir, "home"), "TMPDIR": os.path.join(self.dir, "tmp"),
                    "LCOW_CONFIG": self.config_path}
        self._keys = {"run_root": self.run_root, "image_dir": IMAGE,
                      "boot_timeout_s": min(BOOT_SECONDS * PATIENCE, 120),
                      "vm_uid_base": self.uid_base, "vm_uid_count": UIDS_PER_TEST,
                      "template": "off", "template_dir": os.path.join(self.dir, "templates"),
                      "layer_dir": os.path.join(self.dir, "layers")}
        if getattr(case, "clone", False) and TEMPLATE != "off":
            self._keys.update(template="auto", template_dir=TEMPLATE, scratch_mib=SCRATCH_MIB)

    # ------------------------------------------------------------ surroundings

    def make_dirs(self):
        for path in (self.dir, self.work, self.env["HOME"], self.env["TMPDIR"], self.run_root):
            os.mkdir(path)
        if ACCEL:
            with open(os.path.join(self.run_root, "accel"), "w") as f:
                f.write(ACCEL)
        self.config()

    def config(self, **keys):
        """Changes keys of the configuration; None takes one out."""
        self._keys.update(keys)
        lines = {"vm": [], "host": []}
        for key, value in self._keys.items():
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                lines[SECTIONS.get(key, "host")].append(f"{key} = {text}\n")
        self.write("lcow.conf", "".join(f"[{s}]\n" + "".join(l) for s, l in lines.items()))

    def write(self, name, content, mode=0o644):
        path = os.path.join(self.work, name)
        with open(path, "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())
        os.chmod(path, mode)
        return path

    def at_end(self, call, *args):
        """Undoes what the test itself did, before the audit."""
        self._undo.append((call, args))

    # ------------------------------------------------------------ running lcow

    def start(self, *args, stdin=subprocess.DEVNULL, stdout=None, env={}, wrap=(),
              progress=False):
        """progress: stderr is a terminal, on which lcow shows the stage of the boot."""
        p = Process(self, [LCOW, *args], stdin, stdout, env, wrap, progress)
        self.processes.append(p)
        return p

    def lcow(self, *args, seconds=BOOT_SECONDS, **how):
        return self.start(*args, **how).wait(seconds)

    def boot(self, *command, opts=(), seconds=BOOT_SECONDS, **how):
        return self.start_boot(*command, opts=opts, **how).wait(seconds)

    def start_boot(self, *command, opts=(), **how):
        behind = ("--", *command) if command else ()
        return self.start("boot", "--allow-emulation", *opts, *behind, **how)

    def with_short_boot_timeout(self, attempt):
        """For a test that must wait until boot_timeout_s has passed: calls attempt(seconds) with
        one that a good boot keeps on this machine with little to spare, and again with a longer
        one if that raises TooSlow: others may use the machine, too."""
        if not Test._usual_boot:
            r = self.boot("true", opts=("--json",))
            self.equal(r.code, 0, r)
            Test._usual_boot = json.loads(r.out.splitlines()[-1])["stages"][-1]["at_ms"] / 1000
        seconds = math.ceil(3 + 2 * Test._usual_boot)
        while True:
            self.config(boot_timeout_s=min(seconds, 120))
            try:
                return attempt(seconds)
            except TooSlow as e:
                seconds *= 2
                self.note(f"repeated with {seconds} s: {str(e).splitlines()[0]}")
                if seconds > 60:
                    raise

    def boot_fails(self, *patterns, opts=(), code=125, seconds=60, command=("true",)):
        """lcow must fail by itself, in time, and its message must show each pattern."""
        r = self.boot(*command, opts=opts, seconds=seconds)
        self.equal(r.code, code, r)
        for pattern in patterns:
            self.words(pattern, flat(r.err), r)
        return r

    # ------------------------------------------------------------ saying what must be

    def check(self, good, what, detail=""):
        if not good:
            raise Failure(f"{what}\n{detail}".rstrip())

    def equal(self, got, wanted, detail=""):
        self.check(got == wanted, f"got {got!r:.500}, wanted {wanted!r:.500}", detail)

    def match(self, pattern, text, detail=""):
        m = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        self.check(m, f"no match of {pattern!r} in: {text[-3000:]}",
                   detail if str(detail) not in text else "")
        return m

    def words(self, pattern, text, detail=""):
        """A golden line: words of an error or a log line, on which nothing else of the test depends."""
        if not SCRAMBLED:
            self.match(pattern, text, detail)

    def until(self, look, what, seconds=BOOT_SECONDS, process=None):
        """Waits until look() is true and returns it; never longer than `seconds`."""
        seconds *= PATIENCE
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            if process and not process.running and not look():
                raise Failure(f"lcow ended while waiting until {what}\n{process.wait(1)}")
            if time.monotonic() > deadline:
                raise Failure(f"not within {seconds} s: {what}" +
                              (f"\nstderr: {FRAME.sub('', process.err)[-4000:]}" if process
                               else ""))
            time.sleep(0.01)

    def note(self, text):
        """A line of diagnosis, shown beneath the result."""
        self.notes.append(text)

    # ------------------------------------------------------------ the end

    def stop_processes(self):
        """Whatever the test did not wait for: asked first, then killed."""
        for p in self.processes:
            end(p.popen)
            if p.popen.stdin and not p.popen.stdin.closed:
                try:
                    p.popen.stdin.close()
                except OSError:
                    pass
            p.join()

    def undo(self):
        """All of it, whatever fails; the first failure is what the test ends with."""
        trouble = []
        while self._undo:
            call, args = self._undo.pop()
            try:
                call(*args)
            except Exception as e:
                trouble.append(e)
        if trouble:
            raise trouble[0]

    def allowed(self, path):
        """What may be there after the test: its own files, and what lcow keeps on purpose."""
        if not path.startswith(self.dir):
            return False
        rest = path[len(self.dir):].strip("/")
        return rest in ("", "work", "home", "tmp", "run") or rest.startswith("work/") or \
            rest in [f"run/{name}" for name in PERSISTENT]

    def wipe(self):
        """Leaves nothing for the next test, whatever this one left."""
        for pid in leaks.descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + 5
        while leaks.descendants(os.getpid()) and time.monotonic() < deadline:
            leaks.reap()
            time.sleep(0.01)
        for root in leaks.mounts(self.scope).values():
            path = root.split(" (")[0]
            if path.startswith(self.dir) or path.startswith("/run/"):
                try:
                    cell.umount(path)
                except OSError:
                    pass
        shutil.rmtree(self.dir, ignore_errors=True)


def end(popen):
    """Two requests, the first of which may go to a command that does not listen; then by force."""
    for wait in (1, 10):
        if popen.poll() is None:
            popen.send_signal(signal.SIGCONT)
            popen.send_signal(signal.SIGTERM)
            try:
                popen.wait(wait)
            except subprocess.TimeoutExpired:
                pass
    if popen.poll() is None:
        popen.kill()
        popen.wait()


def flat(text):
    """Messages are wrapped at 80 columns: one line is easier to search."""
    return re.sub(r"\s+", " ", text)


def cpu_seconds(pid):
    """Processor time of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            user, system = f.read().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def compile_c(name, *flags):
    """A static program from a source, by its path from here; kept until the source changes."""
    source = os.path.join(HERE, name)
    os.makedirs(CACHE, exist_ok=True)
    binary = os.path.join(CACHE, os.path.basename(name).removesuffix(".c") + "".join(flags))
    if not os.path.exists(binary) or os.path.getmtime(binary) < os.path.getmtime(source):
        with tempfile.TemporaryDirectory(dir=CACHE) as private:
            out = os.path.join(private, "out")
            subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o",
                            out, source], check=True)
            os.rename(out, binary)
    return binary


# ---------------------------------------------------------------- one test, from before to after

def _on_alarm(signo, frame):
    raise Deadline()


def _run_body(t, case):
    """None, or why it failed."""
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, case.deadline * PATIENCE)
    try:
        t.make_dirs()
        case.body(t)
        return None
    except Failure as e:
        return str(e)
    except Deadline:
        return f"the test did not end within {case.deadline * PATIENCE} s\n" + "\n".join(
            f"stderr: {p.err[-3000:]}" for p in t.processes[-2:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _processor():
    """Seconds that this worker and what it has reaped (VMs and orphans included) have used."""
    return sum(sum(resource.getrusage(who)[:2])
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def run_case(case):
    """{ok, skip, seconds, cpu, detail}"""
    import traceback
    start, used, t, why, skip = time.monotonic(), _processor(), Test(case), None, None
    before = leaks.snapshot(t.scope)
    try:
        try:
            why = _run_body(t, case)
        except Skip as e:
            skip = str(e)
        except Exception:
            why = traceback.format_exc()
        t.stop_processes()
        t.undo()
    except Exception:
        why = (why or "") + traceback.format_exc()
    left = leaks.left(before, t.scope, t.allowed, leaks.SETTLE_SECONDS * PATIENCE)
    t.wipe()
    detail = "\n".join(filter(None, [why, *left, *t.notes]))
    return {"ok": why is None and not left, "skip": skip, "detail": detail,
            "seconds": time.monotonic() - start, "cpu": _processor() - used}

"""What the end-to-end tests are written with, on top of tests/integration/harness.py.

    @test("run prints what the program writes", smoke=True)
    def output(t):
        t.equal(t.run("--rm", "c1", "echo", "hi").out, "hi\\n")

Each test has a containerd of its own, in the cell of its worker. After each, its tasks and
containers are removed, containerd is stopped, and the audit of tests/integration/leaks.py compares.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

import archives  # noqa: E402
import daemon  # noqa: E402
import harness  # noqa: E402
import leaks  # noqa: E402
import packages  # noqa: E402
import terminal  # noqa: E402
from harness import Failure  # noqa: E402,F401

SECONDS = 120   # a ceiling for one command that may boot a VM on a busy machine
DEADLINE = 300  # for a whole test, unless it says otherwise
RUNTIMES = {"lcow": "io.containerd.lcow.v2", "runc": "io.containerd.runc.v2"}
LOGS = os.environ.get("E2E_LOGS", os.path.join(packages.TOP, "build/e2e"))
TEMPLATE = "off"  # or the directory of the one that VMs are cloned from; run sets it
COLD_ON = "1.7"   # so that both ways are gone: on this one VMs boot on their own,
COLD_EACH = 3     # those of every third case; with --full all

harness.SECTIONS.update({"overhead_mib": "vm", "max_memory_mib": "vm", "max_cpus": "vm",
                         "emulation_cache_mib": "vm",
                         "rootfs": "vm", "template": "vm", "layer_images": "vm", "layer_verity": "vm", "device_slots": "vm", "scratch_dir": "host",
                         "scratch_mib": "host", "scratch_quota_mib": "host", "cpu_group_dir": "host"})

LAYERS = os.environ.get("LCOW_E2E_LAYERS", "off")  # layer_images of tests that do not set it

DECLARED = []


class Declared:
    def __init__(self, name, body, deadline, full, smoke, runc, images, versions, prepare):
        self.name, self.body, self.deadline, self.full = name, body, deadline, full
        self.smoke, self.runc, self.images = smoke, runc, images
        self.versions, self.prepare = versions, prepare

    def case(self, version, runtime):
        case = harness.Case(f"{version}: {self.name}", self.body, self.deadline, self.full)
        case.version, case.runtime, case.images = version, runtime, self.images
        case.prepare, case.cold = self.prepare, False
        return case


CGROUP_V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")


def cgroup_roots():
    """The host's hierarchies; systemd has links beside those of two controllers."""
    return ["/sys/fs/cgroup"] if CGROUP_V2 else [
        top for p in glob.glob("/sys/fs/cgroup/*/cgroup.procs") if not os.path.islink(top := os.path.dirname(p))]


def test(name, deadline=DEADLINE, full=False, smoke=False, runc=True, images=("busybox",),
         versions=tuple(packages.SUITES), prepare=lambda t: {}):
    """Declares a test. full: only with --full; smoke: also on the older containerds without it, if
    "one", because it is more about the guest than about containerd, on one of them, by turns;
    runc: true of runc's shim, too; images: those it needs, the first is what run() runs; versions:
    of containerd that it is about; prepare(t): what containerd is made with beyond the usual."""
    def declare(body):
        if any(d.name == name for d in DECLARED):
            raise ValueError(f"two tests are called: {name}")
        DECLARED.append(Declared(name, body, deadline, full, smoke, runc, images, versions, prepare))
        return body
    return declare


class Test(harness.Test):
    """One run of one test, with a containerd."""

    def __init__(self, case):
        super().__init__(case)
        self.version, self.runtime = case.version, RUNTIMES[case.runtime]
        self.is_runc = case.runtime == "runc"
        self.image = archives.name(case.images[0]) if case.images else None
        self.containerd = None
        self.keys(allow_emulation=True, scratch_dir=self.env["TMPDIR"],
                  scratch_mib=harness.SCRATCH_MIB, log_level="debug")
        # Images of layers that are made meanwhile would change what a test sees of its VM.
        self.keys(layer_images=LAYERS, layer_dir=os.path.join(self.work, "layers"))
        if TEMPLATE == "off" or case.cold:
            self.keys(template="off")
        else:
            self.keys(template="auto", template_dir=TEMPLATE)

    def keys(self, **keys):
        """Before make_dirs writes them; config() afterwards."""
        self._keys.update(keys)

    def config(self, **keys):
        """As in the base, with this one's section."""
        self._keys.update(keys)
        lines = {"vm": [], "storage": [], "host": []}
        for key, value in self._keys.items():
            if value is not None:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                lines[harness.SECTIONS.get(key, "host")].append(f"{key} = {text}\n")
        self.write("lcow.conf", "".join(f"[{s}]\n" + "".join(l) for s, l in lines.items()))

    def make_dirs(self):
        super().make_dirs()
        self.containerd = daemon.Containerd(self.version, os.path.join(self.work, "c"), self.env,
                                            **self.case.prepare(self))
        self.at_end(self.end_containerd)
        self.containerd.start()
        for image in self.case.images:
            self.must("images", "import", archives.path(image))

    # ------------------------------------------------------------ ctr

    def argv(self, *args):
        return [packages.program(self.version, "ctr"), "-a", self.containerd.address,
                "-n", self.tag, *args]

    def start_ctr(self, *args, stdin=subprocess.DEVNULL, stdout=None):
        p = harness.Process(self, self.argv(*args), stdin, stdout, {}, (), False)
        self.processes.append(p)
        return p

    def ctr(self, *args, seconds=SECONDS, **how):
        return self.start_ctr(*args, **how).wait(seconds)

    def must(self, *args, **how):
        """ctr, which must succeed."""
        r = self.ctr(*args, **how)
        self.equal(r.code, 0, f"ctr {' '.join(args)[:300]}: {r}")
        return r

    def fails(self, *args, pattern="", seconds=SECONDS, **how):
        r = self.ctr(*args, seconds=seconds, **how)
        self.check(r.code != 0, f"ctr {' '.join(args)[:300]} did not fail", r)
        self.words(pattern, r.err, r)
        return r

    def explains(self, sandbox, reason, seconds=60):
        """lcow explain prints that reason for a failure that was provoked, with cause and remedy.
        sandbox may be None: that of the newest journal. The shim may be gone; before it is, its
        journal may lack the last line for a moment."""
        if self.is_runc:
            return
        if sandbox is None:
            sandbox = max((f for f in os.scandir(f"{self.run_root}/.journal")
                           if f.name.count("@") == 1), key=lambda f: f.stat().st_mtime).name
            sandbox = sandbox.replace("@", "/", 1)

        def look():
            r = self.lcow("explain", "--json", sandbox)
            failure = json.loads(r.out)["failure"] if r.code == 0 else None
            return failure and failure["reason"] == reason and failure
        try:
            failure = self.until(look, f"explain prints {reason}", seconds)
        except Failure as e:
            raise Failure(f"{e}\n{self.lcow('explain', sandbox)}") from None
        shown = " ".join(self.lcow("explain", sandbox).out.split())
        for word in ("reason", "cause", "remedy"):
            self.check(failure[word] and f"{word} {failure[word]}" in shown, f"the {word}", shown)
        return failure

    def run_args(self, *args, image=None):
        """Options, then the container's id, then the command: ctr wants the image before the id.
        An option that takes a value is written --name=value here."""
        at = next(i for i, a in enumerate(args) if not a.startswith("-"))
        return ["run", "--runtime", self.runtime, *args[:at], image or self.image, *args[at:]]

    def run(self, *args, image=None, **how):
        return self.ctr(*self.run_args(*args, image=image), **how)

    def start_run(self, *args, image=None, **how):
        return self.start_ctr(*self.run_args(*args, image=image), **how)

    def detach(self, *args, image=None):
        """run -d, which must succeed."""
        return self.must(*self.run_args("-d", *args, image=image))

    def exec(self, container, *command, opts=(), exec_id=None, **how):
        return self.ctr(*self.exec_args(container, *command, opts=opts, exec_id=exec_id), **how)

    def exec_args(self, container, *command, opts=(), exec_id=None):
        self._execs = getattr(self, "_execs", 0) + 1
        return ["tasks", "exec", "--exec-id", exec_id or f"e{self._execs}", *opts, container,
                *command]

    def terminal(self, *args, rows=24, cols=80):
        """ctr on a pseudo-terminal; the container's is raw behind it."""
        argv = self.argv(*args)
        return terminal.Terminal(self, *argv[1:], program=argv[0], rows=rows, cols=cols)

    # ------------------------------------------------------------ what there is

    def tasks(self):
        """id -> (pid, status)"""
        lines = self.must("tasks", "ls").out.splitlines()[1:]
        return {f[0]: (int(f[1]), f[2]) for f in map(str.split, lines)}

    def status(self, container):
        return self.tasks().get(container, (0, "none"))[1]

    def await_status(self, container, status, seconds=SECONDS):
        self.until(lambda: self.status(container) == status, f"{container} is {status}", seconds)

    def metrics(self, container):
        return json.loads(self.must("tasks", "metrics", "--format", "json", container).out)

    def events(self):
        """ctr events, once it listens."""
        p = self.start_ctr("events")
        mark = f"listening{len(self.processes)}"

        def listens():
            self.ctr("namespaces", "create", mark)
            self.ctr("namespaces", "remove", mark)
            with open(p.out_path) as f:
                return mark in f.read()
        self.until(listens, "ctr events listens", 30, p)
        return p

    def topics(self, events, container):
        """Of one container, in order: ["create", "start", …]"""
        with open(events.out_path) as f:
            lines = f.read().splitlines()
        return [m.group(1) for line in lines if f'"{container}"' in line and
                (m := re.search(r" /tasks/([\w-]+) ", line))]

    def shim_pids(self):
        """Of shims that serve: they have left containerd."""
        table, found = leaks.parents(), []
        for pid, (parent, state, _) in table.items():
            if parent != os.getpid() or state == "Z":
                continue
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("containerd-shim-"):
                    found.append(pid)
            except OSError:
                pass  # gone meanwhile
        return found

    def shim_pid(self):
        pids = self.shim_pids()
        self.equal(len(pids), 1, f"shims: {pids}")
        return pids[0]

    def qemu_pids(self):
        found = []
        for pid in leaks.descendants(os.getpid()):
            try:
                if "qemu-system" in os.readlink(f"/proc/{pid}/exe"):
                    found.append(pid)
            except OSError:
                pass
        return found

    def qemu_pid(self):
        pids = self.qemu_pids()
        self.equal(len(pids), 1, f"QEMUs: {pids}")
        return pids[0]

    def gone(self, pid, seconds=10):
        def look():
            leaks.reap_orphans(*[p.popen for p in self.processes], self.containerd.popen)
            return pid not in leaks.parents()
        self.until(look, f"process {pid} is gone", seconds)

    def resident_kib(self, pid):
        with open(f"/proc/{pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    # ------------------------------------------------------------ the end

    def end_containerd(self):
        """Removes what the test did not, as an operator would, and looks what then is left."""
        if not self.containerd.popen or self.containerd.popen.poll() is not None:
            self.containerd.start()
        trouble = self.remove_all()
        self.until_no_shim(trouble)
        self.until_settled()
        self.containerd.stop()
        for path in glob.glob(f"/sys/fs/cgroup/*/{self.tag}") + [f"/sys/fs/cgroup/{self.tag}"]:
            try:
                os.rmdir(path)  # the directory of the namespace, which nobody owns
            except OSError:
                pass
        if trouble:
            raise Failure("\n".join(trouble))

    def remove_all(self):
        trouble = []
        for container in self.ctr("containers", "ls", "-q").out.split():
            if container in self.tasks():
                r = self.ctr("tasks", "rm", "-f", container)
                if r.code != 0 and container in self.tasks():
                    trouble.append(f"ctr tasks rm -f {container}: {r}")
            r = self.ctr("containers", "rm", container)
            if r.code != 0:
                trouble.append(f"ctr containers rm {container}: {r}")
        return trouble + [f"bundle left: {name}" for name in self.bundles_left()]

    def bundles_left(self, seconds=30):
        """containerd removes the bundles of a shim that ended a moment after it says so."""
        bundles, deadline = self.containerd.bundle(self.tag), time.monotonic() + seconds
        while os.path.isdir(bundles) and os.listdir(bundles) and time.monotonic() < deadline:
            time.sleep(0.05)
        return os.listdir(bundles) if os.path.isdir(bundles) else []

    def until_no_shim(self, trouble, seconds=60):
        """containerd drops a shim a moment before the shim has exited; a shim that still expects a
        Create, of a containerd that was killed, stays for half a minute."""
        deadline = time.monotonic() + seconds
        while self.shim_pids():
            if time.monotonic() > deadline:
                trouble.append(f"shims still run: {self.shim_pids()}")
                return
            time.sleep(0.05)

    def until_settled(self, seconds=45):
        """A client may have its answer before containerd has called `delete` for a dead shim. What
        is still there after that is for the audit."""
        deadline = time.monotonic() + seconds
        while ((os.path.exists(os.path.join(self.run_root, self.tag)) or self.shim_pids())
               and time.monotonic() < deadline):
            time.sleep(0.05)

    def allowed(self, path):
        """What belongs to containerd and its clients: directories that they share and never
        remove, and the FIFOs of a client that was killed or whose task was lost."""
        if super().allowed(path) or path.startswith("/run/containerd/fifo/"):
            return True
        if path.removeprefix(self.dir) in ("/tmp/sandboxes", "/tmp/scratch"):
            return True  # the directory of all scratch disks
        if self.is_runc and path.startswith("/run/containerd/s/"):
            return True  # its delete does not remove the socket of a shim that was killed
        return path in ("/run/containerd", "/run/containerd/s", "/run/containerd/fifo", "/run/netns",
                        "/run/containerd/runc", "/run/containerd/runc/k8s.io",
                        f"/run/containerd/runc/{self.tag}")

    def wipe(self):
        """The logs of the last run of each test stay in build/e2e."""
        slug = re.sub(r"[^\w.]+", "-", self.case.name)[:100]
        kept = os.path.join(LOGS, slug)
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)
        for path in glob.glob(f"{self.work}/p*.err") + glob.glob(f"{self.work}/p*.out") + \
                glob.glob(f"{self.work}/c/*.log") + glob.glob(f"{self.work}/lcow.conf"):
            if os.path.getsize(path) < 4 << 20:
                shutil.copy(path, kept)
        super().wipe()
        for path in sorted(leaks.cgroups(self.scope), reverse=True):
            try:
                os.rmdir(path)
            except OSError:
                pass


def kill(pid):
    os.kill(pid, signal.SIGKILL)

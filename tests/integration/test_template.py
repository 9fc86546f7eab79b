"""Templates and clones: what they share and what they must not, and what happens when something is
wrong with them."""

import ctypes
import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import time

from harness import BOOT_SECONDS, CACHE, LCOW, Skip, compile_c, flat, test

CLONES = 16
POD_MIB = 45  # what a clone may cost
SHARED = os.path.join(CACHE, "templates")  # kept from run to run; a key says what fits
CLOCK_NS = 50 * 10**6
BUILD_SECONDS = 150
COLD_START = "operation=cold-start"  # the log line of a clone that failed


def qemu_is_new_enough():
    out = subprocess.run(["qemu-system-x86_64", "-version"], capture_output=True, text=True,
                         check=False).stdout
    m = re.search(r"version (\d+)\.(\d+)", out)
    return bool(m) and (int(m[1]), int(m[2])) >= (8, 2)


def use_templates(t, directory=None):
    """The template is there; its key. directory: one of the test's own."""
    if not qemu_is_new_enough():
        raise Skip("QEMU before 8.2 has no templates")
    if directory is None:
        os.makedirs(CACHE, exist_ok=True)
        directory = SHARED
    t.config(template="auto", template_dir=directory, allow_emulation=True)
    r = t.lcow("template", "build", "--json", seconds=BUILD_SECONDS)
    t.equal(r.code, 0, r)
    key = json.loads(r.out)["template"]["key"]
    for other in os.listdir(directory):
        if directory == SHARED and len(other) == 32 and other != key:
            t.lcow("template", "rm", other)
    return key


def own_templates(t):
    """A store that the test may damage; below work, where files may stay."""
    directory = os.path.join(t.work, "templates")
    use_templates(t)
    shutil.copytree(SHARED, directory, copy_function=shutil.copy2)
    os.chmod(directory, 0o700)
    # Another inode is another template: the copy records its own, as a builder would.
    for key in os.listdir(directory):
        rewrite_header(os.path.join(directory, key))
    t.config(template_dir=directory)
    return directory, os.path.join(directory, os.listdir(directory)[0])


def rewrite_header(path, **changes):
    """An honest header for files that are not what they were."""
    with open(os.path.join(path, "header"), encoding="utf-8") as f:
        header = json.loads(f.read().split("\n", 1)[1])
    for name in ("ram", "state"):
        st = os.stat(os.path.join(path, name))
        header[name].update(size=st.st_size, inode=st.st_ino, mtime_ns=st.st_mtime_ns)
    header.update(changes)
    body = json.dumps(header, separators=(",", ":"))
    with open(os.path.join(path, "header"), "w", encoding="utf-8") as f:
        f.write(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)


def result_of(t, *command, opts=(), **how):
    """One boot; (its JSON, what the guest printed)."""
    path = os.path.join(t.work, f"result{len(t.processes)}.json")
    r = t.boot(*command, opts=(f"--json={path}", *opts), **how)
    t.equal(r.code, 0, r)
    with open(path, encoding="utf-8") as f:
        return json.load(f), r.out


class Probe:
    """fresh_probe.c in a clone: what it has, and its clock against ours."""

    def __init__(self, t, binary):
        self.t = t
        command = (f"head -c {os.path.getsize(binary)} > /mnt/probe; chmod +x /mnt/probe; "
                   "modprobe qemu_fw_cfg; exec /mnt/probe")
        self.popen = subprocess.Popen([LCOW, "boot", "--", "sh", "-c", command],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env=t.env, cwd=t.work, bufsize=0)
        t.at_end(self.end)
        with open(binary, "rb") as f:
            self.popen.stdin.write(f.read())
        self.values = {}

    def collect(self):
        out = self.popen.stdout
        for line in iter(out.readline, b""):
            name, *value = line.decode().split()
            if name == "done":
                break
            self.values[name] = value[0]
        else:
            self.t.check(False, "the probe ended", self.popen.stderr.read().decode())
        low, high = -10**18, 10**18
        for _ in range(10):  # guest - host lies in each of these
            before = time.time_ns()
            self.popen.stdin.write(b"?\n")
            theirs = int(out.readline())
            low, high = max(low, theirs - time.time_ns()), min(high, theirs - before)
        self.offset = (low, high)

    def end(self):
        if self.popen.poll() is None:
            self.popen.stdin.close()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        self.popen.stdout.close()
        self.popen.stderr.close()


def check_different(t, probes, name):
    values = [p.values.get(name) for p in probes]
    t.check(None not in values and "missing" not in values, f"{name} is missing: {values}")
    t.equal(len(set(values)), len(values), f"{name}: {values}")


def check_sequence_secret(t, probes):
    """Two that share the secret differ by the time between two calls, in all of the four."""
    def near(a, b):
        return min((a - b) % 2**32, (b - a) % 2**32) < 10**6

    for i, a in enumerate(probes):
        for b in probes[:i]:
            same = all(near(int(a.values[f"isn{k}"]), int(b.values[f"isn{k}"])) for k in range(4))
            t.check(not same, f"two clones share TCP's secret: {a.values} {b.values}")


@test("16 clones share no secret, and their clocks are right", deadline=400)
def fresh(t):
    use_templates(t)
    binary = compile_c("fresh_probe.c")
    probes = []
    while len(probes) < CLONES:
        some = [Probe(t, binary) for _ in range(4)]
        for p in some:
            p.collect()
        for p in some:
            p.end()
        probes += some
    for name in ("getrandom", "at_random", "uuid", "boot_id", "machine_id", "hostname",
                 "boot_block"):
        check_different(t, probes, name)
    check_sequence_secret(t, probes)
    for p in probes:
        t.check(p.offset[0] < CLOCK_NS and p.offset[1] > -CLOCK_NS,
                f"a clone's clock is off by {p.offset} ns")
    t.note("clocks off by " + ", ".join(f"{(p.offset[0] + p.offset[1]) / 2e6:.1f}" for p in probes)
           + " ms")


def kept(t, *opts):
    p = t.start_boot("true", opts=("--keep", *opts))
    t.until(lambda: "keeps running" in p.err, "the VM is kept", process=p)
    return p, int(re.search(r"pid (\d+)", p.err)[1])


def expect_refusal(t, what, call):
    try:
        call()
    except OSError as e:
        t.check(e.errno in (errno.EROFS, errno.EBADF, errno.EACCES, errno.EPERM, errno.EINVAL),
                f"{what}: {e}")
        return
    t.check(False, f"{what} succeeded")


def pidfd_getfd(pid, fd):
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    got = libc.syscall(438, pidfd, fd, 0)
    os.close(pidfd)
    if got < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return got


@test("through no descriptor of QEMU can a template be written", deadline=240)
def unwritable(t):
    key = use_templates(t)
    parts = {(s.st_dev, s.st_ino): name for name in ("ram", "state")
             for s in [os.stat(os.path.join(SHARED, key, name))]}
    p, pid = kept(t)
    held = 0
    for fd in map(int, os.listdir(f"/proc/{pid}/fd")):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            st = os.stat(path)
        except OSError:
            continue
        if (st.st_dev, st.st_ino) not in parts:
            continue
        held += 1
        mine = pidfd_getfd(pid, fd)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
            expect_refusal(t, f"open {path} with {flags:#x}", lambda: os.open(path, flags))
        expect_refusal(t, "write", lambda: os.pwrite(mine, b"x", 0))
        expect_refusal(t, "truncate", lambda: os.ftruncate(mine, 0))
        expect_refusal(t, "punch", lambda: os.posix_fallocate(mine, 0, 4096))
        expect_refusal(t, "chmod", lambda: os.chmod(path, 0o666))
        expect_refusal(t, "map shared", lambda: mmap.mmap(mine, 4096, mmap.MAP_SHARED))
        os.close(mine)
    t.check(held > 0, "QEMU has no descriptor of the template")
    for name in ("ram", "state"):
        inside = f"/proc/{pid}/root/boot/{name}"
        expect_refusal(t, f"open {inside}", lambda: os.open(inside, os.O_WRONLY))
    with open(f"/proc/{pid}/maps", encoding="ascii") as f:
        mapped = [line.split()[1] for line in f if line.rstrip().endswith("/boot/ram")]
    t.check(mapped and all(m.endswith("p") for m in mapped), f"the memory is mapped {mapped}")
    p.signal(signal.SIGTERM)
    p.wait()
    r = t.lcow("template", "verify", key)
    t.equal(r.code, 0, r)


@test("a template that QEMU cannot restore is a cold start, once, and said")
def falls_back(t):
    directory, path = own_templates(t)
    with open(os.path.join(path, "state"), "r+b") as f:
        f.truncate(100000)
    rewrite_header(path)
    report = os.path.join(t.work, "report.json")
    r = t.boot("echo", "alive", opts=(f"--json={report}", "--log-level", "warn"))
    t.equal((r.code, r.out), (0, "alive\n"), r)
    with open(report, encoding="utf-8") as f:
        result = json.load(f)
    t.check(not result["clone"], "it cannot be a clone", r)
    t.words("restore template", result["cold_why"])
    t.equal(r.err.count(COLD_START), 1, r)
    t.equal(os.listdir(directory), [], "the damaged template is removed")


@test("a damaged template is ignored and built again")
def damaged(t):
    directory, path = own_templates(t)
    with open(os.path.join(path, "ram"), "r+b") as f:
        f.seek(12345678)
        f.write(b"\1")
    result, _ = result_of(t, "true")
    t.check(not result["clone"], "it was cloned from a changed template")
    t.words("changed after the template was made", result["cold_why"])
    r = t.lcow("template", "ls")
    t.equal(r.code, 1, r)
    t.match("bad", r.out)
    r = t.lcow("template", "build", seconds=BUILD_SECONDS)
    t.equal(r.code, 0, r)
    t.match("built", r.out)
    t.equal(t.lcow("template", "verify").code, 0)
    result, _ = result_of(t, "true")
    t.check(result["clone"], "no clone of what was built again", result)
    rewrite_header(path)  # honest about inode and time, but not about the bytes
    with open(os.path.join(path, "state"), "r+b") as f:
        f.write(b"\0")
    rewrite_header(path)
    r = t.lcow("template", "verify", "--json")
    t.equal(r.code, 1, r)
    t.words("checksum", r.out)
    t.equal(t.lcow("template", "rm", "--all").code, 0)
    t.equal(os.listdir(directory), [])


@test("a store that cannot be written is a cold start and a word")
def read_only(t):
    t.config(template="auto", template_dir="/proc/nowhere", allow_emulation=True)
    result, _ = result_of(t, "true")
    t.check(not result["clone"], "a clone of nothing")
    r = t.lcow("template", "build")
    t.equal(r.code, 1, r)
    t.match("/proc/nowhere", flat(r.err))


@test("a clone has the size that was asked for: 8 GiB more, three vCPUs, 3000 processes",
      deadline=300)
def grows(t):
    use_templates(t)
    result, out = result_of(
        # Each waits within the shell: to execute a program 3000 times is most of a minute here.
        t, "sh", "-c", "mkfifo /tmp/f; exec 3<>/tmp/f; i=0; "
        "while [ $i -lt 3000 ]; do read line <&3 & i=$((i+1)); done; "
        "ls /proc | grep -c '^[0-9]'; nproc; sed -n 's/MemTotal: *//p' /proc/meminfo; "
        "cat /sys/fs/cgroup/pods/memory.max", opts=("--memory", "8448", "--cpus", "3"),
        seconds=200)
    t.check(result["clone"], "no clone", result)
    processes, cpus, total, limit = out.split("\n")[:4]
    t.check(int(processes) >= 3000, f"{processes} processes")
    t.equal(cpus, "3")
    t.check(int(total.split()[0]) > 8000 * 1024, f"{total} of memory")
    t.check(int(limit) > 7800 << 20, f"the pods may use {limit} bytes")


@test("a builder or a clone that is killed at any moment leaves nothing after gc", deadline=400)
def killed(t):
    use_templates(t)
    for moment in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        p = t.start_boot("sleep", "1000")
        time.sleep(moment)
        p.signal(signal.SIGKILL)
        p.wait()
    mine = os.path.join(t.work, "mine")
    t.config(template_dir=mine)
    for moment in (0.1, 0.6, 2.0):
        p = t.start("template", "build")
        time.sleep(moment)
        p.signal(signal.SIGKILL)
        p.wait()
    r = t.lcow("gc")
    t.equal(r.code, 0, r)
    t.equal(os.listdir(mine), [])


def memory_cgroup(t, limit):
    """A cgroup with room for so many bytes; the file to join it by."""
    for root, maximum in (("/sys/fs/cgroup", "memory.max"),
                          ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        path = os.path.join(root, t.tag)
        if not os.path.isdir(root) or not os.access(root, os.W_OK):
            continue
        try:
            os.mkdir(path)
        except OSError:
            continue
        if os.path.exists(os.path.join(path, maximum)):
            t.at_end(os.rmdir, path)
            with open(os.path.join(path, maximum), "w", encoding="ascii") as f:
                f.write(str(limit))
            return os.path.join(path, "cgroup.procs")
        os.rmdir(path)
    raise Skip("no memory cgroup can be made here")


def crowd(t, clones, room, seconds):
    """So many at once where only some have room; each stays for so many seconds."""
    use_templates(t)
    procs = memory_cgroup(t, room * POD_MIB << 20)
    t.config(boot_timeout_s=120)
    each = []
    for _ in range(clones):
        join = ("sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh")
        each.append(t.start_boot("sh", "-c", f"echo alive; sleep {seconds}", wrap=join))
    ran, refused = 0, 0
    for p in each:
        r = p.wait(700)
        ran += r.code == 0
        if r.code == 0:
            t.equal(r.out, "alive\n", r)
            continue
        refused += 1
        # lcow itself may have been killed; then its exit status shows the signal.
        t.check(r.code in (125, 137, -9), "neither run nor refused", r)
        if r.code == 125:
            t.match("OOM|memory|killed|SIGKILL|ended", flat(r.err), r)
    t.note(f"{ran} ran, {refused} did not")
    t.check(ran > 0, "not one of them ran")
    t.equal(t.lcow("gc").code, 0)


@test("10 clones in a memory cgroup for 4: each runs, or says why not", deadline=600)
def crowded_a_little(t):
    crowd(t, 10, 4, 20)


@test("50 clones in a memory cgroup for 20: each runs, or says why not", deadline=900, full=True)
def crowded(t):
    crowd(t, 50, 20, 60)


@test("a clone whose QEMU is killed at any moment is a cold start or an error", deadline=500)
def qemu_killed(t):
    use_templates(t)
    after = []
    for moment in (0.0, 0.02, 0.05, 0.1, 0.2):
        p = t.start_boot("sh", "-c", "echo alive", opts=("--log-level", "warn"))
        pid = p.await_vmm()
        time.sleep(moment)  # which step that is differs; every one must end well
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was quicker
        r = p.wait()
        t.check(r.code in (0, 125), "neither run nor refused", r)
        if r.code == 0:
            t.equal(r.out, "alive\n", r)
        else:
            t.check(r.err.strip(), "an error without a message", r)
        t.check(r.err.count(COLD_START) <= 1, "more than one attempt", r)
        after.append("error" if r.code else "cold" if COLD_START in r.err else "done before")
    t.note(", ".join(after))


@test("unused templates are removed by prune")
def pruned(t):
    directory, path = own_templates(t)
    r = t.lcow("template", "prune")
    t.equal((r.code, r.out), (0, ""), r)
    old = time.time() - 15 * 86400
    os.utime(path, (old, old))
    result, _ = result_of(t, "true")  # a use
    t.check(result["clone"], "no clone", result)
    r = t.lcow("template", "prune", "--json")
    t.equal((r.code, json.loads(r.out)), (0, []), r)
    os.utime(path, (old, old))
    r = t.lcow("template", "prune")
    t.equal((r.code, r.out.strip()), (0, os.path.basename(path)), r)
    t.equal(os.listdir(directory), [])


@test("two builders at once build one template")
def two_builders(t):
    if not qemu_is_new_enough():
        raise Skip("QEMU before 8.2 has no templates")
    mine = os.path.join(t.work, "mine")
    t.config(template="auto", template_dir=mine, allow_emulation=True)
    both = [t.start("template", "build", "--json") for _ in range(2)]
    made = []
    for p in both:
        r = p.wait(BUILD_SECONDS)
        t.equal(r.code, 0, r)
        made.append(json.loads(r.out)["made"])
    t.equal(sorted(made), [False, True])
    t.equal(len(os.listdir(mine)), 1)

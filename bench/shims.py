"""One shim under one containerd: its resources when idle, and the times of its calls and starts."""

import calendar
import json
import os
import resource
import signal
import socket
import struct
import threading
import time

import cells  # first: it finds the e2e modules
import harness
import procfs
import shimcall
from shimcall import number, text
from stats import summary, timed, timed_both

BULK = 128 << 20
SETTLE = 3   # seconds until a shim that was busy is idle
CLOCK = 10   # seconds after a VM's start in which the shim compares its clock
IDLE = 10    # seconds over which wake-ups are counted
TURNS = 20   # of calls
PATIENCE = 180  # seconds to wait for the other's turn
TYPE_PROCESS = "types.containerd.io/opencontainers/runtime-spec/1/Process"


def group(name, kind):
    return (f"--label=io.kubernetes.cri.sandbox-id={name}",
            f"--label=io.kubernetes.cri.container-type={kind}")


class Client:
    """Calls the shim of a running container on one connection."""

    def __init__(self, t, container):
        self.t, self.container, self.stream = t, container, -1
        shim = shimcall.Shim.__new__(shimcall.Shim)  # only its connect() and its service's name
        shim.t, shim.address = t, address(t, container)
        self.service = f"containerd.task.{'v3' if t.is_runc and t.version == '2.1' else 'v2'}.Task"
        self.socket = shim.connect()

    def call(self, method, *parts):
        self.stream += 2
        shimcall.send(self.socket, self.stream, self.service, method, b"".join(parts), self.t.tag)
        return shimcall.receive(self.socket)

    def times_us(self, method, calls):
        """Of each call, with the container's id as the whole request."""
        found = []
        for _ in range(calls):
            begin = time.perf_counter()
            self.call(method, text(1, self.container))
            found.append((time.perf_counter() - begin) * 1e6)
        return found

    def exec(self, name, *args, stdin="", stdout=""):
        """From Exec until it runs; Wait and Delete are the caller's."""
        err = ""
        if stdin or stdout:  # runc's shim wants both outputs then
            err = os.path.join(self.t.work, "sink")
            stdout = stdout or err
            if not os.path.exists(err):
                os.mkfifo(err)
                self.sink = os.open(err, os.O_RDWR)  # nobody writes more than it holds
        process = {"cwd": "/", "args": args, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}}
        self.call("Exec", text(1, self.container), text(2, name), text(4, stdin), text(5, stdout),
                  text(6, err),
                  shimcall.wrapped(7, TYPE_PROCESS, json.dumps(process)))
        self.call("Start", text(1, self.container), text(2, name))

    def wait(self, name):
        self.call("Wait", text(1, self.container), text(2, name))
        self.call("Delete", text(1, self.container), text(2, name))


def address(t, container):
    bundle = t.containerd.bundle(t.tag, container)
    for name in ("bootstrap.json", "address"):
        path = os.path.join(bundle, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                found = f.read()
            found = json.loads(found)["address"] if name.endswith("json") else found
            return found.strip().removeprefix("unix://")
    raise harness.Failure(f"{bundle}: no address")


# ---------------------------------------------------------------- parts

def starts(t, runs):
    """`start` until the address is printed; the daemon that stays is not in the CPU time."""
    wall, cpu = [], []
    for i in range(runs):
        shim = shimcall.Shim(t, f"s{i}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall.append(timed(shim.start))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return {"start_ms": summary(wall), "start_cpu_ms": summary(cpu)}


def one_run(t):
    return timed_both(lambda: t.must(*t.run_args("--rm", "once", "true")))


def runs_of_ctr(t, runs):
    """ctr run --rm true, from start to complete removal."""
    both = [one_run(t) for _ in range(runs)]
    return {"run_ms": summary(w for w, _ in both), "run_cpu_ms": summary(c for _, c in both)}


def idle(shim):
    time.sleep(CLOCK)
    memory = procfs.rollup_kib(shim)
    before = procfs.switches(shim)
    time.sleep(IDLE)
    return {"pss_kib": summary([memory["Pss"]]),
            "pss_anon_kib": summary([memory["Pss_Anon"]]),
            "pss_file_kib": summary([memory["Pss_File"]]),
            "wakeups_s": summary([(procfs.switches(shim) - before) / IDLE])}


def calls(client, count):
    """Calls Stats less often, since it is slower."""
    return {key: summary(times) for key, times in times_of_calls(client, count).items()}


def times_of_calls(client, count):
    found = {f"{method.lower()}_us": client.times_us(method, count) for method in ("State", "Connect")}
    return {**found, "stats_us": client.times_us("Stats", max(count // 8, 5)),
            "echo_us": echo_us(client, count)}


def take_turns(times, step, turn, others):
    """Both measure in turns, so that other load on the machine affects both alike. turn and others: the
    semaphores of both."""
    for _ in range(times):
        if not turn.acquire(timeout=PATIENCE):
            raise harness.Failure("the other shim did not take its turn")
        try:
            step()
        finally:
            others.release()


def calls_in_turns(t, count, turn, others):
    t.detach("c1", "sleep", "100000")
    client, found = Client(t, "c1"), {}

    def some():
        for key, times in times_of_calls(client, count // TURNS).items():
            found.setdefault(key, []).extend(times)
    take_turns(TURNS, some, turn, others)
    client.socket.close()
    return {key: summary(times) for key, times in found.items()}


def runs_in_turns(t, runs, turn, others):
    both = []
    take_turns(runs, lambda: both.append(one_run(t)), turn, others)
    return {"run_ms": summary(w for w, _ in both), "run_cpu_ms": summary(c for _, c in both)}


def echo_us(client, count):
    """The lower bound of a call: the same client and request to a process that only sends a prepared
    answer."""
    ours, theirs = socket.socketpair()
    body = text(2, text(1, client.container) + text(2, "x" * 60))  # about as long as State's
    answer = struct.pack(">IIBB", len(body), 1, shimcall.RESPONSE, 0) + body
    pid = os.fork()
    if pid == 0:
        ours.close()
        while theirs.recv(1 << 16):
            theirs.sendall(answer)
        os._exit(0)
    theirs.close()

    def one():
        shimcall.send(ours, 1, client.service, "State", text(1, client.container), client.t.tag)
        shimcall.receive(ours)
    try:
        return [timed(one) * 1000 for _ in range(count)]
    finally:
        ours.close()
        os.waitpid(pid, 0)


def in_pod(t, n, turn, others):
    """Containers, execs and stdio in a pod that runs, where neither a shim nor a VM is started. An
    emulated VM has already translated the code that is needed."""
    t.detach(*group("c1", "sandbox"), "c1", "sleep", "100000")
    client, found, done = Client(t, "c1"), {}, []

    def keep(key, value):
        found.setdefault(key, []).append(value)

    def one_exec(name):
        client.exec(name, "true")
        client.wait(name)

    def some():
        for _ in range(n["execs"]):
            done.append(0)
            keep("exec_ms", timed(lambda: one_exec(f"x{len(done)}")))
        keep("ctr_exec_ms", timed(lambda: t.must(*t.exec_args("c1", "true"))))
        args = t.run_args("--rm", *group("c1", "container"), f"m{len(done)}", "true")
        wall, cpu = timed_both(lambda: t.must(*args))
        keep("run_in_pod_ms", wall)
        keep("run_in_pod_cpu_ms", cpu)
        for key, value in stdio(t, client, len(done)).items():
            keep(key, value)
    take_turns(n["turns"], some, turn, others)
    client.socket.close()
    result = {key: summary(values) for key, values in found.items()}
    return {**result, "exec_p99_ms": summary([result["exec_ms"]["p99"]])}


def settled_kib(pid):
    """PSS when it no longer changes, since freed memory may be returned to the kernel with a delay."""
    now = procfs.pss_kib(pid)
    for _ in range(SETTLE * 4):
        time.sleep(0.5)
        before, now = now, procfs.pss_kib(pid)
        if abs(now - before) <= 4:
            break
    return now


def parked_fibers(client, shim, count):
    """Each Task.Wait is a fiber that waits, with its request and its answer's place."""
    other = Client(client.t, client.container)
    before = settled_kib(shim)
    for i in range(count):
        shimcall.send(other.socket, 2 * i + 1, other.service, "Wait", text(1, other.container),
                      other.t.tag)
    client.call("State", text(1, client.container))
    more = settled_kib(shim) - before
    other.socket.close()
    return {"fiber_kib": summary([more / count])}


def growth_by_execs(client, shim, count):
    """Measured in a shim after one exec, so that its code is loaded, but not after many, whose memory
    would be reused."""
    client.exec("warm", "true")
    client.wait("warm")
    before = settled_kib(shim)
    for i in range(count):
        client.exec(f"g{i}", "sleep", "100000")
    more = settled_kib(shim) - before
    for i in range(count):
        client.call("Kill", text(1, "c1"), text(2, f"g{i}"), number(3, 9))
        client.wait(f"g{i}")
    return {"pss_per_exec_kib": summary([more / count])}


def growth_by_containers(t, shim, count):
    """With its process on the host, which is ours; runc's is the container's own program."""
    t.detach(*group("c1", "container"), "warm", "sleep", "100000")
    t.ctr("tasks", "rm", "-f", "warm")
    before = settled_kib(shim)
    for i in range(count):
        t.detach(*group("c1", "container"), f"m{i}", "sleep", "100000")
    more = settled_kib(shim) - before
    anchors = 0
    if not t.is_runc:
        anchors = sum(procfs.pss_kib(pid) for name, (pid, _) in t.tasks().items() if name != "c1")
    for i in range(count):
        t.ctr("tasks", "rm", "-f", f"m{i}")
    return {"pss_per_container_kib": summary([(more + anchors) / count]),
            "anchor_kib": summary([anchors / count])}


def stdio(t, client, i):
    """MB/s between the container and a FIFO, without containerd in between."""
    path, found = os.path.join(t.work, "bulk"), {}
    os.mkfifo(path)
    reader = Flow(path, reads=True)
    client.exec(f"o{i}", "dd", "if=/dev/zero", "bs=256k", f"count={BULK >> 18}", stdout=path)
    client.wait(f"o{i}")
    found["stdout_mb_s"] = reader.rate(t)
    os.unlink(path)
    os.mkfifo(path)
    writer = Flow(path, reads=False)
    client.exec(f"i{i}", "sh", "-c", "cat >/dev/null", stdin=path)
    writer.join(60)  # runc's shim closes the FIFO at once, even with data pending
    client.call("CloseIO", text(1, "c1"), text(2, f"i{i}"), number(3, 1))
    client.wait(f"i{i}")
    found["stdin_mb_s"] = writer.rate(t)
    os.unlink(path)
    return {**found, "pipe_mb_s": BULK / pipe_us(t)}


def pipe_us(t):
    """The same bytes by the same programs through a pipe inside the container."""
    r = t.exec("c1", "sh", "-c", "read a x </proc/uptime; dd if=/dev/zero bs=256k "
               f"count={BULK >> 18} 2>/dev/null | cat >/dev/null; read b x </proc/uptime; "
               "echo $a $b")
    t.equal(r.code, 0, r)
    begin, end = map(float, r.out.split())
    return max(end - begin, 0.01) * 1e6


class Flow(threading.Thread):
    """The other end of a FIFO: reads or writes BULK bytes and measures the time."""

    def __init__(self, path, reads):
        super().__init__(daemon=True)
        self.path, self.reads, self.done, self.seconds = path, reads, 0, 0.0
        self.start()

    def run(self):
        chunk = bytes(1 << 20)
        with open(self.path, "rb" if self.reads else "wb", buffering=0) as f:
            begin = None
            while self.done < BULK:
                n = len(f.read(1 << 20)) if self.reads else f.write(chunk[:BULK - self.done])
                begin = begin or time.perf_counter()
                if not n:
                    break
                self.done += n
            self.seconds = time.perf_counter() - begin

    def rate(self, t):
        self.join(60)
        t.equal(self.done, BULK, "bytes through a FIFO")
        return self.done / self.seconds / 1e6


def exit_latency(t, name):
    """Kills the VMM (runc: the program); measures until containerd publishes the exit."""
    events = t.events()
    victim = t.tasks()[name][0] if t.is_runc else t.qemu_pid()
    begin = time.time()
    os.kill(victim, signal.SIGKILL)
    t.until(lambda: "exit" in t.topics(events, name), "the exit is reported", 30)
    with open(events.out_path, encoding="utf-8") as f:
        line = next(l for l in f if " /tasks/exit " in l and f'"{name}"' in l)
    day, clock = line.split()[:2]
    whole, _, part = clock.partition(".")
    told = calendar.timegm(time.strptime(f"{day} {whole} UTC", "%Y-%m-%d %H:%M:%S %Z"))
    return (told + float("0." + (part or "0")) - begin) * 1000


def exits(t, runs):
    found = [exit_latency(t, "c1")]
    t.ctr("tasks", "rm", "-f", "c1")
    t.ctr("containers", "rm", "c1")
    for i in range(1, runs):
        t.detach(f"k{i}", "sleep", "100000")
        found.append(exit_latency(t, f"k{i}"))
        t.ctr("tasks", "rm", "-f", f"k{i}")
        t.ctr("containers", "rm", f"k{i}")
    return {"exit_ms": summary(found)}


class Poll(threading.Thread):
    """Asks for the container's state on a connection of its own, as containerd does, until longest() is called."""

    def __init__(self, t, container):
        super().__init__(daemon=True)
        self.client, self.over, self.answers = Client(t, container), False, []
        self.start()

    def run(self):
        while not self.over:
            self.client.call("State", text(1, self.client.container))
            self.answers.append(time.perf_counter())
            time.sleep(0.0005)

    def longest_ms(self):
        """Between two answers."""
        self.over = True
        self.join(PATIENCE)
        self.client.socket.close()
        return max(b - a for a, b in zip(self.answers, self.answers[1:])) * 1000


def upgrades(t, runs):
    """The pause that a client sees: the longest time without an answer, of each upgrade."""
    found = []
    for _ in range(runs):
        poll = Poll(t, "c1")
        r = t.lcow("upgrade", "--json", "c1", seconds=PATIENCE)
        time.sleep(0.05)  # until it has an answer of after
        t.equal(r.code, 0, r)
        found.append(poll.longest_ms())
    all_ = summary(found)
    return {"upgrade_ms": all_, "upgrade_p99_ms": summary([all_["p99"]])}


def measure(t, n):
    """Everything, in one cell. n: the repetitions (run's N)."""
    found = cells.Steps()
    if not t.is_runc:  # whose runs are in turns with clones
        found.attempt("ctr run", runs_of_ctr, t, n["run"])
    t.detach(*group("c1", "sandbox"), "c1", "sleep", "100000")
    shim, client = t.shim_pid(), Client(t, "c1")
    found.attempt("idle", idle, shim)
    # Memory is measured first, in the order of size, before other steps let the shim grow.
    found.attempt("growth by execs", growth_by_execs, client, shim, n["growth"])
    found.attempt("growth by containers", growth_by_containers, t, shim, n["growth"])
    if not t.is_runc:
        found.attempt("calls that wait", parked_fibers, client, shim, n["fibers"])
        found.attempt("upgrades", upgrades, t, n["upgrade"])
    client.socket.close()
    found.attempt("exits", exits, t, n["exit"])
    found.attempt("start", starts, t, n["start"])
    return found


def measure_small(t, n):
    """A peer under an older containerd: the resources of its shim and the times of its calls."""
    found = cells.Steps()
    found.attempt("ctr run", runs_of_ctr, t, n["run"])
    t.detach("c1", "sleep", "100000")
    shim, client = t.shim_pid(), Client(t, "c1")
    found.attempt("idle", idle, shim)
    found.attempt("calls", calls, client, n["calls"])
    client.socket.close()
    found.attempt("start", starts, t, n["start"])
    return found

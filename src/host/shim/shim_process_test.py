#!/usr/bin/python3
"""start, serve and delete as processes, called as containerd calls them. Prints TAP.

    shim_process_test.py CONTAINERD-SHIM-LCOW-V2 [TEST...]

No VM is made: that is the business of the service's tests and of tests/e2e.
"""
import concurrent.futures
import ctypes
import fcntl
import hashlib
import json
import os
import re
import resource
import secrets
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

PROGRAM = os.path.realpath(sys.argv[1])
TASK = "containerd.task.v2.Task"
INVALID, DEADLINE, NOT_FOUND, EXHAUSTED = 3, 4, 5, 8
LIMIT = 60  # seconds for anything on a busy machine


# ---------------------------------------------------------------- protobuf and ttrpc, by hand

def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def message(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def decode(data):
    """field -> last value, of varints and byte strings."""
    out, at = {}, 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
    while at < len(data):
        key = number()
        if key & 7 == 0:
            out[key >> 3] = number()
        else:
            size = number()
            out[key >> 3] = data[at:at + size]
            at += size
    return out


def request(stream, method, payload, service=TASK, timeout=0):
    """timeout: in seconds, 0: none."""
    body = message(1, service) + message(2, method) + message(3, payload)
    if timeout:
        body += varint(4 << 3) + varint(int(timeout * 1e9))
    return struct.pack(">IIBB", len(body), stream, 1, 0) + body


class Connection:
    def __init__(self, where):
        """A path, or a socket that is connected."""
        self.s = socket.socket(socket.AF_UNIX) if isinstance(where, str) else where
        self.s.settimeout(LIMIT)
        if isinstance(where, str):
            self.s.connect(where)
        self.id = -1

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.s.recv(n - len(data))
            if not more:
                raise EOFError("closed")
            data += more
        return data

    def call(self, method, payload=b"", service=TASK):
        """The answer's payload, or a number: the error's code."""
        self.id += 2
        self.s.sendall(request(self.id, method, payload, service))
        return self.answer(self.id)

    def answer(self, wanted):
        size, stream, kind, _ = struct.unpack(">IIBB", self.read(10))
        assert (stream, kind) == (wanted, 2), (stream, kind)
        answer = decode(self.read(size))
        status = decode(answer.get(1, b""))
        return status[1] if status.get(1) else decode(answer.get(2, b""))

    def close(self):
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------- a containerd's directories

class World:
    def __init__(self, top):
        self.top = top
        self.sockets = os.path.join(top, "s")
        self.run_root = os.path.join(top, "run")
        self.address = os.path.join(top, "c.sock")
        self.config = os.path.join(top, "lcow.conf")
        self.keep = []
        with open(self.config, "w") as f:
            f.write(f"run_root = {self.run_root}\nlog_level = debug\n")

    def bundle(self, container, sandbox=None):
        path = os.path.join(self.top, "b", container)
        os.makedirs(os.path.join(path, "rootfs"), exist_ok=True)
        if not os.path.exists(os.path.join(path, "log")):
            os.mkfifo(os.path.join(path, "log"))
        annotations = {"io.kubernetes.cri.sandbox-id": sandbox} if sandbox else {}
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump({"ociVersion": "1.0.2", "annotations": annotations}, f)
        return path

    def env(self, **more):
        env = {"PATH": os.environ["PATH"], "LCOW_CONFIG": self.config, "MAX_SHIM_VERSION": "2",
               "TTRPC_ADDRESS": self.address + ".ttrpc", **more, **self.sanitizer()}
        return {k: v for k, v in env.items() if v is not None}

    def sanitizer(self):
        """Its words go to files, not to stderr, which is the shim's answer."""
        return {name: f"log_path={self.top}/sanitizer" for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS")}

    def has_sanitizer(self):
        with open(PROGRAM, "rb") as f:
            return b"__asan_report" in f.read()  # __asan_init is named by base/crash_linux.c

    def check_sanitizer(self):
        for name in os.listdir(self.top):
            if name.startswith("sanitizer"):
                with open(os.path.join(self.top, name)) as f:
                    text = f.read()
                assert "ERROR" not in text and "runtime error" not in text, text

    def args(self, container, *more):
        return [PROGRAM, "-namespace", "ns", "-address", self.address, "-publish-binary",
                "/usr/bin/containerd", "-id", container, *more]

    def popen(self, container, sandbox=None, **env):
        params = (message(1, container) + message(2, "ns") + message(6, self.address) +
                  message(9, self.sockets))
        p = subprocess.Popen(self.args(container, "start"), cwd=self.bundle(container, sandbox),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env=self.env(**env))
        p.stdin.write(params)
        p.stdin.close()
        return p

    def start(self, container, sandbox=None, **env):
        """The address; or AssertionError with what was said."""
        p = self.popen(container, sandbox, **env)
        out = p.stdout.read()  # to its end: nobody may keep it open
        assert p.wait(LIMIT) == 0, out.decode()
        answer = decode(out)
        assert (answer[1], answer[3]) == (3, b"ttrpc"), answer
        return answer[2].decode()

    def delete(self, container):
        bundle = self.bundle(container)
        r = subprocess.run(self.args(container, "-bundle", bundle, "delete"), cwd=bundle,
                           stdin=subprocess.DEVNULL, capture_output=True, env=self.env(),
                           timeout=LIMIT)
        assert r.returncode == 0 and r.stderr == b"", r
        return decode(r.stdout)

    def connect(self, address):
        return Connection(address.removeprefix("unix://"))

    def pid(self, address):
        c = self.connect(address)
        try:
            return c.call("Connect", message(1, "x"))[1]
        finally:
            c.close()

    def file(self, container, name):
        with open(os.path.join(self.top, "b", container, name)) as f:
            return f.read()

    def path(self, group):
        name = hashlib.sha256(f"{self.address}/ns/{group}".encode()).hexdigest()
        return os.path.join(self.sockets, name)

    def ledger(self, group, *records):
        """What a dead shim left: (kind, what)…"""
        path = os.path.join(self.run_root, "ns", group)
        os.makedirs(path)
        with open(os.path.join(path, "ledger"), "w") as f:
            for i, (kind, what) in enumerate(records):
                body = f"+ {i + 1} {kind} {what}"
                f.write(f"{zlib.crc32(body.encode()):08x} {body}\n")
        return path

    def end(self):
        for p in self.keep:
            p.kill()
            p.wait()
        for pid in daemons(self.top):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not daemons(self.top), "daemons end")


def daemons(top):
    """Those that serve below this directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            if (os.path.basename(words[0]) == os.path.basename(PROGRAM) and
                    os.readlink(f"/proc/{pid}/cwd").startswith(top) and
                    ("resume" in words or words[-2:] == ["serve", ""])):
                found.append(int(pid))
        except OSError:
            pass
    return found


def until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.01)


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


def stat_field(pid, n):
    with open(f"/proc/{pid}/stat") as f:
        return int(f.read().rsplit(")", 1)[1].split()[n - 3])


# ---------------------------------------------------------------- the tests

def start_answers_and_leaves_a_daemon_of_its_own(w):
    address = w.start("c1")
    assert address == "unix://" + w.path("c1"), address
    assert w.file("c1", "address") == address  # no newline
    mode = os.stat(w.path("c1")).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode)
    assert stat.S_IMODE(os.stat(w.sockets).st_mode) == 0o700
    assert os.listdir(w.sockets) == [os.path.basename(w.path("c1"))], "the lock is gone"
    pid = w.pid(address)
    assert stat_field(pid, 6) == pid, "a session of its own"
    assert os.readlink(f"/proc/{pid}/cwd") == os.path.join(w.top, "b/c1")
    with open(f"/proc/{pid}/oom_score_adj") as f, open("/proc/self/oom_score_adj") as mine:
        assert int(f.read()) == min(int(mine.read()) + 1, 1000)
    assert [os.readlink(f"/proc/{pid}/fd/{n}") for n in (1,)] == ["/dev/null"]
    assert os.readlink(f"/proc/{pid}/fd/2").endswith("/b/c1/log")


def older_containerd_gets_the_bare_address(w):
    for version in (None, "2"):
        bundle = w.bundle("old")
        p = subprocess.run(
            w.args("old", "start"), cwd=bundle, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=w.env(MAX_SHIM_VERSION=version), timeout=LIMIT)
        address = p.stdout.decode()
        name = hashlib.sha256(f"{w.address}/ns/old".encode()).hexdigest()
        assert address == f"unix:///run/containerd/s/{name}", p
        assert w.file("old", "address") == address
    c = w.connect(address)
    c.call("Shutdown")
    until(lambda: not os.path.exists(address.removeprefix("unix://")), "socket is removed")


def starts_at_once_share_one_daemon(w):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: w.start(f"c{i}", "pod"), range(8)))
    assert set(found) == {"unix://" + w.path("pod")}, found
    assert len(daemons(w.top)) == 1
    for i in range(8):
        assert w.file(f"c{i}", "address") == found[0]


def a_dead_shims_socket_is_replaced(w):
    os.mkdir(w.sockets, 0o700)
    s = socket.socket(socket.AF_UNIX)
    s.bind(w.path("c1"))
    s.listen()
    s.close()
    assert w.pid(w.start("c1")) == daemons(w.top)[0]


def a_live_shims_socket_is_not_touched(w):
    os.mkdir(w.sockets, 0o700)
    s = socket.socket(socket.AF_UNIX)
    s.bind(w.path("pod"))
    s.listen()
    inode = os.stat(w.path("pod")).st_ino
    assert w.start("c1", "pod") == "unix://" + w.path("pod")
    assert os.stat(w.path("pod")).st_ino == inode and not daemons(w.top)
    s.close()


def ws02_a_daemon_that_cannot_start_says_why(w):
    p = w.popen("c1", LCOW_CONFIG=os.path.join(w.top, "nowhere.conf"))
    out = p.stdout.read().decode()
    assert p.wait(LIMIT) == 1
    assert out.startswith("containerd-shim-lcow-v2: ") and "nowhere.conf" in out, out
    assert os.listdir(w.sockets) == [], "nothing is left"
    assert not os.path.exists(os.path.join(w.top, "b/c1/address"))


def ws02_a_daemon_that_dies_early_does_not_hang_start(w):
    config = os.path.join(w.top, "stuck.conf")
    os.mkfifo(config)  # it blocks in open()
    p = w.popen("c1", LCOW_CONFIG=config)
    until(lambda: daemons(w.top), "the daemon is there")
    os.kill(daemons(w.top)[0], signal.SIGKILL)
    out = p.stdout.read().decode()
    assert p.wait(LIMIT) == 1 and " 9 " in out, out  # the signal
    assert os.listdir(w.sockets) == []
    assert w.start("c1"), "and it can be tried again"


def bad_names_are_refused(w):
    for name in ("a/b", "..", "", "a" * 77):
        r = subprocess.run(w.args(name, "start"), cwd=w.bundle("x"), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=w.env())
        assert r.returncode == 1 and b" id" in r.stdout, r
    p = w.popen("c1", "../../etc")
    assert "sandbox-id" in p.stdout.read().decode() and p.wait() == 1
    r = subprocess.run([PROGRAM, "-namespace", "ns", "-id", "c", "dance"], capture_output=True,
                       env=w.env())
    assert r.returncode == 1 and b"dance" in r.stderr, r


def the_log_needs_no_reader_and_finds_one_again(w):
    address = w.start("c1")
    c = w.connect(address)
    for _ in range(2000):  # each is a line at least; a FIFO takes 64 KiB
        assert c.call("State", message(1, "nobody")) == 5
    log = os.open(os.path.join(w.top, "b/c1/log"), os.O_RDONLY | os.O_NONBLOCK)
    read = lambda: os.read(log, 1 << 20)
    assert b"level=info " in read()
    while True:
        try:
            if not read():
                break
        except BlockingIOError:
            break
    c.call("State", message(1, "again"))
    until(lambda: b"again" in read(), "lines come again")
    os.kill(w.pid(address), signal.SIGUSR1)
    time.sleep(0.1)
    until(lambda: b"watch" in read(), "fibers are listed")
    os.close(log)


def shutdown_ends_an_idle_shim(w):
    address = w.start("c1")
    pid = w.pid(address)
    c = w.connect(address)
    assert c.call("Shutdown", message(1, "c1")) == {}, "it answers first"
    until(lambda: gone(pid), "it ends")
    assert os.listdir(w.sockets) == []
    assert w.delete("c1")[2] == 137


def journals_of(calls, w):
    """What is left for `lcow explain` by a shim that answered these calls, and left."""
    address = w.start("c1")
    pid = w.pid(address)
    c = w.connect(address)
    for method, payload, code in calls:
        assert c.call(method, payload) == code, method
    c.call("Shutdown", message(1, "c1"))
    until(lambda: gone(pid), "it ends")
    return os.listdir(os.path.join(w.run_root, ".journal"))


def calls_after_the_end_leave_no_journal(w):
    assert journals_of([(m, message(1, "gone"), NOT_FOUND)
                        for m in ("State", "Stats", "Kill", "Delete")], w) == []


def a_failed_delete_leaves_a_journal(w):
    assert journals_of([("Delete", b"\xff", INVALID)], w) == ["ns@c1"]


def hold_one_that_leaves(w, container="c1", sandbox=None):
    """Its process, stopped between its decision to leave and its end."""
    for _ in range(10):
        address = w.start(container, sandbox)
        pid, path = w.pid(address), address.removeprefix("unix://")
        deaf = w.connect(address)
        deaf.s.setblocking(False)
        try:  # answers that are not taken hold it for a moment
            for n in range(1, 20000, 2):
                deaf.s.send(request(n, "State", message(1, "nobody")))
        except BlockingIOError:
            pass
        w.connect(address).call("Shutdown")
        until(lambda: leaves(path) or ended(pid), "it leaves")
        if not ended(pid):
            os.kill(pid, signal.SIGSTOP)
            until(lambda: state_of(pid) in "TZ", "it is stopped")
            if leaves(path) and state_of(pid) == "T":
                return pid
        until(lambda: not daemons(w.top), "it was faster than we")
    raise AssertionError("it could not be stopped in time")


def leaves(path):
    try:
        return bool(os.stat(path).st_mode & stat.S_ISVTX)
    except FileNotFoundError:
        return False


def ended(pid):
    return state_of(pid) == "Z"  # reaped or not: that is init's business


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def start_waits_for_a_shim_that_leaves(w):
    old = hold_one_that_leaves(w)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        new = pool.submit(lambda: (w.start("c1"), ended(old)))
        time.sleep(0.5)
        assert not new.done() and daemons(w.top) == [old], "none begins beside it"
        os.kill(old, signal.SIGCONT)
        address, was_gone = new.result()
    assert was_gone, "both lived at once"
    assert [w.pid(address)] == daemons(w.top)
    assert not leaves(address.removeprefix("unix://"))
    assert w.start("c2", "c1") == address and len(daemons(w.top)) == 1, "it can be joined"


def a_shim_that_leaves_may_be_killed_while_start_waits(w):
    old = hold_one_that_leaves(w)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        new = pool.submit(w.start, "c1")
        time.sleep(0.5)
        assert not new.done()
        os.kill(old, signal.SIGKILL)
        assert [w.pid(new.result())] == daemons(w.top)


def a_shim_killed_while_it_left_is_replaced(w):
    old = hold_one_that_leaves(w)
    os.kill(old, signal.SIGKILL)
    until(lambda: ended(old), "it is dead")
    assert leaves(w.path("c1")), "its socket was not removed"
    assert [w.pid(w.start("c1"))] == daemons(w.top)


def starts_and_deletes_beside_one_that_leaves(w):
    for name in ("p", "m1", "m2"):  # the shim is p's: with its own bundle it would be given up
        w.start(name, "p")
    old = hold_one_that_leaves(w, "p", "p")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        members = [d[2] for d in pool.map(w.delete, ("m1", "m2"))]
        assert members == [137, 137], "of containers that were in it"
        starts = [pool.submit(w.start, f"c{i}", "p") for i in range(4)]
        beside = pool.submit(w.delete, "m1")
        time.sleep(0.5)
        assert daemons(w.top) == [old] and not any(s.done() for s in starts)
        os.kill(old, signal.SIGCONT)
        found = {s.result() for s in starts}
        assert beside.result()[2] == 137
    assert found == {"unix://" + w.path("p")} and ended(old)
    assert len(daemons(w.top)) == 1


def a_shim_that_leaves_and_hangs_is_named(w):
    old = hold_one_that_leaves(w)
    p = w.popen("c1")
    out = p.stdout.read().decode()
    assert p.wait(LIMIT) == 1 and f" {old}, " in out, out
    assert daemons(w.top) == [old]
    os.kill(old, signal.SIGCONT)
    until(lambda: ended(old), "the shim continues, and exits")
    assert os.listdir(w.sockets) == [], "nothing is left"
    assert w.start("c1")


def a_shim_that_start_has_found_does_not_leave_before_create(w):
    address = w.start("p", "p")
    pid, path = w.pid(address), address.removeprefix("unix://")
    w.start("c1", "p")
    c = w.connect(address)
    c.call("Shutdown", message(1, "p"))  # as containerd does beside, when the last container went
    time.sleep(0.3)
    assert w.pid(address) == pid and not leaves(path)
    assert c.call("Create", message(1, "c1")) == INVALID, "it came, however badly"
    c.call("Shutdown", message(1, "c1"))
    until(lambda: ended(pid), "then it leaves")


def sigterm_is_an_orderly_end(w):
    address = w.start("c1")
    pid = w.pid(address)
    os.kill(pid, signal.SIGTERM)
    until(lambda: gone(pid), "it ends")
    assert os.listdir(w.sockets) == []


def delete_leaves_a_live_shim_alone(w):
    address = w.start("p", "p")
    w.start("c1", "p")
    began = time.monotonic()
    answer = w.delete("c1")
    assert time.monotonic() - began < 20
    assert answer[2] == 137 and abs(decode(answer[3])[1] - time.time()) < 60, answer
    assert w.delete("p")[2] == 137  # the sandbox itself: on its way out, not ours to kill
    assert w.pid(address) == daemons(w.top)[0]


def delete_ends_a_shim_that_does_not_answer(w):
    pid = w.pid(w.start("c1"))
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert w.delete("c1")[2] == 137
    assert time.monotonic() - began < 5, "containerd would have killed it"
    until(lambda: gone(pid), "the shim is dead")
    assert os.listdir(w.sockets) == []
    assert w.pid(w.start("c1")) == daemons(w.top)[0], "the id is free"


def refuse_all(listener):
    """As a shim whose requests in flight are too many."""
    while True:
        try:
            c = Connection(listener.accept()[0])
            size, stream, _, _ = struct.unpack(">IIBB", c.read(10))
            c.read(size)
            body = message(1, varint(1 << 3) + varint(EXHAUSTED) + message(2, "too many requests"))
            c.s.sendall(struct.pack(">IIBB", len(body), stream, 2, 0) + body)
        except EOFError:
            pass
        except OSError:
            return


def delete_ends_a_shim_that_refuses_every_request(w):
    pid = w.pid(w.start("c1"))
    os.unlink(w.path("c1"))
    with socket.socket(socket.AF_UNIX) as listener, concurrent.futures.ThreadPoolExecutor(1) as pool:
        listener.bind(w.path("c1"))
        listener.listen(8)
        pool.submit(refuse_all, listener)
        try:
            assert w.delete("c1")[2] == 137
            until(lambda: gone(pid), "the shim is dead")
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def delete_of_one_container_leaves_a_stuck_shim_to_the_others(w):
    address = w.start("p", "p")
    w.start("c1", "p")
    pid = w.pid(address)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert w.delete("c1")[2] == 137
    assert time.monotonic() - began < 5, "containerd would have killed it"
    assert daemons(w.top) == [pid]
    os.kill(pid, signal.SIGCONT)
    assert w.pid(address) == pid, "it continues"


def delete_does_not_kill_another_process_with_the_shims_number(w):
    os.kill(w.pid(w.start("c1")), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    other = subprocess.Popen(["sleep", "1000"])
    w.keep.append(other)
    path = os.path.join(w.bundle("c1"), "lcow.json")
    with open(path) as f:
        group_file = json.load(f)
    boot = group_file["shim"].split()[2]
    # Not the shim's own start: a clock tick is 10 ms, and both may have started in the same one.
    group_file["shim"] = f"{other.pid} {int(stat_field(other.pid, 22)) - 1} {boot}"
    with open(path, "w") as f:
        json.dump(group_file, f)
    os.unlink(w.path("c1"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(w.path("c1"))
        silent.listen(8)
        assert w.delete("c1")[2] == 137
    assert other.poll() is None


def ws01_delete_cleans_up_what_a_killed_shim_left(w):
    address = w.start("c1")
    os.kill(w.pid(address), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    victim = subprocess.Popen(["sleep", "1000"])
    w.keep.append(victim)
    other = subprocess.Popen(["sleep", "1000"])
    w.keep.append(other)
    left = os.path.join(w.top, "left")
    open(left, "w").close()
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read().strip()
    ledger = w.ledger("c1", ("process", f"{victim.pid} {stat_field(victim.pid, 22)} {boot}"),
                      ("process", f"{other.pid} 1 {boot}"), ("file", left))
    reaper = concurrent.futures.ThreadPoolExecutor(1)
    reaper.submit(victim.wait)  # as init would
    began = time.monotonic()
    assert w.delete("c1")[2] == 137
    assert time.monotonic() - began < 20
    assert victim.wait(LIMIT) == -9, "it was killed"
    assert other.poll() is None, "one with its pid, but another start time, was not"
    assert not os.path.exists(left) and not os.path.exists(ledger)
    assert os.listdir(w.sockets) == [], "socket and lock are gone"
    assert w.delete("c1")[2] == 137, "again: nothing is left, and that is fine"


def delete_reports_the_recorded_exit(w):
    os.kill(w.pid(w.start("c1")), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    path = os.path.join(w.bundle("c1"), "lcow.json")
    with open(path) as f:
        group_file = json.load(f)
    scratch = os.path.join(w.top, "scratch")
    empty, used = (os.path.join(scratch, "sandboxes", n) for n in ("ns", "other"))
    os.makedirs(empty)
    os.makedirs(os.path.join(used, "box"))
    group_file.update(pid=77, exit_status=3, exited_at=1234567890 * 10**9, scratch_dir=scratch)
    with open(path, "w") as f:
        json.dump(group_file, f)
    answer = w.delete("c1")
    assert (answer[1], answer[2], decode(answer[3])[1]) == (77, 3, 1234567890), answer
    assert not os.path.exists(empty) and os.path.exists(used), "only its own, and only if empty"


def delete_is_not_fooled_by_a_listener_that_outlives_its_shim(w):
    address = w.start("c1")
    os.kill(w.pid(address), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    left = os.path.join(w.top, "left")
    open(left, "w").close()
    w.ledger("c1", ("file", left))
    path = address.removeprefix("unix://")
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:  # as the kernel has not got to it yet
        listener.bind(path)
        listener.listen(8)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(w.delete, "c1")
            time.sleep(0.2)
            assert not answer.done()
            listener.close()
            assert answer.result()[2] == 137
    assert not os.path.exists(left) and os.listdir(w.sockets) == []


def delete_waits_for_an_owner_that_is_going(w):
    os.kill(w.pid(w.start("c1")), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    left = os.path.join(w.top, "left")
    open(left, "w").close()
    ledger = w.ledger("c1", ("file", left))
    held = os.open(os.path.join(ledger, "ledger"), os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX, 1)  # as an owner, or its child, does
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(w.delete, "c1")
        time.sleep(0.5)
        assert not answer.done() and os.path.exists(left)
        os.close(held)
        assert answer.result()[2] == 137
    assert not os.path.exists(left) and not os.path.exists(ledger)


def deletes_of_one_dead_pod_may_run_at_once(w):
    address = w.start("p", "p")
    for i in range(6):
        w.start(f"c{i}", "p")
    os.kill(w.pid(address), signal.SIGKILL)
    until(lambda: not daemons(w.top), "the shim is dead")
    left = os.path.join(w.top, "left")
    open(left, "w").close()
    ledger = w.ledger("p", ("file", left))
    with concurrent.futures.ThreadPoolExecutor(7) as pool:
        found = list(pool.map(w.delete, ["p"] + [f"c{i}" for i in range(6)]))
    assert all(f[2] == 137 for f in found)
    assert not os.path.exists(left) and not os.path.exists(ledger)
    assert os.listdir(w.sockets) == []


def delete_without_any_trace_succeeds(w):
    assert w.delete("never")[2] == 137
    os.remove(os.path.join(w.top, "b/never/config.json"))
    assert w.delete("never")[2] == 137


def delete_unmounts_the_rootfs(w):
    rootfs = os.path.join(w.bundle("c1"), "rootfs")
    # In a mount namespace of its own: nothing of it reaches the host.
    script = f"""
        mount -t tmpfs x {rootfs} && mount -t tmpfs y {rootfs} || exit 77
        "$@" >/dev/null || exit 1
        ! grep -q " {rootfs} " /proc/self/mountinfo"""
    r = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh",
                        *w.args("c1", "-bundle", w.bundle("c1"), "delete")], env=w.env(),
                       stdin=subprocess.DEVNULL, capture_output=True)
    if r.returncode == 77 or b"unshare failed" in r.stderr:
        return "mounting is not allowed here"
    assert r.returncode == 0, r


class Held:
    """The main thread of a process, held by ptrace; the others run."""
    SEIZE, INTERRUPT, SYSCALL, DETACH, ANY = 0x4206, 0x4207, 24, 17, 0x40000000
    EPOLL_PWAIT2 = 441

    def __init__(self, pid):
        self.pid = pid
        self.ptrace = ctypes.CDLL(None).ptrace
        self.ptrace.argtypes = [ctypes.c_long] * 4
        self.ok = self.ptrace(self.SEIZE, pid, 0, 0) == 0
        if self.ok:
            self.step(self.INTERRUPT)

    def step(self, how):
        assert self.ptrace(how, self.pid, 0, 0) == 0
        os.waitpid(self.pid, self.ANY)

    def until_at_work(self):
        """At a system call between two waits for something to do."""
        while True:
            self.step(self.SYSCALL)
            with open(f"/proc/{self.pid}/syscall") as f:
                if int(f.read().split()[0]) not in (self.EPOLL_PWAIT2, -1):
                    return

    def go_on(self):
        assert self.ptrace(self.DETACH, self.pid, 0, 0) == 0


def journal(w, group):
    with open(os.path.join(w.run_root, ".journal", f"ns@{group}")) as f:
        return [json.loads(line) for line in f]


def asleep(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] == "S"


def crash_line(w, signo):
    """A shim is killed by that signal; what it left."""
    pid = w.pid(w.start("c1"))
    until(lambda: asleep(pid), "it has finished its answer")
    os.kill(pid, signo)
    until(lambda: ended(pid), "it dies")
    return [line for line in journal(w, "c1") if "backtrace" in line]


def a_crash_leaves_a_backtrace_in_the_journal_and_in_the_log(w):
    log = os.open(os.path.join(w.bundle("c1"), "log"), os.O_RDONLY | os.O_NONBLOCK)
    found = crash_line(w, signal.SIGSEGV)
    if not found and w.has_sanitizer():
        return "a sanitizer reports the crash itself"
    line, = found
    assert line["level"] == "error" and line["signal"] == "SIGSEGV", line
    assert line["sent-by"] == os.getpid(), line
    frames = line["backtrace"].split()
    name = os.path.basename(PROGRAM)
    own = [f.removeprefix(name + "+") for f in frames if f.startswith(name + "+")]
    assert own, line
    functions = subprocess.run(["addr2line", "-ife", PROGRAM, *own], capture_output=True, text=True,
                               check=True).stdout
    for wanted in ("handle_events", "loop_run", "shim_main"):
        assert wanted in functions, (wanted, line, functions)
    assert b"backtrace=" in os.read(log, 1 << 20)
    os.close(log)
    assert w.delete("c1")[2] == 137
    assert os.listdir(w.sockets) == [] and not os.path.exists(os.path.join(w.run_root, "ns"))


def an_abort_leaves_a_backtrace_too_and_its_usual_effect_comes(w):
    found = crash_line(w, signal.SIGABRT)
    if not found and w.has_sanitizer():
        return "a sanitizer reports the crash itself"
    assert found[0]["signal"] == "SIGABRT" and found[0]["backtrace"], found
    assert w.pid(w.start("c1")), "and the next one begins"


def a_shim_that_is_stuck_is_reported_by_another_thread(w):
    address = w.start("c1")
    pid = w.pid(address)
    before = journal(w, "c1")
    with w.connect(address) as c:
        held = Held(pid)
        if not held.ok:
            return "tracing is not allowed here"
        c.s.sendall(request(1, "Connect", message(1, "x")))
        held.until_at_work()
        until(lambda: len(journal(w, "c1")) > len(before), "it is reported")
        held.go_on()
    line = journal(w, "c1")[len(before)]
    assert line["reason"] == "SHIM_STUCK" and line["level"] == "error", line
    assert line["age"] and line["since"] and "syscall" in line, line
    until(lambda: any(n.get("reason") == "SHIM_STUCK" and "duration" in n for n in journal(w, "c1")),
          "its end is logged")
    assert w.pid(address) == pid


def info_and_version_are_printed(w):
    r = subprocess.run([PROGRAM, "-v"], capture_output=True, env=w.env())
    assert r.returncode == 0 and b"containerd-shim-lcow-v2" in r.stdout
    options = message(1, "runtimeoptions.v1.Options") + message(2, message(2, "/etc/x"))
    r = subprocess.run([PROGRAM, "-info"], input=options, capture_output=True,
                       env=w.sanitizer())
    info = decode(r.stdout)
    assert r.returncode == 0 and info[1] == b"io.containerd.lcow.v2" and info[3] == options, r
    assert json.loads(decode(info[4])[2])["linux"]["seccomp"]["enabled"] is True
    for key, value in (("containerd.io/runtime-allow-mounts", "mkdir/*,format/*,mkfs/*,erofs,loop"),
                       ("io.lcow.saved-state", "1-1")):
        assert message(5, message(1, key) + message(2, value)) in r.stdout, (key, r.stdout)


# ---------------------------------------------------------------- upgrades

def copied(w, name, text=None, mode=0o755):
    """A copy of the program, or a script, as a package would put it elsewhere."""
    folder = os.path.join(w.top, "programs", name)
    os.makedirs(folder, mode=0o755)
    path = os.path.join(folder, os.path.basename(PROGRAM))
    with open(path, "wb") as f:
        if text is None:
            with open(PROGRAM, "rb") as own:
                f.write(own.read())
        else:
            f.write(f"#!/bin/sh\n{text}\n".encode())
    os.chmod(path, mode)
    return path


class Refusal(str):
    """The message of a refused upgrade. Its words are for people; reason is for programs."""
    reason = ""


# Golden lines: the words of two messages, which other tests need to tell these from all others.
CRASHED, NOT_OPEN = "it crashed", "is not open"


def began_upgrade(c, program):
    c.id += 2
    c.s.sendall(request(c.id, "Upgrade", message(1, program) + varint(3 << 3) +
                        varint(secrets.randbits(63) | 1), "lcow.v1.Shim"))


def upgrade(c, program, token=None, dry_run=False):
    """None, or why not."""
    token = secrets.randbits(63) | 1 if token is None else token
    answer = c.call("Upgrade", message(1, program) + varint(2 << 3) + varint(dry_run) +
                    varint(3 << 3) + varint(token), "lcow.v1.Shim")
    return refusal(answer)


def refusal(answer):
    if 5 not in answer:
        return None
    why = Refusal(answer[5].decode())
    why.reason = answer[4].decode()
    return why


def open_files(pid):
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(re.sub(r":\[\d+\]", "", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except FileNotFoundError:
            pass  # closed meanwhile
    return sorted(f for f in found if "/sanitizer." not in f)  # its log, open in each program


def settle_files(pid, program):
    """Without the program's own, and when nothing is open for a moment only."""
    last = None

    def same():
        nonlocal last
        before, last = last, open_files(pid)
        return before == last
    until(same, "its descriptors are the same")
    return last


def executable(pid):
    return os.readlink(f"/proc/{pid}/exe")


def another_program_continues_the_process(w):
    address = w.start("c1")
    pid = w.pid(address)
    programs = [copied(w, "one"), copied(w, "two")]
    with w.connect(address) as c, w.connect(address) as other:
        for i in range(6):
            assert upgrade(c, programs[i % 2]) is None
            assert executable(pid) == programs[i % 2]
            assert other.call("Connect", message(1, "x"))[1] == pid
            files = settle_files(pid, programs[i % 2])
            if i == 0:
                first = files
        assert files == first, (files, first)
        with open(os.path.join(w.run_root, ".journal/ns@c1@state")) as f:
            assert json.load(f)["sandbox"] == "c1"
        assert upgrade(c, programs[0], dry_run=True) is None and executable(pid) == programs[1]
        other.call("Shutdown")
    until(lambda: gone(pid) and os.listdir(w.sockets) == [], "it ends, and its socket is removed")
    assert os.listdir(os.path.join(w.run_root, ".journal")) == [], "no error, no journal"


def requests_that_arrive_meanwhile_wait_for_the_next_program(w):
    address = w.start("c1")
    pid = w.pid(address)
    slow = copied(w, "slow", f'case "$*" in *resume*) sleep 1;; esac; exec {PROGRAM} "$@"')
    with w.connect(address) as c, w.connect(address) as other, w.connect(address) as half:
        frame = request(1, "Connect", message(1, "x"))
        c.s.sendall(request(1, "Upgrade", message(1, slow) + varint(3 << 3) + varint(7),
                            "lcow.v1.Shim"))
        until(lambda: executable(pid) != PROGRAM, "the script runs")
        other.s.sendall(frame)
        half.s.sendall(frame[:7])
        c.id = 1
        assert 5 not in c.answer(1)
        assert other.answer(1)[1] == pid
        half.s.sendall(frame[7:])
        assert half.answer(1)[1] == pid


def a_request_that_is_half_sent_is_awaited(w):
    address = w.start("c1")
    pid = w.pid(address)
    with w.connect(address) as c, w.connect(address) as half:
        frame = request(1, "Connect", message(1, "x" * 500))
        half.s.sendall(frame[:300])
        time.sleep(0.2)
        c.s.sendall(request(1, "Upgrade", message(1, copied(w, "one")) + varint(3 << 3) + varint(7),
                            "lcow.v1.Shim"))
        time.sleep(1)
        half.s.sendall(frame[300:])
        half.answer(1)
        answer = c.answer(1)
        assert 5 not in answer, answer
        assert w.pid(address) == pid and executable(pid) != PROGRAM
        assert answer[3] > 0.9e9, ("the pause begins when no further request is begun", answer)


def an_abandoned_thread_is_awaited(w):
    """exec would wait for it without limit if it were stuck, and what it writes would be lost."""
    address = w.start("c1")
    pid, bundle = w.pid(address), w.bundle("c2")
    os.unlink(os.path.join(bundle, "config.json"))
    os.mkfifo(os.path.join(bundle, "config.json"))  # it blocks in open()
    with w.connect(address) as c, w.connect(address) as other:
        other.s.sendall(request(1, "Create", message(1, "c2") + message(2, bundle), timeout=1))
        assert other.answer(1) == DEADLINE
        began_upgrade(c, copied(w, "one"))
        time.sleep(1.5)
        assert executable(pid) == PROGRAM, "it did not wait"
        with open(os.path.join(bundle, "config.json"), "w"):
            pass
        answer = c.answer(c.id)
        assert 5 not in answer, answer
        assert w.pid(address) == pid and executable(pid) != PROGRAM


def as_many_connections_as_it_accepts_do_not_prevent_it(w):
    address = w.start("c1")
    pid, count = w.pid(address), 1024
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count + 200:
        return "too few descriptors"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count + 200, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, hard))
    with w.connect(address) as c:
        silent = []
        while len(silent) < count:  # the last one waits to be accepted
            try:
                silent.append(w.connect(address))
            except BlockingIOError:
                time.sleep(0.01)  # until the shim has accepted some
        until(lambda: len(os.listdir(f"/proc/{pid}/fd")) > count, "it has accepted them")
        assert upgrade(c, copied(w, "one")) is None
    silent.pop(0).close()
    with silent.pop() as last:
        assert last.call("Connect", message(1, "x"))[1] == pid
    for s in silent:
        s.close()


def links_are_followed_once(w):
    address = w.start("c1")
    pid = w.pid(address)
    other, link = copied(w, "other"), os.path.join(w.top, "link")
    checked = copied(w, "checked", f'ln -sfn {other} {link}; '
                     f'case "$*" in *resume*) touch {w.top}/ran;; esac; exec {PROGRAM} "$@"')
    os.symlink(checked, link)
    with w.connect(address) as c:
        assert upgrade(c, link) is None
    assert os.path.exists(f"{w.top}/ran") and executable(pid) == PROGRAM, "another one was executed"


def what_a_program_started_that_did_not_answer_is_ended(w):
    address = w.start("c1")
    path = os.path.join(w.top, "pid")
    with w.connect(address) as c:
        assert upgrade(c, copied(w, "yes", f"sleep 1000 & echo $! >{path}; exec yes"))
    with open(path) as f:
        child = int(f.read())
    until(lambda: ended(child), "it is ended")


def a_state_of_an_earlier_sandbox_is_removed(w):
    folder = os.path.join(w.run_root, ".journal")
    os.makedirs(folder)
    with open(f"{folder}/ns@c1@state", "w") as f:
        f.write("{}")
    w.start("c1")
    assert os.listdir(folder) == ["ns@c1"], os.listdir(folder)


def programs_that_other_users_could_have_changed_are_refused(w):
    address = w.start("c1")
    pid = w.pid(address)
    with w.connect(address) as c:
        path = copied(w, "open")
        assert upgrade(c, path, dry_run=True) is None
        os.chmod(os.path.dirname(path), 0o777)
        why = upgrade(c, path)
        assert why.reason == "UPGRADE_REFUSED" and "another user" in why, why  # a golden line
        os.chmod(os.path.dirname(path), 0o1777)
        assert upgrade(c, path, dry_run=True) is None, "the sticky bit protects it"
        os.chmod(path, 0o775)
        assert upgrade(c, path) == why
        if os.geteuid() == 0:
            os.chmod(path, 0o755)
            os.chown(os.path.dirname(path), 1234, -1)
            assert upgrade(c, path) == why
        touched = copied(w, "touched", f'{PROGRAM} "$@"; touch -d @1 "$0"')
        assert touched in upgrade(c, touched), "it was replaced after it was checked"
        assert upgrade(c, PROGRAM, token=0), "without a token"
    assert (w.pid(address), executable(pid)) == (pid, PROGRAM)


def faulty(w, fault, first=""):
    library = os.environ.get("RESUME_FAULT_SO")
    assert library, "RESUME_FAULT_SO names tests/e2e/resume_fault.c, compiled"
    return copied(w, fault, f'case "$*" in *" -1 "*) ;; *resume*) {first} ;; esac; '
                  f'RESUME_FAULT={fault} RESUME_FAULT_AT=2 LD_PRELOAD={library} exec {PROGRAM} "$@"')


def a_program_that_fails_in_the_middle_leaves_the_previous_one_running(w):
    if w.has_sanitizer():
        return "a sanitizer must be loaded first"
    address = w.start("c1")
    pid = w.pid(address)
    with w.connect(address) as c:
        for fault, why in (("refuse", NOT_OPEN), ("crash", CRASHED), ("abort", CRASHED),
                           ("overflow", CRASHED), ("late", CRASHED), ("hang", "10 s"),
                           ("exit", "exited"), ("noloop", "event loop")):
            files = settle_files(pid, PROGRAM)
            answer = upgrade(c, faulty(w, fault))
            assert answer and answer.reason == "UPGRADE_FAILED", (fault, answer)
            assert why in answer, (fault, answer)
            assert w.pid(address) == pid and executable(pid) == PROGRAM, fault
            now = settle_files(pid, PROGRAM)
            assert now == files, (fault, [f for f in now if f not in files], now, files)
        # In its first steps: what was sent meanwhile is answered by the previous one.
        with w.connect(address) as other:
            slow = faulty(w, "steps", "sleep 1;")
            c.s.sendall(request(c.id + 2, "Upgrade", message(1, slow) + varint(3 << 3) + varint(7),
                                "lcow.v1.Shim"))
            c.id += 2
            until(lambda: executable(pid) != PROGRAM, "the script runs")
            other.s.sendall(request(1, "Connect", message(1, "x")))
            with w.connect(address) as third:
                assert third.call("Connect", message(1, "x"))[1] == pid
            assert other.answer(1)[1] == pid
            answer = refusal(c.answer(c.id))
            assert answer.reason == "UPGRADE_FAILED" and CRASHED in answer, answer
        clean = copied(w, "clean", f'unset LD_PRELOAD; exec {PROGRAM} "$@"')
        assert upgrade(c, clean) is None


def resumed(document, ns="ns", sandbox="c1", more=()):
    """What a program does that is given this document: it executes the previous one, here echo."""
    state = os.memfd_create("state", 0)
    os.write(state, document)
    echo = os.open(os.path.realpath("/bin/echo"), os.O_RDONLY)
    os.set_inheritable(echo, True)
    os.set_inheritable(state, True)
    try:
        r = subprocess.run([PROGRAM, "-namespace", ns, "-id", sandbox, "-address", "a", "-socket",
                            "unix:///s", *more, "resume", str(state), str(echo), ""],
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT,
                           close_fds=False)
    finally:
        os.close(state)
        os.close(echo)
    words = r.stdout.decode(errors="replace").split(f" resume {state} -1 ", 1)
    assert r.returncode == 0 and len(words) == 2, r
    return words[1].strip()


def sealed(body):
    return b"LCOWSAV1" + hashlib.sha256(body).hexdigest().encode() + body


def document_of(w, name):
    """The state of a running shim: a script that is executed with it copies it."""
    address = w.start(name)
    path = os.path.join(w.top, f"{name}.state")
    script = copied(w, f"copies-{name}", 'case "$*" in *" resume "*) n=${*##* resume }; '
                    f'cat </proc/self/fd/${{n%% *}} >{path}; '
                    f'echo x 2>/dev/null >>/proc/self/fd/${{n%% *}} && touch {path}.changed;; '
                    f'esac; exec {PROGRAM} "$@"')
    with w.connect(address) as c:
        assert upgrade(c, script) is None
    assert not os.path.exists(path + ".changed"), "it is sealed"
    with open(path, "rb") as f:
        return f.read()


def a_document_that_cannot_be_read_goes_back_as_it_is(w):
    good = document_of(w, "c1")
    body = good[72:]
    assert good == sealed(body)
    for n in (0, 1, 71, 72, 80, len(good) // 2, len(good) - 1):
        assert (why := resumed(good[:n])) and CRASHED not in why, (n, why)
    for at in range(0, len(good), max(1, len(good) // 40)):
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        assert (why := resumed(bytes(flipped))) and CRASHED not in why, (at, why)
    assert body[:4] == b"\x08\x01\x10\x01"
    assert " 9 " in resumed(sealed(b"\x08\x09\x10\x09" + body[4:]))
    assert "ns/c1" in resumed(good, sandbox="c2")
    assert "ns/c1" in resumed(good, ns="other")
    assert NOT_OPEN in resumed(good), "its descriptors are not there"
    assert "-future" in resumed(good, more=["-future"]), "a command line that it cannot read"
    assert resumed(good, ns="a/b")
    for at in range(0, len(body), max(1, len(body) // 60)):
        wrong = bytearray(body)
        wrong[at] ^= 1 << at % 8
        why = resumed(sealed(bytes(wrong)))  # as a version with a fault might write it
        assert why and CRASHED not in why, (at, why)


ONLY = sys.argv[2:]  # the names of tests
TESTS = [v for v in list(globals().values())
         if callable(v) and getattr(v, "__code__", None) and
         v.__code__.co_varnames[:1] == ("w",) and v.__code__.co_argcount == 1 and
         (not ONLY or v.__name__ in ONLY)]


def main():
    print(f"1..{len(TESTS)}", flush=True)
    failed = 0
    for i, test in enumerate(TESTS, 1):
        with tempfile.TemporaryDirectory(prefix="shim", dir="/tmp") as top:
            w = World(top)
            skip = None
            try:
                if os.geteuid() != 0 and test is older_containerd_gets_the_bare_address:
                    skip = "needs root"
                else:
                    skip = test(w)
                if not skip:  # a crash on purpose is a report of the sanitizer's
                    w.check_sanitizer()
                verdict = "ok"
            except Exception:
                print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="")
                verdict, failed = "not ok", failed + 1
            finally:
                w.end()
        print(f"{verdict} {i} - {test.__name__}" + (f" # SKIP {skip}" if skip else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

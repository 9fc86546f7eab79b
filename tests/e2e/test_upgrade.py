"""lcow upgrade: another program continues a shim under a running pod. Nothing but a pause is
visible, and an upgrade that fails changes nothing."""

import collections
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import cell
import cri
import older
import packages
import shimcall
import streaming
from e2e import SECONDS, kill, test
from harness import CACHE, HERE as INTEGRATION, Skip
from pod import FOREVER, Pod, pod_test
from test_pod_crash import await_dead, together
from test_pod_streams import attach, exec_stream

SHIM = "containerd-shim-lcow-v2"
LINE = 100  # bytes, of netecho
RUNNING = 2  # of containerd's Task.State
LEAST = 1e6  # bytes a second of output, by an emulated processor and on a busy machine


# ---------------------------------------------------------------- programs

def program(t, name):
    """A copy of the shim, as a package would put it elsewhere."""
    folder = os.path.join(t.work, "programs", name)
    os.makedirs(folder, mode=0o755)
    path = os.path.join(folder, SHIM)
    shutil.copy(os.path.join(packages.BIN, SHIM), path)
    os.chmod(path, 0o755)
    return path


def script(t, name, text, mode=0o755):
    folder = os.path.join(t.work, "programs", name)
    os.makedirs(folder, mode=0o755)
    path = os.path.join(folder, SHIM)
    with open(path, "w") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, mode)
    return path


def faulty(t, fault):
    """The shim itself, which fails when it resumes."""
    library = os.path.join(CACHE, "resume_fault.so")
    source = os.path.join(os.path.dirname(INTEGRATION), "e2e/resume_fault.c")
    os.makedirs(CACHE, exist_ok=True)
    with packages.alone():
        if not os.path.exists(library) or os.path.getmtime(library) < os.path.getmtime(source):
            subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra",
                            "-Werror", "-o", library + ".new", source, "-ldl"], check=True)
            os.rename(library + ".new", library)
    return script(t, f"resume-{fault}", f"RESUME_FAULT={fault} LD_PRELOAD={library} "
                  f"exec {os.path.join(packages.BIN, SHIM)} \"$@\"")


# ---------------------------------------------------------------- upgrades

def upgrade(t, *args, code=0):
    """What the tool says of each shim."""
    r = t.lcow("upgrade", "--json", *args, seconds=SECONDS)
    t.equal(r.code, code, r)
    return json.loads(r.out)


def upgraded(t, sandbox, *args):
    answer, = upgrade(t, sandbox, *args)
    t.equal((answer["sandbox"], answer["upgraded"], answer["error"]), (sandbox, True, None),
            answer)
    return answer


def refused(t, sandbox, pattern, *args, reason="UPGRADE_REFUSED"):
    answer, = upgrade(t, sandbox, *args, code=1)
    t.equal((answer["sandbox"], answer["upgraded"]), (sandbox, False), answer)
    t.equal(answer["error"]["reason"], reason, answer)
    t.words(pattern, answer["error"]["message"])
    return answer


def executable(pid):
    return os.readlink(f"/proc/{pid}/exe")


def memory_kib(pid, kind):
    """kind: "Pss", or "Rss", which does not depend on who else runs the same program."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return int(re.search(rf"(?m)^{kind}:\s+(\d+)", f.read()).group(1))


def descriptors(pid):
    """How many refer to what, without the numbers of sockets and pipes."""
    found = collections.Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[re.sub(r":\[\d+\]", "", os.readlink(f"/proc/{pid}/fd/{fd}"))] += 1
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def volume(t):
    path = os.path.join(t.work, "volume")
    os.makedirs(path, exist_ok=True)
    return path, [{"container_path": "/v", "host_path": path}]


def counting(t, pod, name="counts", rate=1 << 20):
    """A container that prints numbered lines, so many bytes a second, until end() was called."""
    t.load("network")
    path, mounts = volume(t)
    c = pod.run(name, "netecho", "lines", str(rate), "/v/end", mounts=mounts, image="network")
    begin = time.monotonic()
    t.until(lambda: os.path.exists(c.log_path) and os.path.getsize(c.log_path) > rate,
            "it prints", SECONDS)

    def end(least=0):
        """least: so many bytes a second it must have printed."""
        with open(os.path.join(path, "end"), "w"):
            pass
        seconds = time.monotonic() - begin
        c.await_exit(7)

        def ended():
            with open(c.log_path, "rb") as f:
                f.seek(-min(100, os.path.getsize(c.log_path)), os.SEEK_END)
                return f.read().endswith(b" stdout F end\n")
        t.until(ended, "its last line is in the log", SECONDS)
        os.unlink(os.path.join(path, "end"))
        number = 0
        with open(c.log_path) as f:
            for number, line in enumerate(f, 1):
                text = line.split(" ", 3)[3].rstrip("\n")
                if text == "end":
                    break
                if text != f"{number:010} ".ljust(LINE - 1, "."):
                    t.check(False, f"line {number} is {line!r}")
        printed = (number - 1) * LINE / seconds
        t.note(f"{number - 1} lines, each once and in order, {printed / 1e6:.1f} MB/s")
        t.check(number > 1000 and printed >= least, f"it printed less than {least / 1e6:.1f} MB/s")
    return c, end


class Caller:
    """Calls the only shim, on a connection of its own."""

    def __init__(self, t):
        self.stream, self.socket = -1, fill(t, 1)[0]
        self.socket.settimeout(SECONDS)
        t.at_end(self.socket.close)

    def state(self, container):
        self.stream += 2
        shimcall.send(self.socket, self.stream, "containerd.task.v2.Task", "State",
                      shimcall.text(1, container.id), "k8s.io")
        return shimcall.receive(self.socket)


def many_upgrades(t, count, rate, least):
    pod = t.pod("p1")
    _, end = counting(t, pod, rate=rate)
    shell = pod.run("shell", *FOREVER)
    reader = pod.run("reads", "sh", "-c", "while read x; do echo got $x; done; exit 5", stdin=True,
                     stdin_once=True)
    pod.run("serves", "netecho", "serve", "127.0.0.1", "8080", image="network").await_log("up")

    terminal = exec_stream(t, shell, "sh", tty=True)
    terminal.expect("# ")
    plain = exec_stream(t, shell, "sh", "-c",
                        'while read x; do [ "$x" != bye ] || exit 9; echo "$x"; done')
    joined = attach(t, reader)
    answer = t.cri.PortForward(pod_sandbox_id=pod.id, port=[8080])
    forward = streaming.Forward(t, answer.url, 8080)

    shim, fds, caller = t.shim_pid(), {}, Caller(t)
    programs = [program(t, "one"), program(t, "two")]
    pauses, states, sent = [], [], ""
    before, memory = memory_kib(shim, "Rss"), 0
    for i in range(count):
        path = programs[i % 2]
        pauses.append(upgraded(t, pod.id, "--program", path)["pause_ms"])
        begin = time.monotonic()
        t.equal(caller.state(shell)[4], RUNNING)
        states.append(time.monotonic() - begin)
        t.cri.ContainerStats(container_id=shell.id)  # containerd asks the shim, and that the guest
        t.equal((t.shim_pid(), executable(shim)), (shim, path), f"upgrade {i}")
        terminal.send(f"echo the $((i={i}))th\n".encode())
        terminal.expect(f"the {i}th")
        plain.send(f"line {i}\n".encode())
        plain.expect(f"line {i}\n")
        joined.send(f"word {i}\n".encode())
        joined.expect(f"got word {i}\n")
        forward.send(f"{i} ".encode(), 0)
        sent += f"{i} "
        t.until(lambda: forward.received() == sent.encode(), f"{i} came back", 30)
        if i % 10 == 0:
            t.equal(shell.sh("echo well"), "well\n")
        if i == 0:
            memory, fds = memory_kib(shim, "Pss"), descriptors(shim)
    terminal.resize(33, 111)
    terminal.send(b"sleep 0.2; stty size\n")
    terminal.expect("33 111")
    t.until(lambda: not descriptors(shim) - fds, f"no more descriptors: {descriptors(shim) - fds}",
            30)
    after, rss = memory_kib(shim, "Pss"), memory_kib(shim, "Rss")
    t.note(f"{count} upgrades: pause {sorted(pauses)[len(pauses) // 2]:.0f} ms median, "
           f"{max(pauses):.0f} most; State in {max(states) * 1000:.0f} ms at most; "
           f"memory {before} → {rss} KiB, of its own {memory} after the first, {after} after the last")
    t.check(max(states) < 1, "the shim needs more than a second to answer", states)
    t.check(rss <= before * 1.05, f"{before} KiB before the first upgrade, {rss} at the end")
    t.check(after <= memory * 1.05, f"{memory} KiB after the first upgrade, {after} at the end")

    terminal.send(b"exit 4\n")
    t.equal(terminal.wait(), 4)
    plain.send(b"bye\n")
    t.equal(plain.wait(), 9)
    joined.close()
    reader.await_exit(5)
    end(least)
    t.equal(pod.state, cri.READY)
    shell.stop()
    shell.await_exit(137)


@pod_test("upgrade: lines, terminal, exec, attach and port-forward continue; waits return the "
          "status", runc=False, smoke=True, deadline=600)
def five(t):
    many_upgrades(t, 5, 2 << 20, LEAST / 2)


@pod_test("upgrade: a hundred in a row", runc=False, full=True, deadline=1800)
def hundred(t):
    many_upgrades(t, 100, 10 << 20, LEAST)


@test("upgrade: ctr run waits for the status that comes after it; dry run; usage", runc=False,
      smoke=True)
def ctr_waits(t):
    waiting = t.start_run("--rm", "c1", "sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.1; done; "
                          "echo ended; exit 3")
    t.until(lambda: t.status("c1") == "RUNNING", "c1 runs", SECONDS)
    sleeping = t.start_ctr(*t.exec_args("c1", "sh", "-c", "sleep 3; exit 8"))
    shim, before = t.shim_pid(), executable(t.shim_pid())
    path = program(t, "other")
    answer, = upgrade(t, "--dry-run", "--program", path, "c1")
    t.equal((answer["upgraded"], answer["error"], executable(shim)), (False, None, before), answer)
    for _ in range(3):
        answer = upgraded(t, "c1", "--program", path)
        t.check(answer["from"] and answer["to"], "versions", answer)
    t.equal((t.shim_pid(), executable(shim)), (shim, path))
    t.equal(sleeping.wait(SECONDS).code, 8)
    t.equal(t.exec("c1", "touch", "/tmp/go").code, 0)
    r = waiting.wait(SECONDS)
    t.equal((r.code, r.out), (3, "ended\n"), r)
    t.equal(t.lcow("upgrade").code, 2)
    t.check(t.lcow("upgrade", "nobody-is-called-that").code != 0, "an unknown id")


# ---------------------------------------------------------------- versions

@pod_test("upgrade: a shim of an older commit with its agent, to the present one and back",
          runc=False, smoke="one", deadline=600)
def from_older(t):
    if not older.is_there():
        raise Skip(f"commit {older.COMMIT} is not in this clone: git fetch --unshallow")
    t.check(os.path.exists(older.SHIM), f"{older.FOLDER} was not made: tests/e2e/run --prepare")
    t.settings(image_dir=older.IMAGE, template="off")
    t.containerd.env["PATH"] = f"{os.path.dirname(older.SHIM)}:{t.containerd.env['PATH']}"
    t.containerd.restart()
    t.until(t.serves, "the CRI serves", 60)
    pod = t.pod("p1")
    _, end = counting(t, pod)
    shell = pod.run("shell", *FOREVER)
    terminal = exec_stream(t, shell, "sh", tty=True)
    terminal.expect("# ")
    shim = t.shim_pid()
    t.equal(executable(shim), older.SHIM)
    for i, path in enumerate((packages.SHIM, older.SHIM, packages.SHIM)):
        upgraded(t, pod.id, "--program", path)
        t.equal((t.shim_pid(), executable(shim)), (shim, path))
        terminal.send(f"echo the $((i={i}))th\n".encode())
        terminal.expect(f"the {i}th")
        t.equal(shell.exec("sh", "-c", "exit 6").code, 6)
        more = pod.run(f"more{i}", "sh", "-c", "echo hello; exit 4")
        more.await_exit(4)
        t.equal(more.out, "hello\n")
        more.remove()
        stats = t.cri.ContainerStats(container_id=shell.id).stats
        t.check(stats.memory.working_set_bytes.value > 0, "no statistics", stats)
    terminal.send(b"exit 4\n")
    t.equal(terminal.wait(), 4)
    end()
    shell.stop()
    shell.await_exit(137)


def patched(t, name, version):
    """The shim, as one that says it is of that version."""
    path = program(t, name)
    with open(path, "rb") as f:
        old = f.read()
    own = t.lcow("--version").out.split()[-1]
    new = old.replace(f"\0{own}\0".encode(), f"\0{version}\0".encode())
    t.check(len(version) == len(own) and new != old, f"{own} is not in {path}")
    with open(path, "wb") as f:
        f.write(new)
    return path, own


@test("upgrade: shims of another version are marked, counted after an installation, and upgraded if "
      "the configuration says so", runc=False)
def versions(t):
    t.detach("c1", "sleep", "100000")
    t.detach("c2", "sleep", "100000")
    path, own = patched(t, "other", "0.0.1")
    t.equal(upgraded(t, "c1", "--program", path)["to"], "0.0.1")
    rows = [line for line in t.lcow("ps").out.splitlines() if "(VM)" in line]
    t.equal([row.split("  shim ")[1] for row in sorted(rows)], [f"0.0.1 (installed: {own})", own], rows)
    checks = json.loads(t.lcow("doctor", "--json").out)["checks"]
    behind, = [c for c in checks if "lcow upgrade --all" in (c["fix"] or "")]
    t.equal(behind["status"], "warning", behind)
    t.words(rf"1 of 2 run another version than {re.escape(own)}", behind["detail"])
    r = t.lcow("upgrade", "--after-install")
    t.equal(r.code, 0, r)
    t.match(r"\b1 .*lcow upgrade --all", r.out)
    for p in t.shim_pids():
        t.check(executable(p) in (path, packages.SHIM), "nothing was upgraded", executable(p))
    t.config(upgrade="auto")
    shutil.copy(packages.SHIM, path + ".new")
    os.rename(path + ".new", path)  # as dpkg does
    r = t.lcow("upgrade", "--after-install")
    t.equal(r.code, 0, r)
    t.match(rf"c1: .*\b0\.0\.1\b.*\b{re.escape(own)}\b", r.out)
    t.check("c2" not in r.out, "one that is not behind is left alone", r.out)
    t.check("0.0.1" not in t.lcow("ps").out, "none is behind")
    r = t.lcow("upgrade", "--after-install")
    t.equal((r.code, r.out), (0, ""), r)
    t.equal(t.exec("c1", "echo", "well").out, "well\n")


# ---------------------------------------------------------------- programs that cannot continue

@pod_test("upgrade: a program that cannot continue leaves the previous one running", runc=False,
          smoke="one", deadline=600)
def bad_programs(t):
    pod = t.pod("p1")
    _, end = counting(t, pod)
    shell = pod.run("shell", *FOREVER)
    stream = exec_stream(t, shell, "sh", "-c", "cat; exit 9")
    shim, running = t.shim_pid(), executable(t.shim_pid())
    before = None  # after the first that was executed: connections are made when they are needed
    real = os.path.join(packages.BIN, SHIM)
    for path, pattern, reason in (
            (os.path.join(t.work, "nowhere"), "No such file", "UPGRADE_REFUSED"),
            (t.work, "not a regular file", "UPGRADE_REFUSED"),
            ("bin/true", "absolute", "UPGRADE_REFUSED"),
            (script(t, "plain", "exit 0", mode=0o644), "not executable", "UPGRADE_REFUSED"),
            (script(t, "open", f'exec {real} "$@"', mode=0o777), "another user", "UPGRADE_REFUSED"),
            (script(t, "exits", "exit 0"), "not a shim|does not say", "UPGRADE_REFUSED"),
            (script(t, "fails", "exit 1"), "error|exit", "UPGRADE_REFUSED"),
            (script(t, "crashes", "kill -SEGV $$"), "error|signal", "UPGRADE_REFUSED"),
            (script(t, "hangs", "exec sleep 1000"), "10 s|deadline|timed out|too long|time",
             "UPGRADE_REFUSED"),
            (script(t, "prints", "exec yes"), "print", "UPGRADE_REFUSED"),
            (faulty(t, "refuse"), "not open", "UPGRADE_FAILED"),
            (faulty(t, "crash"), "crashed", "UPGRADE_FAILED"),
            (faulty(t, "abort"), "crashed", "UPGRADE_FAILED"),
            (faulty(t, "overflow"), "crashed", "UPGRADE_FAILED"),
            (faulty(t, "exit"), "exited", "UPGRADE_FAILED"),
            (faulty(t, "noloop"), "event loop", "UPGRADE_FAILED"),
            (faulty(t, "hang"), "10 s", "UPGRADE_FAILED")):
        refused(t, pod.id, pattern, "--program", path, reason=reason)
        t.equal((t.shim_pid(), executable(shim)), (shim, running), path)
        t.equal(shell.sh("echo well"), "well\n")
        stream.send(f"after {path}\n".encode())
        stream.expect(f"after {re.escape(path)}\n")
        if reason == "UPGRADE_FAILED":
            before = before or descriptors(shim)
    t.until(lambda: not descriptors(shim) - before,
            f"no more descriptors: {descriptors(shim) - before}", 30)
    clean = script(t, "clean", f'unset LD_PRELOAD RESUME_FAULT; exec {real} "$@"')
    upgraded(t, pod.id, "--program", clean)
    t.equal(t.shim_pid(), shim)
    stream.close()
    end()


# ---------------------------------------------------------------- moments

@pod_test("upgrade: during Create, Start, exec and Delete; two at once", runc=False, both=True,
          deadline=600)
def during_changes(t):
    pod = t.pod("p1")
    _, end = counting(t, pod)
    shim, over, trouble = t.shim_pid(), threading.Event(), []

    def change():
        try:
            for i in range(6):
                c = pod.create(f"c{i}", "sh", "-c", "sleep 0.3; exit 6").start()
                c.await_exit(6)
                c.remove()
                d = pod.run(f"d{i}", *FOREVER)
                t.equal(d.exec("sh", "-c", "exit 2").code, 2)
                d.stop()
                d.remove()
        except Exception as e:
            trouble.append(str(e))
        over.set()
    thread = threading.Thread(target=change)
    thread.start()
    done, answers = 0, []
    while not over.is_set():
        for r in [t.start("upgrade", "--json", pod.id) for _ in range(2)]:
            answers += json.loads(r.wait(SECONDS).out)
    thread.join()
    t.equal(trouble, [])
    done = sum(a["upgraded"] for a in answers)
    for a in answers:
        if not a["upgraded"]:
            t.equal(a["error"]["reason"], "UPGRADE_REFUSED", a)
            t.words("under way|busy", a["error"]["message"])
    t.check(done > 0, f"none of {len(answers)} upgrades was done", answers[:5])
    t.note(f"{done} of {len(answers)} upgrades were done")
    t.equal(t.shim_pid(), shim)
    end()


def runs(t, pod):
    """Whether there is a shim to upgrade: a sandbox that is stopped or dead may have none."""
    there = pod.id in [s["sandbox"] for s in json.loads(t.lcow("ps", "--json").out)]
    t.note(f"{pod.name}: {'a' if there else 'no'} shim")
    return there


@pod_test("upgrade: a VM that is stopped, a pod that is stopped, a VM that is dead", runc=False,
          both=True)
def stopped(t):
    pod = t.pod("p1")
    a, b = pod.run("a", *FOREVER), pod.run("b", "sh", "-c", "exit 3")
    b.await_exit(3)
    upgraded(t, pod.id)  # once b is deleted in the guest
    os.kill(t.qemu_pid(), signal.SIGSTOP)
    try:
        upgraded(t, pod.id)
    finally:
        os.kill(t.qemu_pid(), signal.SIGCONT)
    t.equal(a.sh("echo well"), "well\n")
    pod.stop()
    a.await_exit()
    if runs(t, pod):
        upgraded(t, pod.id)
    t.equal((pod.state, a.state, b.status().exit_code), (cri.NOTREADY, cri.EXITED, 3))
    pod.remove()

    pod = t.pod("p2")
    a = pod.run("a", *FOREVER)
    kill(t.qemu_pid())
    await_dead(t, pod, a)
    if runs(t, pod):
        upgraded(t, pod.id)
    t.equal(a.status().exit_code, 137)
    t.equal(t.remove_pods(), [])


@pod_test("upgrade: containerd is killed in the middle, and starts while the shim is upgraded",
          runc=False, both=True)
def containerd_killed(t):
    pod = t.pod("p1")
    path, mounts = volume(t)
    c = pod.run("c", "sh", "-c", "while [ ! -e /v/go ]; do sleep 0.1; done; echo two; exit 7",
                mounts=mounts)
    shim = t.shim_pid()
    for _ in range(3):
        r = t.start("upgrade", "--json", pod.id)
        t.containerd.kill()
        t.equal(r.wait(SECONDS).code, 0, r)
        upgraded(t, pod.id)
        starting = threading.Thread(target=t.containerd.start)
        starting.start()
        while starting.is_alive():
            t.lcow("upgrade", pod.id)
        starting.join()
        t.until(t.serves, "the CRI serves", 60)
        t.equal((pod.state, c.state, t.shim_pid()), (cri.READY, cri.RUNNING, shim))
        t.equal(c.sh("echo well"), "well\n")
    t.containerd.kill()
    upgraded(t, pod.id)
    with open(os.path.join(path, "go"), "w"):
        pass
    t.containerd.start()
    t.until(t.serves, "the CRI serves", 60)
    c.await_exit(7)
    t.match("two\n", c.out)


@pod_test("upgrade: while the pod is stopped and removed", runc=False, both=True)
def during_shutdown(t):
    done = 0
    for i in range(3):
        pod = t.pod(f"p{i}")
        pod.run("a", *FOREVER)
        over, answers = threading.Event(), []

        def end(pod=pod, over=over):
            try:
                pod.stop()
                pod.remove()
            finally:
                over.set()

        def again(pod=pod, over=over, answers=answers):
            while not over.is_set():
                r = t.lcow("upgrade", "--json", pod.id)
                answers += json.loads(r.out) if r.out.startswith("[") else []
        t.equal(together([end, again]), [])
        done += sum(a["upgraded"] for a in answers)
        for a in answers:
            t.check(a["upgraded"] or a["error"]["reason"] != "UPGRADE_FAILED", "it went back", a)
    t.note(f"{done} upgrades")
    t.until(lambda: not t.shim_pids(), "the shims have left", 60)


def fill(t, count):
    """Silent connections, each of which is a descriptor of the only shim."""
    with open(f"/proc/{t.shim_pid()}/cmdline") as f:
        words = f.read().split("\0")
    address = words[words.index("-socket") + 1]
    found = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for s in found:
        s.connect(address.removeprefix("unix://"))
    return found


@pod_test("upgrade: without free descriptors", runc=False)
def no_descriptors(t):
    pod = t.pod("p1")
    c = pod.run("c", *FOREVER)
    shim = t.shim_pid()
    usual = resource.prlimit(shim, resource.RLIMIT_NOFILE)
    silent = fill(t, 300)  # the check of the program wants numbers that are higher than most
    t.until(lambda: len(os.listdir(f"/proc/{shim}/fd")) > 300, "it has accepted them", 30)
    ends = collections.Counter()
    for free in (*range(3, 24, 2), 40, 60):
        used = {int(fd) for fd in os.listdir(f"/proc/{shim}/fd")}
        limit = sorted(set(range(max(used) + free + 2)) - used)[free]  # below it are so many
        resource.prlimit(shim, resource.RLIMIT_NOFILE, (limit, usual[1]))
        r = t.lcow("upgrade", "--json", pod.id, seconds=SECONDS)
        resource.prlimit(shim, resource.RLIMIT_NOFILE, usual)
        t.equal(t.shim_pid(), shim, r)
        answer, = json.loads(r.out)
        t.equal(r.code, 0 if answer["upgraded"] else 1, r)
        ends[answer["upgraded"] or answer["error"]["reason"]] += 1
        if answer["error"] and answer["error"]["reason"] == "TIMED_OUT":  # the request has not arrived
            t.match("reason=TOO_MANY_FILES", t.lcow("logs", pod.id).out)
        t.equal(c.sh("echo well"), "well\n")
    t.note(f"{dict(ends)}")
    t.equal(sorted(map(str, {*ends} - {"TIMED_OUT"})), ["True", "UPGRADE_REFUSED"], ends)
    for s in silent:
        s.close()


@pod_test("upgrade: on a full disk", runc=False)
def full_disk(t):
    os.makedirs(t.run_root, exist_ok=True)
    cell.mount("tmpfs", t.run_root, "tmpfs", data="size=64m,mode=0755")
    t.at_end(lambda: cell.umount(t.run_root))
    pod = t.pod("p1")
    c = pod.run("c", *FOREVER)
    shim, filler = t.shim_pid(), os.path.join(t.run_root, "filler")
    with open(filler, "wb", buffering=0) as f:
        size = 1 << 20
        while size:
            try:
                f.write(bytes(size))
            except OSError:
                size >>= 1
    for _ in range(3):
        r = t.lcow("upgrade", "--json", pod.id, seconds=SECONDS)
        answer, = json.loads(r.out)
        t.note(f"upgraded: {answer['upgraded']}")
        t.equal((r.code, t.shim_pid()), (0 if answer["upgraded"] else 1, shim), r)
        t.equal(c.state, cri.RUNNING)
    os.unlink(filler)
    upgraded(t, pod.id)
    t.equal(c.sh("echo well"), "well\n")
    t.equal(t.remove_pods(), [])


@pod_test("upgrade: 20 shims at once", runc=False, full=True, deadline=1800)
def twenty(t):
    count = 20
    t.settings(boot_timeout_s=120)
    configs = {f"p{i}": t.config(f"p{i}") for i in range(count)}
    pods, containers = {}, {}

    def make(name):
        pods[name] = Pod(t, name, configs[name], t.handler, 45 * count)
        containers[name] = pods[name].create("c1", "sh", "-c", "while read x; do echo $x; done; "
                                             "exit 3", stdin=True, stdin_once=True).start(45 * count)
    t.equal(together([lambda name=name: make(name) for name in configs]), [])
    streams = {name: attach(t, c) for name, c in containers.items()}
    shims = sorted(t.shim_pids())
    for i in range(3):
        begin = time.monotonic()
        answers = upgrade(t, "--all")
        t.equal(sorted(a["sandbox"] for a in answers if a["upgraded"]),
                sorted(p.id for p in pods.values()), answers)
        t.note(f"{count} upgrades in {time.monotonic() - begin:.1f} s")
        for name, s in streams.items():
            s.send(f"{name} {i}\n".encode())
            s.expect(f"{name} {i}\n")
    t.equal(sorted(t.shim_pids()), shims)
    for s in streams.values():
        s.close()
    for c in containers.values():
        c.await_exit(3)
    t.equal(together([lambda p=p: (p.stop(), p.remove()) for p in pods.values()]), [])

"""What a client does to a running task."""

import os
import re
import signal
import subprocess
import time

from e2e import CGROUP_V2, kill, test

FOREVER = ("sleep", "100000")


@test("a detached container runs, is listed, and is removed when it was killed", smoke=True)
def detached(t):
    t.detach("c1", *FOREVER)
    t.equal(t.status("c1"), "RUNNING")
    t.match("c1 ", t.must("containers", "ls").out)
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    t.await_status("c1", "STOPPED")
    r = t.ctr("tasks", "rm", "c1")
    t.match("137", r.out + r.err + str(r.code), r)
    t.must("containers", "rm", "c1")
    t.equal(t.tasks(), {})


@test("exec: output, exit code, stdin, surroundings of the container", smoke=True)
def execs(t):
    t.detach("--env=ADDED=here", "c1", *FOREVER)
    r = t.exec("c1", "sh", "-c", "echo $ADDED; echo err >&2; exit 9")
    t.equal((r.code, r.out, r.err), (9, "here\n", "err\n"), r)
    r = t.exec("c1", "pidof", "sleep")
    t.equal((r.code, r.out), (0, "1\n"), r)
    t.equal(t.exec("c1", "pwd", opts=("--cwd", "/var")).out, "/var\n")
    r = t.exec("c1", "id", "-u", opts=("--user", "1000"))
    t.equal((r.code, r.out), (0, "1000\n"), r)


@test("exec reads what is written to it, to the end")
def exec_stdin(t):
    t.detach("c1", *FOREVER)
    p = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo ready; wc -c"), stdin=subprocess.PIPE)
    p.await_output("ready")
    p.popen.stdin.write(b"x" * 1000000)
    p.popen.stdin.close()
    r = p.wait()
    t.equal((r.code, r.out), (0, "ready\n1000000\n"), r)


@test("exec -t gives a terminal", smoke="one")
def exec_terminal(t):
    t.detach("c1", *FOREVER)
    tty = t.terminal(*t.exec_args("c1", "sh", opts=("-t",)), rows=30, cols=90)
    tty.expect("# ")
    tty.command("tty; echo do''ne", r"/dev/(pts/\d+|console)\r+\ndone")
    tty.send("exit 4\n")
    t.equal(tty.wait(60), 4)
    t.equal(t.status("c1"), "RUNNING")


@test("kill of an exec ends that and nothing else")
def kill_exec(t):
    t.detach("c1", *FOREVER)
    p = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000", exec_id="victim"))
    p.await_output("up")
    t.must("tasks", "kill", "-s", "SIGKILL", "--exec-id", "victim", "c1")
    t.equal(p.wait().code, 137)
    t.equal(t.status("c1"), "RUNNING")


@test("a signal reaches the program, which may answer as it likes", smoke="one")
def handled_signal(t):
    p = t.start_run("--rm", "c1", "sh", "-c",
                    "trap 'exit 42' TERM; echo up; while :; do sleep 0.1; done")
    p.await_output("up")
    t.must("tasks", "kill", "-s", "SIGTERM", "c1")
    t.equal(p.wait().code, 42)


@test("the end of the first process ends all others of the container")
def others_end(t):
    p = t.start_run("--rm", "c1", "sh", "-c", "sleep 1000 & sleep 1000 & echo up; read x",
                    stdin=subprocess.PIPE)
    p.await_output("up")
    e = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000"))
    e.await_output("up")
    p.popen.stdin.write(b"\n")
    p.popen.stdin.close()
    p.wait()
    t.check(e.wait().code in (137, 1), "the exec ended otherwise")


@test("pause stops the clock of the program, resume starts it again", smoke="one")
def pause(t):
    p = t.start_run("c1", "sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done")
    p.await_output("3")
    t.must("tasks", "pause", "c1")
    t.equal(t.status("c1"), "PAUSED")
    time.sleep(0.5)  # what was on its way arrives
    size = os.path.getsize(p.out_path)
    time.sleep(0.5)
    t.equal(os.path.getsize(p.out_path), size, "it still writes")
    t.must("tasks", "resume", "c1")
    t.equal(t.status("c1"), "RUNNING")
    t.until(lambda: os.path.getsize(p.out_path) > size, "it writes again", 20)


@test("a paused container can be killed and removed")
def kill_paused(t):
    t.detach("c1", *FOREVER)
    t.must("tasks", "pause", "c1")
    t.ctr("tasks", "rm", "-f", "c1")
    t.until(lambda: t.status("c1") == "none", "it is gone", 30)


@test("metrics: processor time grows, memory and its limit are there", smoke=True)
def metrics(t):
    t.detach("--memory-limit=67108864", "c1", "sh", "-c", "while :; do :; done")
    first = t.metrics("c1")
    time.sleep(1)
    later = t.metrics("c1")
    t.check(used_cpu(later) > used_cpu(first) > 0, "no processor time", f"{first} {later}")
    memory = later["memory"]
    used, limit = ((memory["usage"], memory["usage_limit"]) if CGROUP_V2 else
                   (memory["usage"]["usage"], memory["usage"]["limit"]))
    t.equal(limit, 67108864, later)
    t.check(0 < used < 67108864, "no memory used, or too much", later)
    t.check(later["pids"]["current"] >= 1, "no processes", later)
    t.match("c1", t.must("tasks", "metrics", "c1").out)


def used_cpu(document):
    return document["cpu"]["usage_usec"] if CGROUP_V2 else document["cpu"]["usage"]["total"]


@test("ps lists the pid that ls shows, and that process lives on the host", smoke=True)
def ps(t):
    t.detach("c1", *FOREVER)
    pid = t.tasks()["c1"][0]
    t.match(rf"(^|\n){pid}\s", t.must("tasks", "ps", "c1").out)
    t.check(os.path.isdir(f"/proc/{pid}"), "that process is not there")


HOSTS_LIMIT = 4194304  # no host has a pid beyond it


def listed(t):
    """Of each row of ctr tasks ps: pid, exec id, name, pid in the guest. ctr prints the fields that
    it does not know by their numbers (1.6: as bytes)."""
    rows = []
    for line in t.must("tasks", "ps", "c1").out.splitlines()[1:]:
        pid, info = line.split(None, 1)
        exec_id = re.search(r'exec_id:"(\w*)"', info)
        name, guest = re.search(r'1001:"(.*?)"', info), re.search(r"1007:(\d+)", info)
        rows.append((int(pid), exec_id[1] if exec_id else "", name and name[1],
                     guest and int(guest[1])))
    return rows


@test("ps lists init, its child, an exec and its child; only init's pid can be one of the host",
      runc=False, versions=("2.1", "1.7"))
def ps_all(t):
    t.detach("c1", "sh", "-c", "sleep 1001 & wait")
    t.must(*t.exec_args("c1", "sh", "-c", "cat /dev/zero | cat >/dev/null; true",
                        opts=("--detach",), exec_id="e1"))
    anchor = int(t.tasks()["c1"][0])
    want = [("", "sh"), ("", "sleep"), ("e1", "cat"), ("e1", "cat"), ("e1", "sh")]
    t.until(lambda: sorted((e, n) for _, e, n, _ in listed(t)) == want, "five processes", 60)
    rows = listed(t)
    t.equal((rows[0][0], rows[0][2]), (anchor, "sh"), rows)
    for pid, _, _, guest in rows[1:]:
        t.equal(pid, 1000000000 + guest, rows)
        t.check(pid > HOSTS_LIMIT and not os.path.exists(f"/proc/{pid}"), "a pid of the host", rows)
    t.must("tasks", "pause", "c1")
    t.equal(len(listed(t)), 5)
    t.must("tasks", "resume", "c1")
    os.kill(t.qemu_pid(), signal.SIGSTOP)  # the guest is silent
    try:
        begin = time.monotonic()
        t.equal([r[:2] for r in listed(t)], [r[:2] for r in rows])
        t.check(time.monotonic() - begin < 30, "bounded")
    finally:
        os.kill(t.qemu_pid(), signal.SIGCONT)
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    t.await_status("c1", "STOPPED")
    t.equal([r[0] for r in listed(t)], [anchor])


@test("ps lists 300 processes, by pid and exec alone", runc=False, versions=("2.1",))
def ps_many(t):
    t.detach("c1", *FOREVER)
    t.must(*t.exec_args("c1", "sh", "-c", "for i in $(seq 300); do sleep 1000 & done; wait",
                        opts=("--detach",), exec_id="e1"))
    t.until(lambda: len(listed(t)) == 302, "302 processes", 120)
    rows = listed(t)
    t.equal({r[1:3] for r in rows[1:]}, {("e1", None)})
    t.equal(len({r[0] for r in rows}), 302)


@test("killing that process on the host kills the container")
def kill_pid(t):
    p = t.start_run("--rm", "c1", *FOREVER)
    t.await_status("c1", "RUNNING")
    kill(t.tasks()["c1"][0])
    t.equal(p.wait(30).code, 137)


@test("events come in order: create, start, the exec's, pause, exit, delete", smoke=True)
def events(t):
    e = t.events()
    t.detach("c1", *FOREVER)
    t.equal(t.exec("c1", "true").code, 0)
    t.must("tasks", "pause", "c1")
    t.must("tasks", "resume", "c1")
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    t.await_status("c1", "STOPPED")
    t.ctr("tasks", "rm", "c1")
    wanted = ["create", "start", "exec-added", "exec-started", "exit", "paused", "resumed", "exit",
              "delete"]
    if t.is_runc:
        wanted.pop()  # its shim may end before it has told
    t.until(lambda: len(t.topics(e, "c1")) >= len(wanted), "all are reported", 10)
    t.equal(t.topics(e, "c1")[:len(wanted)], wanted)


@test("out of memory: the program dies, and that is reported before its exit")
def out_of_memory(t):
    e = t.events()
    t.detach("--memory-limit=33554432", "c1", "sh", "-c", "sleep 1; tail /dev/zero; exit $?")
    t.await_status("c1", "STOPPED", 60)
    t.until(lambda: "exit" in t.topics(e, "c1"), "the exit is reported", 10)
    t.equal(t.topics(e, "c1"), ["create", "start", "oom", "exit"])


@test("removing a running task is refused and does it no harm", smoke="one")
def remove_running(t):
    t.detach("c1", *FOREVER)
    t.fails("tasks", "rm", "c1", pattern="must be stopped|running|precondition")
    t.equal(t.status("c1"), "RUNNING")
    t.equal(t.exec("c1", "echo", "well").out, "well\n")


@test("created, not started: state CREATED, then it starts")
def created_first(t):
    t.must("containers", "create", "--runtime", t.runtime, t.image, "c1", "echo", "late")
    r = t.must("tasks", "start", "c1")
    t.equal(r.out, "late\n", r)


@test("output to a file by --log-uri file://", smoke="one")
def log_file(t):
    log = os.path.join(t.work, "log")
    t.detach(f"--log-uri=file://{log}", "c1", "sh", "-c", "echo out; echo err >&2")
    t.await_status("c1", "STOPPED")
    with open(log) as f:
        words = sorted(f.read().split())
    if not t.is_runc:  # whose output may come after the exit
        t.equal(words, ["err", "out"])
        said = t.lcow("logs", "--container", "c1")
        t.check("output c1: out\n" in said.out and "output c1: err\n" in said.out, "lcow logs", said)
        t.equal(said.err, "")


@test("output to nowhere by --null-io")
def null_io(t):
    t.detach("--null-io", "c1", "sh", "-c", "seq 1 100000; exit 6")
    t.await_status("c1", "STOPPED")
    r = t.ctr("tasks", "rm", "c1")
    t.match("6", r.out + r.err + str(r.code))


@test("one id, used five times")
def same_id(t):
    for i in range(5):
        t.equal(t.run("--rm", "c1", "echo", str(i)).out, f"{i}\n")


@test("two containers side by side know nothing of each other")
def two(t):
    t.detach("c1", *FOREVER)
    t.detach("c2", "sh", "-c", "touch /mine; sleep 100000")
    t.equal(t.exec("c1", "ls", "/mine").code, 1)
    t.check(t.tasks()["c1"][0] != t.tasks()["c2"][0], "they have one pid")
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    t.await_status("c1", "STOPPED")
    t.equal(t.exec("c2", "ls", "/mine").code, 0)


@test("a client that comes late attaches and gets what was not read")
def attach(t):
    p = t.start_run("c1", "sh", "-c", "echo first; while [ ! -e /go ]; do sleep 0.1; done; "
                    "seq 1 20000; echo end; sleep 100000")
    p.await_output("first")
    p.signal(signal.SIGKILL)
    p.popen.wait()
    t.equal(t.exec("c1", "touch", "/go").code, 0)
    time.sleep(1)  # the program fills the pipe, which nobody reads
    late = t.start_ctr("tasks", "attach", "c1")
    late.await_output("end\n", 60)
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    r = late.wait(30)
    t.equal(r.out, "".join(f"{i}\n" for i in range(1, 20001)) + "end\n", r.err)


@test("the task's address on the host: its own network and pid namespaces")
def namespaces(t):
    t.detach("c1", *FOREVER)
    pid = t.tasks()["c1"][0]
    t.check(os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"),
            "it lives in the host's network")


@test("the host's cgroup of the spec holds the task's pid")
def host_cgroup(t):
    t.detach("c1", *FOREVER)
    pid = t.tasks()["c1"][0]
    with open(f"/proc/{pid}/cgroup") as f:
        t.check(re.search(rf"{t.tag}/c1$", f.read(), re.MULTILINE), "it is not in there")

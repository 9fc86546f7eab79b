"""A pod's life through the CRI."""

import glob
import json
import os
import re
import threading
import time

import archives
import cri
import terminal
from pod import FOREVER, pod_test


@pod_test("runs a container, whose output is in its log; stops; is removed")
def runs(t):
    pod = t.pod("p1")
    t.equal(pod.state, cri.READY)
    c = pod.run("c1", "sh", "-c", "echo out; echo err >&2; exit 3")
    status = c.await_exit(3)
    t.equal((c.out, c.err), ("out\n", "err\n"))
    t.equal(status.reason, "Error", status)
    t.check(0 < status.created_at < status.finished_at, "times", status)
    t.equal(len(t.shim_pids()), 1)
    pod.stop()
    t.equal(pod.state, cri.NOTREADY)
    pod.remove()
    t.equal(list(t.cri.ListPodSandbox().items), [])
    if not t.is_runc:
        t.until(lambda: not t.shim_pids(), "the shim has left", 20)
        t.equal(os.listdir(f"{t.run_root}/.journal"), [], "no journal is kept of what was well")


@pod_test("two containers talk over localhost, share IPC and host name, not their processes",
          smoke="one")
def two_containers(t):
    pod = t.pod("p1", hostname="pod-host")
    server = pod.run("server", "sh", "-c", "echo up; exec nc -l -p 8080 -e sh -c 'read x; echo "
                     "got $x; exec cat'")
    client = pod.run("client", *FOREVER)
    server.await_log("up")
    t.equal(client.sh("(echo hello; echo more) | nc 127.0.0.1 8080"), "got hello\nmore\n")
    server.await_exit(0)
    for c in (client, pod.run("third", *FOREVER)):
        t.equal(c.sh("hostname; cat /etc/hostname"), "pod-host\npod-host\n")
        t.equal(c.sh("cat /proc/1/cmdline | tr '\\0' ' '"), "sleep 100000 ")
        if c is client:
            c.sh("echo shared >/dev/shm/note")
        else:
            t.equal(c.sh("cat /dev/shm/note"), "shared\n")
            for kind in ("ipc", "net", "uts"):
                t.equal(c.sh(f"readlink /proc/self/ns/{kind}"),
                        client.sh(f"readlink /proc/self/ns/{kind}"))
    t.match(r"(?m)^\S+ /dev/shm tmpfs ", client.sh("cat /proc/mounts"))


@pod_test("shared PID namespace: one container sees the other's processes and may end them")
def shared_pids(t):
    pod = t.pod("p1", namespaces={"pid": cri.POD})
    a = pod.run("a", "sleep", "4711")
    b = pod.run("b", *FOREVER)
    t.check(a.sh("readlink /proc/self/ns/pid") == b.sh("readlink /proc/self/ns/pid"), "two")
    found = b.sh("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q '^sleep 4711' && "
                 "echo ${p#/proc/}; done; true").split()
    t.equal(len(found), 1, found)
    t.check(found[0] != "1", "a container's process is the first of its pod")
    if not t.is_shim:
        t.match("pause", b.sh("cat /proc/1/cmdline"))
    b.sh(f"kill -9 {found[0]}")
    a.await_exit(137)
    t.equal(b.state, cri.RUNNING)


@pod_test("a pod's own container has no files and no crun in the VM, and no rights", runc=False,
          smoke=True)
def no_pause_image(t):
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER)

    def vm(script):
        r = t.lcow("exec", "--vm", c.id, "--", "sh", "-c", script)
        t.equal(r.code, 0, r)
        return r.out

    t.equal(len(vm("ls /run/crun").split()), 1, "of the other one")
    t.equal(vm("grep -c ' overlay ' /proc/mounts"), "1\n")
    pid = vm("grep -lx pause /proc/[0-9]*/comm").split("/")[2]
    status = vm(f"cat /proc/{pid}/status")
    for line in (r"CapBnd:\s0+$", r"CapEff:\s0+$", r"NoNewPrivs:\s1$",
                 r"Seccomp:\s2$", r"NSpid:\s\d+\s1$"):
        t.match(f"(?m)^{line}", status)
    t.equal(vm(f"ls /proc/{pid}/root/"), "")
    t.note(re.search(r"VmRSS.*", status).group())
    if t.is_shim:
        return
    r = t.lcow("exec", pod.id, "--", "true")
    t.check(r.code != 0, "an exec ran in it", r)
    t.match("not found", r.err)
    own = [s for s in json.loads(t.lcow("inspect", c.id).out)["containers"] if s["id"] == pod.id]
    t.equal([(s["rootfs"], s["shares"], s["state"]) for s in own], [("read-only", [], "running")])


@pod_test("a debug container joins the PID namespace of the container it is for")
def target_pids(t):
    pod = t.pod("p1")
    app = pod.run("app", "sleep", "4711")
    other = pod.run("other", *FOREVER)
    debug = pod.run("debug", *FOREVER, linux={"security_context": {"namespace_options": {
        "pid": cri.TARGET, "target_id": app.id}}})
    t.match("sleep.4711", debug.sh("cat /proc/1/cmdline"))
    t.check(debug.sh("readlink /proc/self/ns/pid") != other.sh("readlink /proc/self/ns/pid"),
            "it sees another container")


@pod_test("exec sync: output, errors, exit code, timeout; the container keeps running", smoke=True)
def exec_sync(t):
    c = t.pod("p1").run("c1", *FOREVER)
    r = c.exec("sh", "-c", "echo out; echo err >&2; exit 7")
    t.equal((r.code, r.out, r.err), (7, "out\n", "err\n"))
    r = c.exec("sh", "-c", "seq 1 20000; exit 0")
    t.equal(r.out, "".join(f"{i}\n" for i in range(1, 20001)))
    begin = time.monotonic()
    t.fails(lambda: c.exec("sleep", "1000", timeout=2), "(?i)deadline|timeout",
            "DEADLINE_EXCEEDED", "UNKNOWN")
    t.check(time.monotonic() - begin < 60, "the timeout came too late")
    t.until(lambda: "sleep 1000 " not in c.sh(
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"), "its process has gone", 30)
    e = t.fails(lambda: c.exec("/no/such/program"), "no such file|not found")
    t.check("no/such/program" in e.message, "it does not say which", e.message)
    t.equal(c.state, cri.RUNNING)


@pod_test("exec probes leave no error in the log, though containerd kills each again after its end",
          runc=False)
def quiet_probes(t):
    c = t.pod("p1").run("c1", *FOREVER)
    for code in (0, 1, 0):
        t.equal(c.exec("sh", "-c", f"exit {code}").code, code)
    seen = t.until(lambda: re.search(r" operation=Kill .* reason=NOT_FOUND", t.containerd.log),
                   "containerd killed one again", 20)
    t.note(seen.group())
    failed = re.findall(r" operation=\w+ .* code=.*", t.containerd.log)  # only an error has a code
    t.equal(failed, [])


def tool_shows(t, pod, c):
    """`lcow logs` has what a container wrote among what else happened, in the order of time. What
    follows it, on a terminal."""
    if t.is_runc:
        return None
    lines = [json.loads(line) for line in t.lcow("logs", "--json", pod.id).out.splitlines()]
    times = [line.get("at") or line["time"] for line in lines]
    t.equal(times, sorted(times))
    mine = [line for line in lines if line.get("source") == "output"]
    t.equal([line["text"] for line in mine], ["x" * 40000] + [str(i) for i in range(1, 5001)])
    t.equal({(line["cid"], line["container"], line["stream"]) for line in mine},
            {(c.id, "c1", "stdout")})
    t.check(any("msg" in line and "source" not in line for line in lines), "the shim's")
    only = t.lcow("logs", "-n", "1", "--container", c.id)
    t.match(r"^\d\d:\d\d:\d\d\.\d{3} output c1: 5000\n$", only.out)
    for path in glob.glob(f"{t.run_root}/.journal/*"):  # grown too long: only the shim knows now
        os.truncate(path, 0)
    t.equal(t.lcow("logs", "-n", "1", "--container", c.id).out, only.out)
    live = terminal.Terminal(t, "logs", "-f", "--container", pod.id)
    live.expect(r"\x1b\[34moutput\x1b\[0m c1: 5000\r\n")
    return live


@pod_test("logs: long lines in parts, many lines, both streams, rotation", both=True)
def logs(t):
    pod = t.pod("p1")
    c = pod.run("c1", "sh", "-c", "head -c 40000 /dev/zero | tr '\\0' x; echo; seq 1 5000; "
                "printf 'no end'; while [ ! -e /go ]; do sleep 0.1; done; echo; echo after >&2")
    c.await_log("\n5000\n")
    wanted = "x" * 40000 + "\n" + "".join(f"{i}\n" for i in range(1, 5001))
    t.equal(c.out[:len(wanted)], wanted)
    for when, stream, tag, _ in c.lines():
        t.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)$", when)
        t.check(stream in ("stdout", "stderr") and tag in "PF", "what line is that", when)
    live = tool_shows(t, pod, c)
    os.rename(c.log_path, c.log_path + ".1")
    t.cri.ReopenContainerLog(container_id=c.id)
    c.sh("touch /go")
    c.await_exit(0)
    t.equal(c.err, "after\n")
    t.check("no end" not in c.out, "the part that was in the old log is in the new one", c.out)
    if live:
        live.expect(r"\x1b\[34moutput\x1b\[0m c1: after\r\n")
        live.send("\x03")
        live.wait(60)


@pod_test("stop: the program's own end within the grace period, a kill behind it", smoke="one")
def stop_grace(t):
    pod = t.pod("p1")
    kind = pod.run("kind", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; "
                   "while :; do sleep 0.1; done")
    deaf = pod.run("deaf", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    kind.await_log("up")
    deaf.await_log("up")
    kind.stop(timeout=60)
    t.equal((kind.await_exit(5).reason, kind.out), ("Error", "up\nbye\n"))
    begin = time.monotonic()
    deaf.stop(timeout=2)
    t.check(time.monotonic() - begin >= 2, "it did not wait")
    t.equal(deaf.await_exit(137).exit_code, 137)
    kind.remove()
    deaf.remove()
    t.equal(list(t.cri.ListContainers().containers), [])


@pod_test("the image's stop signal is the one that is sent")
def stop_signal(t):
    t.load("usr1")
    c = t.pod("p1").run("c1", "sh", "-c", "trap 'exit 11' USR1; trap '' TERM; echo up; "
                        "while :; do sleep 0.1; done", image="usr1")
    c.await_log("up")
    c.stop(timeout=60)
    c.await_exit(11)


@pod_test("a container that has ended is made again under its name; an init container before it")
def again(t):
    pod = t.pod("p1")
    first = pod.run("init", "sh", "-c", "exit 0")
    t.equal(first.await_exit(0).reason, "Completed")
    for attempt in range(3):
        c = pod.create("c1", "sh", "-c", f"exit {attempt}",
                       metadata={"name": "c1", "attempt": attempt})
        t.equal(c.state, cri.CREATED)
        c.start().await_exit(attempt)
        c.remove()
    t.fails(lambda: pod.run("bad", "/no/such/program"), "no such file|not found")
    t.explains(pod.id, "COMMAND_NOT_FOUND")
    t.equal(pod.state, cri.READY)
    t.equal(sorted(c.metadata.name for c in t.cri.ListContainers(filter={
        "state": {"state": cri.EXITED}}).containers), ["bad", "init"])


@pod_test("two pods of one name's attempts, a third with a name in use, all side by side")
def many_names(t):
    one, two = t.pod("p1"), t.pod("p2")
    t.fails(lambda: t.pod("p1"), "(?i)reserved|already exists")
    a, b = one.run("c1", *FOREVER), two.run("c1", *FOREVER)
    a.sh("echo a >/mine")
    t.equal(b.exec("cat", "/mine").code, 1)
    one.stop()
    one.remove()
    t.equal(b.sh("echo well"), "well\n")


@pod_test("removing a pod that was not stopped, with a container that runs")
def remove_running(t):
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER)
    pod.remove()
    t.fails(c.status, "(?i)not found", "NOT_FOUND")
    t.fails(pod.status, "(?i)not found", "NOT_FOUND")
    if t.version != "1.6":  # which refuses to stop what it does not know
        pod.stop()          # both are repeated by the kubelet
    pod.remove()


@pod_test("out of memory: OOMKilled, and the pod keeps running", smoke=True)
def oom_killed(t):
    pod = t.pod("p1")
    c = pod.run("c1", "sh", "-c", "tail /dev/zero; exit 0", linux={
        "resources": {"memory_limit_in_bytes": 32 << 20}})
    # The shell lives on when its child is killed; the kubelet counts any such death.
    c.await_exit()
    victim = pod.run("c2", "tail", "/dev/zero", linux={
        "resources": {"memory_limit_in_bytes": 32 << 20}})
    status = victim.await_exit(137)
    t.until(lambda: victim.status().reason == "OOMKilled", f"reason is OOMKilled: {status}", 10)
    t.explains(pod.id, "CONTAINER_OOM")
    t.equal(pod.state, cri.READY)
    t.equal(pod.run("c3", "echo", "well").await_exit(0).reason, "Completed")


@pod_test("image of the pod's containers: entrypoint, environment, working directory, arguments")
def image_config(t):
    pod = t.pod("p1")
    t.load("users")
    c = pod.create("c1", "sh", "-c", "id -u; pwd; echo $FROM_IMAGE $ADDED $0 $1", image="users",
                   args=["zero", "one"], envs=[{"key": "ADDED", "value": b"here"}])
    c.start().await_exit(0)
    t.equal(c.out, "1000\n/home/worker\nyes here zero one\n")
    c = pod.run("c2", "pwd", image="users", working_dir="/tmp")
    c.await_exit(0)
    t.equal(c.out, "/tmp\n")
    t.equal(archives.name("users"), c.status().image.image)


@pod_test("events: what the kubelet would hear of a container's life, in order",
          versions=("1.7", "2.1"))
def events(t):
    heard = []

    def listen():
        try:
            for event in t.cri.stream("GetContainerEvents", 90):
                heard.append((event.container_id, event.container_event_type))
        except cri.Error:
            pass  # the time is up, or containerd has gone
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()

    def of(container_id):
        return [kind for who, kind in heard if who == container_id]

    def end(what):
        what.stop()
        # containerd reports this beside the call that stops it, which may return before
        t.until(lambda: 2 in of(what.id), "the end is reported")
        what.remove()
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER)
    end(c)
    end(pod)
    t.until(lambda: len(of(c.id)) == 4 and len(of(pod.id)) == 4, f"all are reported: {heard}", 20)
    t.equal(of(c.id), [0, 1, 2, 3], "created, started, stopped, deleted")
    t.equal(of(pod.id), [0, 1, 2, 3], "the pod's")
    t.containerd.stop()
    thread.join(20)
    t.check(not thread.is_alive(), "the listener still listens")

"""lcow's questions to sandboxes that run, hang, or have failed: logs, events, explain, timeline,
console, tasks, top, metrics, overhead, report, cp."""

import glob
import json
import os
import re
import signal
import socket
import tarfile

import packages
import svgcheck
import terminal
from e2e import test
from harness import has_kvm, without_kvm

FOREVER = ("sleep", "100000")
CANARY = "canary-7f3a91"


def lines_of(t, *args):
    r = t.lcow("logs", "--json", *args)
    t.equal(r.code, 0, r)
    return [json.loads(line) for line in r.out.splitlines()]


def explain(t, word):
    r = t.lcow("explain", word)
    t.equal(r.code, 0, r)
    t.check(all(len(line) <= 80 for line in r.out.splitlines()), "within 80 columns", r)
    return r.out, json.loads(t.lcow("explain", "--json", word).out)


@test("lcow logs: shim, agent and kernel in the order of time; no secret is in them", runc=False)
def logs(t):
    t.detach(f"--env=TOKEN={CANARY}", f"--annotation=io.example/secret={CANARY}", "c1", *FOREVER)
    t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "echo '<4>a word of the kernel' >/dev/kmsg")
    t.until(lambda: "a word of the kernel" in t.lcow("logs", "--kernel", "c1").out,
            "the kernel's word")
    everything = lines_of(t, "c1")
    times = [line.get("at") or line["time"] for line in everything]
    t.equal(times, sorted(times))
    t.check(any(not {"source", "event"} & line.keys() for line in everything), "the shim's", everything)
    t.check(any(line.get("event") == "start" for line in everything), "events", everything)
    t.check(any(line.get("source") == "guest" for line in everything), "the agent's", everything)
    t.check(CANARY not in json.dumps(everything), "no secret in the journal")
    t.check(CANARY not in t.containerd.log, "no secret in containerd's log")

    kernel = t.lcow("logs", "--kernel", "c1").out
    t.match(r"(?m)^\d\d:\d\d:\d\d\.\d{3} kernel warn  a word of the kernel", kernel)
    t.check(all(" kernel " in line for line in kernel.splitlines()), "only the kernel's", kernel)
    t.equal(len(t.lcow("logs", "-n", "2", "c1").out.splitlines()), 2)
    r = t.lcow("logs", "--container", "c1")
    t.words("container created", r.out)
    t.match("no copy of the output of c1: it was written to its client", r.err)
    r = t.lcow("logs", "c2")
    t.equal(r.code, 1)
    t.words(r'there is no log of a sandbox "c2", but of c1', " ".join(r.err.split()))


@test("lcow events -f reports sandboxes as they start and stop", runc=False)
def events(t):
    follower = t.start("events", "-f", "--json")
    t.until(lambda: any("inotify" in os.readlink(f) for f in
                        glob.glob(f"/proc/{follower.pid}/fd/*")), "it watches")
    t.run("--rm", "c1", "sh", "-c", "exit 3")
    follower.await_output('"delete"')
    follower.signal(signal.SIGTERM)
    told = [json.loads(line) for line in follower.wait(20).out.splitlines()]
    t.equal([e["event"] for e in told], ["create", "start", "exit", "delete"])
    t.equal([e["status"] for e in told if e["event"] == "exit"], [3])


@test("lcow explain: nothing is wrong; QEMU or the shim is stopped; QEMU was killed", runc=False)
def explain_life(t):
    t.detach("c1", *FOREVER)
    text, doc = explain(t, "c1")
    t.words(rf"shim {t.shim_pid()}, VM Running \(stage negotiated\)", text)
    t.words("No error is recorded", text)
    t.equal((doc["shim_alive"], doc["failure"], doc["now"]), (True, None, None))
    t.check(doc["ledger_records"] > 3, "things are on record", doc)

    qemu, shim = t.qemu_pid(), t.shim_pid()
    os.kill(qemu, signal.SIGSTOP)
    t.until(lambda: re.search(rf"kill -CONT {qemu}\b", " ".join(explain(t, "c1")[0].split())),
            "explain says how QEMU is resumed")
    t.equal(t.lcow("console", "c1").code, 0)
    t.equal(t.lcow("logs", "c1").code, 0)
    os.kill(qemu, signal.SIGCONT)
    os.kill(shim, signal.SIGSTOP)
    try:
        t.match(rf"kill -CONT {shim}\b", " ".join(explain(t, "c1")[0].split()))
        t.equal(t.lcow("logs", "c1").code, 0)
        r = t.lcow("console", "c1", seconds=30)
        t.equal(r.code, 1)
    finally:
        os.kill(shim, signal.SIGCONT)

    os.kill(qemu, signal.SIGKILL)
    t.until(lambda: t.tasks()["c1"][1] == "STOPPED", "the exit")
    t.until(lambda: explain(t, "c1")[1]["failure"], "it knows of the failure")
    t.match("signal 9", t.explains("c1", "QEMU_KILLED")["text"])


@test("lcow explain: the guest's kernel panicked; its dump, and that of SIGUSR1", runc=False)
def explain_panic(t):
    t.detach("c1", *FOREVER)
    os.kill(t.shim_pid(), signal.SIGUSR1)
    t.until(lambda: " hotplug " in t.lcow("logs", "--shim", "c1").out, "the guest's part")
    fibers = r"warn  .* state=.*vm.reap c1"
    t.match(fibers, t.lcow("logs", "--shim", "c1").out)
    t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "echo c >/proc/sysrq-trigger")
    t.until(lambda: t.tasks()["c1"][1] == "STOPPED", "the exit")
    t.until(lambda: explain(t, "c1")[1]["failure"], "it knows of the failure")
    t.explains("c1", "GUEST_PANIC")
    t.equal(len(re.findall(fibers, t.lcow("logs", "--shim", "c1").out)), 2, "a dump of each")


@test("lcow explain: the guest reset its VM: no panic, nothing on the console to look at",
      runc=False)
def explain_reset(t):
    t.detach("c1", *FOREVER)
    t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "echo b >/proc/sysrq-trigger")
    t.until(lambda: t.tasks()["c1"][1] == "STOPPED", "the exit")
    t.until(lambda: explain(t, "c1")[1]["failure"], "it knows of the failure")
    failure = t.explains("c1", "GUEST_RESET")
    t.check("console" not in str(failure) and "--kernel" not in str(failure), "it points nowhere",
            failure)


@test("lcow explain: a sandbox that failed and is gone: no emulation allowed", runc=False)
def explain_accel(t):
    without_kvm(t)
    t.config(allow_emulation=False)
    t.fails(*t.run_args("--rm", "c1", "true"))
    t.explains("c1", "NO_KVM")


def check_svg(t, text):
    t.equal(svgcheck.troubles(text), [], "the picture")


@test("lcow timeline: text, picture, trace, and two starts compared", runc=False)
def timeline(t):
    t.detach("c1", *FOREVER)
    t.detach("c2", *FOREVER)
    text = t.lcow("timeline", "c1").out
    t.match("start of c1", text)
    t.check(all(len(line) <= 80 for line in text.splitlines()), "within 80 columns", text)
    check_svg(t, t.lcow("timeline", "-o", "svg", "c1").out)
    trace = json.loads(t.lcow("timeline", "--json", "c1").out)["traceEvents"]
    t.check({"create container", "start container", "negotiated", "spawn (jail)"} <=
            {e["name"] for e in trace}, "steps of all kinds", trace)
    t.check(all(e["ts"] >= 0 and e.get("dur", 0) >= 0 for e in trace if e["ph"] != "M"), "times")
    t.match(r"(?m)^host +create container +\d+\.\d +\d+\.\d +[+-]",
            t.lcow("timeline", "--compare", "c1", "c2").out)
    t.equal(t.lcow("timeline", "-o", "gif", "c1").code, 2)
    t.equal(t.lcow("timeline", "--compare", "c1").code, 2)


def to_nobody(t, *words):
    """Its reader has gone before it begins."""
    r, w = os.pipe()
    os.close(r)
    p = t.start(*words, stdout=w)
    os.close(w)
    return p


@test("lcow top: once, as JSON, live on a terminal, and on one of 20 by 5", runc=False)
def top(t):
    t.equal(json.loads(t.lcow("top", "--json").out), [])
    t.words("no sandbox is running", t.lcow("top", "--once").out)
    t.detach("c1", *FOREVER)
    row = t.until(lambda: [r for r in json.loads(t.lcow("top", "--json").out)
                           if "guest_memory_bytes" in r], "the guest answers in time")[0]
    t.check(row["vmm_pss_bytes"] > 10 << 20 and row["shim_pss_bytes"] > 100 << 10, "memory", row)
    t.check(0 < row["guest_memory_bytes"] < row["vmm_pss_bytes"], "the guest's", row)
    once = t.lcow("top", "--once").out
    t.match(r"(?m)/c1 +Running +\d+\.\d +\d+\.\d +\d+\.\d +\d+%", once)
    t.check(all(len(line) <= 80 for line in once.splitlines()), "within 80 columns", once)
    t.equal(t.lcow("top").code, 2)  # no terminal

    live = terminal.Terminal(t, "top", "--delay", "1")
    live.expect("q quits")
    live.expect("/c1 +Running")
    live.resize(5, 20)
    live.expect(r"\x1b\[Hlcow top - q quits\x1b\[K\r\nSANDBOX {13}\x1b")
    live.send("q")
    live.expect(r"\x1b\[\?1049l")
    t.equal(live.wait(), 0)
    for signo in (signal.SIGTERM, signal.SIGHUP):
        live = terminal.Terminal(t, "top")
        live.expect("q quits")
        os.kill(live.pid, signo)
        live.expect(r"\x1b\[\?25h\x1b\[\?1049l")
        t.equal(live.wait(), 0)

    ends = [to_nobody(t, *words) for words in (
        ("ps",), ("inspect", "c1"), ("stacks", "c1"), ("explain", "c1"), ("logs", "c1"),
        ("logs", "-f", "c1"), ("events", "-f"), ("metrics",), ("top", "--once"), ("--help",))]
    for p in ends:
        r = p.wait(60)
        t.check(r.code in (0, 1, -signal.SIGPIPE) and not r.err, "a closed pipe", r)

    os.kill(t.qemu_pid(), signal.SIGSTOP)
    try:
        row = json.loads(t.lcow("top", "--json", seconds=60).out)[0]
        t.check("guest_memory_bytes" not in row and row["vmm_pss_bytes"], "the host's side", row)
    finally:
        os.kill(t.qemu_pid(), signal.SIGCONT)


def listens(path):
    """A socket has its name a moment before somebody listens on it."""
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(path) == 0


def scrape(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30)
        s.connect(path)
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while part := s.recv(65536):
            data += part
    return data.decode()


@test("lcow metrics: printed, and served on a socket of its own", runc=False)
def metrics(t):
    t.detach("c1", *FOREVER)

    def look():
        said = t.lcow("metrics").out
        return re.search(r"(?m)^lcow_guest_up\{.* 1$", said) and said
    text = t.until(look, "the guest answers in time")
    for name, value in (("lcow_shim_up", "1"), ("lcow_vm_running", "1"), ("lcow_containers", "1"),
                        ("lcow_vm_emulated", "0" if has_kvm() else "1"), ("lcow_guest_up", "1"),
                        ("lcow_stdio_lost_bytes_total", "0")):
        t.match(rf'(?m)^{name}\{{namespace="{t.tag}",sandbox="c1"\}} {value}$', text)
    for line in text.splitlines():
        t.match(r'^(# (HELP|TYPE) \w+ .+|\w+\{namespace="[^"]+",sandbox="[^"]+"(,reason="\w+")?\} [-+.e\d]+)$', line)
    t.equal(json.loads(t.lcow("metrics", "--json").out)[0]["lcow_containers"], 1)
    with open(os.path.join(packages.TOP, "docs/metrics.md")) as page:
        t.equal(re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", page.read()),
                re.findall(r"(?m)^# TYPE (\w+) (\w+)$", text))

    path = os.path.join(t.work, "metrics.sock")
    server = t.start("metrics", "--listen", f"unix:{path}")
    t.until(lambda: listens(path), "it listens")
    t.equal(os.stat(path).st_mode & 0o777, 0o600)
    t.match(r"(?s)^HTTP/1.1 200 OK\r\n.*lcow_vm_running\{", scrape(path))
    t.match("lcow_vm_running", scrape(path))
    server.signal(signal.SIGTERM)
    t.equal(server.wait(20).code, 0)
    t.check(not os.path.exists(path), "the socket is gone")
    t.equal(t.lcow("metrics", "--listen", "tcp:9").code, 2)


@test("lcow overhead: measured, ready to paste; refused where nothing runs", runc=False)
def overhead(t):
    t.equal(t.lcow("overhead").code, 1)
    t.detach("c1", *FOREVER)
    r = t.lcow("overhead")
    t.match(r'(?m)^overhead:\n  podFixed:\n    memory: "\d+Mi"\n    cpu: "\d+m"$', r.out)
    doc = json.loads(t.lcow("overhead", "--json").out)
    t.check(16 < doc["pod_fixed_memory_mib"] < 512, "a sane figure", doc)


@test("lcow report: an archive with all parts and no secret", runc=False)
def report(t):
    t.detach(f"--env=TOKEN={CANARY}", f"--annotation=io.example/secret={CANARY}", "c1", *FOREVER)
    r = t.lcow("report", "-o", os.path.join(t.work, "r.tar"), "c1")
    t.equal(r.code, 0, r)
    parts = {}
    with tarfile.open(os.path.join(t.work, "r.tar")) as tar:
        for member in tar:
            parts[os.path.basename(member.name)] = tar.extractfile(member).read().decode()
    t.equal(sorted(parts), ["console.txt", "explain.txt", "journal.jsonl", "ledger.txt",
                            "stacks.txt", "state.json", "timeline.svg", "versions.txt"])
    t.check(not any(text.startswith("missing: ") for text in parts.values()), "all parts", parts)
    t.check(CANARY not in json.dumps(parts), "no secret")
    t.equal(json.loads(parts["state.json"])["sandbox"], "c1")
    check_svg(t, parts["timeline.svg"])
    t.equal(t.lcow("report", "nobody").code, 1)


@test("lcow cp: files and trees into and out of a container that has no tar", runc=False)
def copy(t):
    t.config(rootfs="scratch")  # on a share no device can be made
    t.detach("c1", "sh", "-c", "mkdir -p /data/deep; ln -s /data /link; echo inside >/data/f;"
             " sleep 100000")
    t.until(lambda: t.exec("c1", "test", "-f", "/data/f").code == 0, "the files are there")
    out = os.path.join(t.work, "out")
    r = t.lcow("cp", "c1:/link/f", out)  # an absolute symlink: of the container, not of the VM
    t.equal((r.code, r.err), (0, ""), r)
    t.equal(open(out).read(), "inside\n")
    t.equal(t.lcow("cp", "c1:/data", t.work).code, 0)
    t.equal(sorted(os.listdir(os.path.join(t.work, "data"))), ["deep", "f"])

    t.write("big", "".join(f"{i}\n" for i in range(200000)))
    t.equal(t.lcow("cp", os.path.join(t.work, "big"), "c1:/data/deep").code, 0)
    t.equal(t.exec("c1", "wc", "-l", "/data/deep/big").out.split()[0], "200000")
    t.equal(t.lcow("cp", os.path.join(t.work, "big"), "c1:/data/other").code, 0)
    t.equal(t.exec("c1", "ls", "-A", "/data").out.split(), ["deep", "f", "other"])

    # What a hostile guest would like to have on the host.
    t.equal(t.exec("c1", "sh", "-c", "mkdir /bad && mknod /bad/disk b 7 0 && echo >/data/suid &&"
                   " chmod 6755 /data/suid").code, 0)
    t.equal(t.lcow("cp", "c1:/data/suid", t.work).code, 0)
    t.equal(os.stat(os.path.join(t.work, "suid")).st_mode & 0o6000, 0)
    r = t.lcow("cp", "c1:/bad", t.work)
    t.equal(r.code, 1)
    t.words("contains a device; lcow does not copy devices", " ".join(r.err.split()))
    t.check(not os.path.exists(os.path.join(t.work, "bad")), "nothing of it")

    # A FIFO that nobody writes to, where tar looks up owners.
    t.detach("c2", "sh", "-c", "rm -f /etc/passwd; mkfifo /etc/passwd; sleep 100000")

    def refused():
        r = t.lcow("cp", "c2:/etc", t.work + "/c2", seconds=20)
        return r.code == 1 and re.search("/etc/passwd of the container is not a regular file",
                                         " ".join(r.err.split()))
    t.until(refused, "tar is not started", 20)
    t.equal(t.lcow("cp", "c1:/no/such", t.work).code, 1)
    t.equal(t.lcow("cp", "c1:relative", t.work).code, 2)
    t.equal(t.lcow("cp", "a", "b").code, 2)
    t.equal([n for n in os.listdir(t.work) if n.startswith(".lcow-cp")], [])


@test("lcow tasks and console", runc=False)
def tasks_console(t):
    t.detach("c1", *FOREVER)
    x = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000", exec_id="looker"))
    x.await_output("up")
    t.equal(t.lcow("tasks", "c1").out, "c1\n  +looker  RUNNING\n")
    t.equal(json.loads(t.lcow("tasks", "--json", "c1").out),
            [{"id": "c1", "execs": [{"id": "looker", "state": "RUNNING"}]}])
    t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "echo hello from inside >/dev/console")
    t.until(lambda: "hello from inside" in t.lcow("console", "c1").out, "the console's line")

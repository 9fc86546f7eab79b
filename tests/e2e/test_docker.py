"""Docker with the runtime io.containerd.lcow.v2: what docs/docker.md says."""

import json
import os
import re
import urllib.request

import archives
import docker
import e2e

IMAGE = archives.name("static")
FOREVER = ("sleep", "100000")
WRITE = "echo written >/root/f; chown 1000:34 /root/f; rm /etc/group; mkdir /var/new"
LOOK = "cat /root/f; stat -c '%u %g' /root/f; ls -d /etc/group /var/new 2>/dev/null; true"
SEEN = "written\n1000 34\n/var/new"
# As docker diff has them; directories that hold a change are changed, too.
DIFF = {"C /root", "A /root/f", "C /etc", "D /etc/group", "C /var", "A /var/new"}


def background(d, name, *opts, command=FOREVER, image=IMAGE):
    return d("run", "-d", "--name", name, *opts, image, *command)


def sh(d, name, script):
    return d("exec", name, "sh", "-c", script)


def address(d, name, network="bridge"):
    return json.loads(d.inspect(name, "{{json .NetworkSettings.Networks}}"))[network]["IPAddress"]


@docker.test("docker run: output, exit code, user, environment, limits, --rm")
def run(t, d):
    t.equal(d("run", "--rm", "-u", "1000", "-e", "A=B", "-w", "/tmp", "-h", "box", "-m", "64m",
              "--cpus", "1", "--pids-limit", "64", IMAGE, "sh", "-c",
              "id -u; echo $A; pwd; hostname; cd /sys/fs/cgroup; "
              "cat memory.max memory/memory.limit_in_bytes 2>/dev/null; true"),
            f"1000\nB\n/tmp\nbox\n{64 << 20}")
    t.match("docker-init", d("run", "--rm", "--init", IMAGE, "cat", "/proc/1/cmdline"))
    r = d.command("run", "-i", "--name", "c1", IMAGE, "sh", "-c", "cat; echo err >&2; exit 7",
                  stdin=b"from outside\n")
    t.equal((r.code, r.out, r.err), (7, "from outside\n", "err\n"))
    t.equal(d.inspect("c1", "{{.State.Status}} {{.State.ExitCode}}"), "exited 7")
    t.equal(d("ps", "-a", "--format", "{{.Names}}"), "c1")


@docker.test("docker keeps what a container wrote over stop, start, restart and its VM's death")
def kept(t, d):
    background(d, "c1")
    sh(d, "c1", WRITE)
    d("stop", "-t", "1", "c1")
    d("start", "c1")
    t.equal(sh(d, "c1", LOOK), SEEN)
    sh(d, "c1", "echo more >>/root/f")
    d("restart", "-t", "1", "c1")
    t.equal(sh(d, "c1", LOOK), SEEN.replace("written\n", "written\nmore\n"))
    if not t.is_runc:
        sh(d, "c1", "echo last >>/root/f")
        e2e.kill(t.qemu_pid())
        t.until(lambda: d.inspect("c1", "{{.State.Status}}") == "exited", "docker sees the end")
        t.equal(d.inspect("c1", "{{.State.ExitCode}}"), "137")
        d("start", "c1")
        t.equal(sh(d, "c1", "tail -n 1 /root/f"), "last")


@docker.test("docker cp, diff and commit see what a container wrote, running and stopped")
def copies(t, d):
    background(d, "c1")
    sh(d, "c1", WRITE)
    t.write("in", "from the host\n")
    for state in ("running", "exited"):
        t.equal(d.inspect("c1", "{{.State.Status}}"), state)
        d("cp", "c1:/root/f", os.path.join(t.work, state))
        with open(os.path.join(t.work, state)) as f:
            t.equal(f.read(), "written\n")
        d("cp", os.path.join(t.work, "in"), f"c1:/root/{state}")
        if state == "running":
            t.equal(sh(d, "c1", "cat /root/running"), "from the host")
        seen = set(d("diff", "c1").splitlines())
        t.check(DIFF | {f"A /root/{state}"} <= seen, "docker diff", sorted(seen))
        d("commit", "c1", f"committed:{state}")
        t.equal(d("run", "--rm", f"committed:{state}", "sh", "-c", LOOK), SEEN)
        d("stop", "-t", "0", "c1")
    d("start", "c1")
    t.equal(sh(d, "c1", "cat /root/exited"), "from the host")
    d("export", "-o", os.path.join(t.work, "export.tar"), "c1")
    d("import", os.path.join(t.work, "export.tar"), "exported:1")
    t.equal(d("run", "--rm", "exported:1", "/bin/sh", "-c", LOOK), SEEN)


@docker.test("docker exec, logs, attach, top, stats, pause, wait and kill")
def looks(t, d):
    background(d, "c1", "-i", command=("sh", "-c", "echo begun; read a; echo $a; exit 5"))
    r = d.command("exec", "-i", "-u", "1000", "c1", "sh", "-c", "cat; id -u; exit 3", stdin=b"in\n")
    t.equal((r.code, r.out), (3, "in\n1000\n"), r)
    terminal = d.terminal("exec", "-it", "c1", "sh")
    terminal.send("stty size; echo $((6*7)); exit 4\n")
    terminal.expect("24 80.*42")
    t.equal(terminal.wait(), 4)
    d("exec", "-d", "c1", "sh", "-c", "sleep 1000; true")
    t.match("(?m)^UID .*PID", d("top", "c1"))
    if not t.is_runc:  # the host's ps knows one process of it, and shows no others
        for how in ((), ("-eo", "pid,comm"), ("axf",)):
            lines = d("top", "c1", *how).splitlines()
            t.equal((len(lines), "lcow-anchor" in lines[-1]), (2, True), lines)
        exec_id = r'exec_id:"\w{64}".*1001:"sleep"'
        t.until(lambda: re.search(exec_id, t.must("tasks", "ps", d.inspect("c1", "{{.Id}}")).out),
                "ctr shows what docker top cannot", 60)
    stats = json.loads(d("stats", "--no-stream", "--format", "json", "c1"))
    t.match(r"^\d", stats["MemUsage"])
    t.check(stats["PIDs"] != "0", "processes are counted", stats)
    d("pause", "c1")
    t.equal(d.inspect("c1", "{{.State.Status}}"), "paused")
    d("unpause", "c1")
    d.command("attach", "--sig-proxy=false", "c1", stdin=b"through\n")
    t.equal(d("wait", "c1"), "5")
    t.equal(d("logs", "c1"), "begun\nthrough")
    background(d, "c2")
    d("kill", "c2")
    t.equal(d("wait", "c2"), "137")
    d("rm", "c1", "c2")


@docker.test("docker restarts what has failed, and finds its containers again")
def restarts(t, d):
    background(d, "c1", "--restart", "on-failure:2",
               command=("sh", "-c", "echo x >>/starts; wc -l </starts; exit 9"))
    t.until(lambda: d.inspect("c1", "{{.RestartCount}} {{.State.Status}}") == "2 exited",
            "both restarts", 120)
    t.equal(d("logs", "c1"), "1\n2\n3")
    background(d, "c2")
    sh(d, "c2", "echo x >/f")
    d.restart()
    t.until(lambda: d.inspect("c2", "{{.State.Status}}") == "running", "c2 still runs")
    t.equal(sh(d, "c2", "cat /f"), "x")
    d("stop", "-t", "0", "c2")


@docker.test("docker volumes outlive their containers")
def volumes(t, d):
    host = os.path.join(t.work, "bound")
    os.mkdir(host)
    d("volume", "create", "v1")
    mounts = ("-v", "v1:/v1", "-v", f"{host}:/bound", "-v", "v2:/etc")
    background(d, "c1", *mounts, "--tmpfs", "/t", "-v", f"{host}:/ro:ro")
    sh(d, "c1", "echo a >/v1/f; echo b >/bound/f; echo c >/etc/f; echo d >/t/f")
    t.match("Read-only", d.fails("exec", "c1", "touch", "/ro/f").err)
    d("rm", "-f", "c1")
    with open(os.path.join(host, "f")) as f:
        t.equal(f.read(), "b\n")
    # A new volume begins with what the image has there.
    t.equal(d("run", "--rm", *mounts, IMAGE, "sh", "-c",
              "cat /v1/f /bound/f /etc/f; grep -c worker /etc/passwd"), "a\nb\nc\n1")


@docker.test("docker networks: containers reach each other, published ports the host's clients")
def networks(t, d):
    d("network", "create", "net1")
    background(d, "web", "-p", "8080:80",
               command=("sh", "-c", "echo page >/root/page; exec httpd -f -h /root"))
    background(d, "user", "--link", "web:linked", "--add-host", "named:192.0.2.7")
    get = "wget -qO- http://{}/page"
    t.equal(t.until(lambda: d.command("exec", "user", "sh", "-c",
                                      get.format(address(d, "web"))).out, "it answers"), "page\n")
    t.equal(sh(d, "user", get.format("linked")), "page")
    t.equal(sh(d, "user", "grep -c 192.0.2.7.*named /etc/hosts"), "1")
    with urllib.request.urlopen("http://127.0.0.1:8080/page", timeout=60) as answer:
        t.equal(answer.read(), b"page\n")
    d("rm", "-f", "user")
    background(d, "one", "--network", "net1")
    background(d, "two", "--network", "net1")
    d("exec", "two", "ping", "-c", "1", "-W", "30", address(d, "one", "net1"))
    if not t.is_runc:  # docs/docker.md has what to do instead
        d.fails("exec", "two", "ping", "-c", "1", "one", pattern="bad address")
        d("network", "connect", "net1", "web")
        t.equal(sh(d, "web", "ls /sys/class/net | grep -c eth"), "1")
        d("restart", "-t", "0", "web")
        t.equal(sh(d, "web", "ls /sys/class/net | grep -c eth"), "2")


@docker.test("docker: what a VM cannot share with the host is refused by its name", runc=False)
def refused(t, d):
    background(d, "other")
    for opts, pattern in ((("--network", "host"), "host's network namespace"),
                          (("--pid", "host"), "host's pid namespace"),
                          (("--network", "container:other"), "network of the pod"),
                          (("--pid", "container:other"), "cannot be joined"),
                          (("--ipc", "host"), "host's ipc namespace")):
        d.fails("run", "--rm", *opts, IMAGE, "true", pattern=pattern)
    t.equal(d("run", "--rm", IMAGE, "echo", "fine"), "fine")

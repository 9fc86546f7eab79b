"""The agent and containers: a real VM, the host's end of the bridge by hand (bridge_vm.py)."""

import concurrent.futures
import hashlib
import os
import re
import signal
import time

from bridge_vm import (BridgeVM, Disk, NULL_ID, busybox_tree, ext4_image, make_process,
                       make_spec)
from harness import test

POD = "/run/gcs/pods"
SCRATCH_DISK = "/run/mounts/scsi/0_0_0"


class Place:
    """Where a container is, as the v2 shim chooses it."""

    def __init__(self, name, pod=None):
        self.name, self.pod = name, pod or name
        self.bundle = f"{POD}/{self.pod}/{name}"
        self.root = f"{self.bundle}/rootfs"
        self.scratch = f"{SCRATCH_DISK}/scratch/{self.pod}/{name}"


def share_and_scratch(t):
    tree = busybox_tree(t)
    return BridgeVM(t, [Disk(ext4_image(t, "scratch"))], {"1": tree})


def mount_all(vm):
    vm.modify("MappedVirtualDisk", MountPath=SCRATCH_DISK)
    vm.modify("MappedDirectory", MountPath="/run/mounts/plan9/1", ShareName="1", ReadOnly=True)


def combine(vm, place, layer="/run/mounts/plan9/1"):
    vm.modify("CombinedLayers", ContainerID=place.name, ContainerRootPath=place.root,
              Layers=[{"Path": layer}], ScratchPath=place.scratch)


def uncombine(vm, place):
    vm.modify("CombinedLayers", "Remove", ContainerID=place.name, ContainerRootPath=place.root,
              ScratchPath=place.scratch)


def create(vm, place, *args, **spec):
    combine(vm, place)
    vm.create(place.name, make_spec(place.root, *args, **spec), place.bundle, place.scratch)


def start(vm, place, names=("out", "err")):
    vm.call("Start", place.name)
    return vm.execute(place.name, names)


def remove(vm, place):
    uncombine(vm, place)
    vm.delete(place.name)


@test("guest: a container on a share and a scratch disk runs, exits and is gone")
def share_container(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("one")
        create(vm, c, "sh", "-c", "cat /etc/marker; echo new > /etc/marker; cat /etc/marker >&2; "
               "exit 7")
        pid, io = start(vm, c)
        wait = vm.send_wait(c.name, pid)
        t.equal(io.read_all("out"), b"from the image\n")
        t.equal(io.read_all("err"), b"new\n")
        t.equal(vm.answer(wait)["ExitCode"], 7)
        t.until(lambda: vm.notifications, "the notification comes", 5)
        t.equal(vm.notifications[0]["Type"], "UnexpectedExit")
        t.check(vm.order().index(("answer", wait)) < vm.order().index(("notification", c.name)),
                "the notification came before the answer")
        remove(vm, c)
        t.equal(vm.refused("DeleteContainerState", c.name).code, 0xC037010E)
        vm.modify("MappedDirectory", "Remove", MountPath="/run/mounts/plan9/1", ShareName="1")
        vm.modify("MappedVirtualDisk", "Remove", MountPath=SCRATCH_DISK)
        vm.modify("SCSIDevice", "Remove", Lun=0)
        t.equal(vm.shell("ls /run/gcs /run/mounts; ls /sys/fs/cgroup/pods | grep -v '\\.'; "
                         "ls /run/crun /run/gcs/crun /dev/sd* 2>/dev/null; "
                         "grep -c ' /run/' /proc/mounts").split(),
                ["/run/gcs:", "crun", "pods", "/run/mounts:", "9p", "plan9", "scsi",
                 "/run/crun:", "/run/gcs/crun:", "1"])


def running(vm, name="box", *args, **spec):
    """A container that only waits."""
    c = Place(name)
    create(vm, c, *(args or ("sleep", "1000")), **spec)
    c.pid, c.io = start(vm, c)
    return c


def end(vm, c):
    vm.signal(c.name, c.pid, signal.SIGKILL)
    wait = vm.send_wait(c.name, c.pid)
    for name in c.io.sockets:
        c.io.read_all(name)
    code = vm.answer(wait)["ExitCode"]
    remove(vm, c)
    return code


MEMFDS = "ls -l /proc/[0-9]*/%s 2>/dev/null | grep -o 'memfd:.*'"
SEALED = "memfd:crun (deleted)\n"


@test("guest: crun never copies itself: create and execs run from one sealed file in memory")
def no_copy(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("box")
        create(vm, c, "sleep", "1000")
        # What waits for the start is still crun; a copy of its own would have another name.
        t.equal(vm.shell(MEMFDS % "exe"), SEALED)
        c.pid, c.io = start(vm, c)
        for _ in range(10):
            t.equal(vm.run(c.name, "true"), (0, b"", b""))
            t.equal(vm.shell(MEMFDS % "fd"), SEALED, "held by the agent, and by no other process")
        end(vm, c)


@test("guest: execs have streams, codes, users, limits and directories of their own")
def execs(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = running(vm, rlimits=[{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 77}])
        t.equal(vm.run(c.name, "sh", "-c", "cat; echo e >&2; exit 3", data=b"in\n"),
                (3, b"in\n", b"e\n"))
        t.equal(vm.run(c.name, "sh", "-c", "ulimit -n; pwd; id -u; id -g", cwd="/home/app",
                       user={"username": "app"}), (0, b"77\n/home/app\n1000\n1001\n", b""))
        code, out, _ = vm.run(c.name, "sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; "
                              "cat /proc/self/oom_score_adj /proc/1/oom_score_adj; ls /proc/self/fd")
        t.equal(re.sub(rb"\s+", b" ", out),
                b"SigBlk: 0000000000000000 SigIgn: 0000000080000000 0 0 0 1 2 3 ",
                "32 is the C library's own")
        t.equal(vm.run(c.name, "sh", "-c", "kill -9 $$")[0], 137)
        t.equal(vm.run(c.name, "sh", "-c", "kill -15 $$")[0], 143)
        for reason, words, command, more in (
                ("USER_UNKNOWN", "no user .nobody. in the image", "true",
                 {"user": {"username": "nobody"}}),
                ("COMMAND_NOT_FOUND", 'exec: "nonsense": executable file not found in \\$PATH',
                 "nonsense", {}),
                ("COMMAND_NOT_EXECUTABLE", "permission denied", "/etc/passwd", {})):
            refused = vm.exec_refused(c.name, command, **more)
            t.equal(refused.reason, reason, refused)
            t.words(words, refused.text)
        t.equal(vm.exec_refused(c.name).code, 0x80070057)

        out = b"".join(b"%d\n" % i for i in range(200000))
        code, got, _ = vm.run(c.name, "seq", "0", "199999")
        t.equal((code, hashlib.sha256(got).digest()), (0, hashlib.sha256(out).digest()))

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            runs = list(pool.map(lambda i: vm.run(c.name, "sh", "-c", f"echo {i}; exit {i}"),
                                 range(24)))
        t.equal(runs, [(i, b"%d\n" % i, b"") for i in range(24)])

        # Forgotten once waited for; unknown pids and containers.
        pid, io = vm.exec(c.name, "true")
        io.read_all("out"), io.read_all("err")
        t.equal(vm.wait(c.name, pid), 0)
        for name in ("WaitForProcess", "SignalProcess"):
            t.equal(vm.refused(name, c.name, ProcessId=pid, TimeoutInMs=0).code, 0x80070490)
        t.equal(vm.refused("WaitForProcess", "who", ProcessId=1, TimeoutInMs=0).code, 0xC037010E)
        t.equal(vm.refused("WaitForProcess", c.name, ProcessId=c.pid, TimeoutInMs=20).code,
                0xC0370109)
        t.equal(vm.refused("SignalProcess", c.name, ProcessId=c.pid,
                           Options={"Signal": 99}).code, 0x80070057)
        t.equal(end(vm, c), 137)
        t.until(lambda: vm.notifications, "the notification comes", 5)
        t.equal([n["Type"] for n in vm.notifications], ["ForcedExit"])
        t.until(lambda: "Z" not in vm.shell("ps -o stat"), "no zombie is left", 10)


@test("guest: a grandchild that holds the pipe delays an exec only for a bounded time")
def grandchild(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = running(vm)
        pid, io = vm.exec(c.name, "sh", "-c", "sleep 100 & echo mine; exit 4")
        wait, began = vm.send_wait(c.name, pid), time.monotonic()
        t.equal((io.read_all("out"), io.read_all("err")), (b"mine\n", b""))
        t.equal(vm.answer(wait)["ExitCode"], 4)
        t.check(5 < time.monotonic() - began < 40, f"after {time.monotonic() - began:.1f} s")
        # One that goes in time is heard to its end.
        t.equal(vm.run(c.name, "sh", "-c", "(sleep 1; echo late) & echo now"),
                (0, b"now\nlate\n", b""))
        # A slow reader gets everything, however long it takes.
        pid, io = vm.exec(c.name, "sh", "-c", "head -c 3000000 /dev/zero")
        wait = vm.send_wait(c.name, pid)
        time.sleep(13)
        t.check(not vm.has_answer(wait), "the exit was reported before the output was read")
        t.equal(len(io.read_all("out")), 3000000)
        io.read_all("err")
        t.equal(vm.answer(wait)["ExitCode"], 0)
        # An init in a pid namespace of its own takes everybody with it.
        t.equal(end(vm, c), 137)


@test("guest: terminals have their size before the program starts, and change it")
def terminals(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("tty")
        create(vm, c, "sh", "-c", "stty size; read x; stty size; echo got $x", terminal=True)
        pid = vm.properties(c.name, "ProcessList")["ProcessList"][0]["ProcessId"]
        vm.call("ResizeConsole", c.name, ProcessId=pid, Height=33, Width=101)
        c.pid, c.io = start(vm, c, ("in", "out"))
        t.equal(c.pid, pid)
        c.io.read_until(b"33 101")
        vm.call("ResizeConsole", c.name, ProcessId=pid, Height=40, Width=120)
        c.io.write(b"this\n")
        wait = vm.send_wait(c.name, pid)
        text = c.io.read_all("out")
        t.check(b"40 120" in text and b"got this" in text, text)
        t.equal(vm.answer(wait)["ExitCode"], 0)
        remove(vm, c)

        c = running(vm)
        t.equal(vm.refused("ResizeConsole", c.name, ProcessId=c.pid, Height=1, Width=1).code,
                0x80004005)
        pid, io = vm.exec(c.name, "sh", "-c", "tty; read x; exit 5", terminal=True,
                          names=("in", "out"))
        io.read_until(b"/dev/pts/0")
        io.write(b"\n")
        wait = vm.send_wait(c.name, pid)
        io.read_all("out")
        t.equal(vm.answer(wait)["ExitCode"], 5)
        t.equal(end(vm, c), 137)


@test("guest: statistics, memory limits, out of memory before the exit, pause, update")
def resources(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = running(vm, resources={"memory": {"limit": 32 << 20}, "pids": {"limit": 50},
                                   "cpu": {"shares": 512, "quota": 50000, "period": 100000}})
        stats = vm.properties(c.name, "Statistics")["LCOWMetrics"]
        t.equal(stats["memory"]["usage"]["limit"], 32 << 20, stats)
        t.equal(stats["pids"], {"current": 1, "limit": 50}, stats)
        t.check(stats["cpu"]["usage"]["total"] > 0, stats)
        vm.modify("ContainerConstraints", "Update", c.name,
                  Linux={"memory": {"limit": 48 << 20}, "pids": {"limit": 60}})
        stats = vm.properties(c.name, "Statistics")["LCOWMetrics"]
        t.equal(stats["memory"]["usage"]["limit"], 48 << 20, stats)
        t.equal(vm.modify_refused("ContainerConstraints", "Update", c.name,
                                  Linux={"memory": {"limit": "much"}}).code, 0x80070057)

        # Pause: the counter stops; resume: it continues. Both may be repeated.
        pid, io = vm.exec(c.name, "sh", "-c", "while :; do echo x; sleep 0.05; done", names=("out",))
        io.read_until(b"x")
        for _ in range(2):
            vm.modify("ContainerFreezer", "Update", c.name, Frozen=True)
        io.sockets["out"].settimeout(1)
        silent = False
        try:
            while io.sockets["out"].recv(65536):
                pass
        except TimeoutError:
            silent = True
        t.check(silent, "it went on")
        t.match("Paused", vm.exec_refused(c.name, "true").text)
        for _ in range(2):
            vm.modify("ContainerFreezer", "Update", c.name, Frozen=False)
        io.read_until(b"x")
        vm.signal(c.name, pid, signal.SIGKILL)
        io.read_all("out")
        t.equal(vm.wait(c.name, pid), 137)

        # Somebody in it dies for want of memory; then nobody does, and it ends.
        query = {"Query": '{"PropertyTypes":["OutOfMemory"]}'}
        oom = vm.send("GetProperties", c.name, **query)
        t.equal(vm.run(c.name, "sh", "-c", "tail /dev/zero")[0], 137)
        t.equal(vm.answer(oom)["Properties"], '{"OutOfMemory":true}')
        stats = vm.properties(c.name, "Statistics")["LCOWMetrics"]
        t.equal(stats["memory_oom_control"], {"oom_kill": 1}, stats)
        oom = vm.send("GetProperties", c.name, **query)
        time.sleep(0.5)
        t.check(not vm.has_answer(oom), "answered too early")
        t.equal(end(vm, c), 137)
        t.equal(vm.answer(oom)["Properties"], '{"OutOfMemory":false}')

        # Init itself: told before its exit.
        c = Place("hog")
        create(vm, c, "tail", "/dev/zero", resources={"memory": {"limit": 16 << 20}})
        oom = vm.send("GetProperties", c.name, **query)
        pid, io = start(vm, c)
        wait = vm.send_wait(c.name, pid)
        io.read_all("out"), io.read_all("err")
        t.equal(vm.answer(wait)["ExitCode"], 137)
        t.equal(vm.answer(oom)["Properties"], '{"OutOfMemory":true}')
        order = vm.order()
        t.check(order.index(("answer", oom)) < order.index(("answer", wait)), "exit came first")
        remove(vm, c)


CRI = "io.kubernetes.cri."


@test("guest: a pod: sandbox and workload share mounts, names and namespaces")
def pod(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        s = Place("pod")
        create(vm, s, "sleep", "1000", hostname="pod0.example", annotations={
            CRI + "container-type": "sandbox", CRI + "sandbox-id": "pod"})
        s.pid, s.io = start(vm, s)
        w = Place("work", "pod")
        joined = [{"type": n, "path": f"/proc/{s.pid}/ns/{f}"} for n, f in
                  (("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("network", "net"))]
        spec = make_spec(w.root, "sleep", "1000", annotations={
            CRI + "container-type": "container", CRI + "sandbox-id": "pod",
            "io.microsoft.lcow.shm.size-kb": "4096"},
            mounts=[{"destination": "/shared", "type": "bind", "source": "sandbox://a/b",
                     "options": ["rbind"]},
                    {"destination": "/fast", "type": "bind", "source": "sandbox-tmp://f",
                     "options": ["rbind"]}],
            linux={"namespaces": [*joined, {"type": "mount"}]}, user={"username": "app:extra"})
        combine(vm, w)
        t.words("leaves", vm.create_refused("work", {**spec, "mounts": [
            {"destination": "/x", "source": "sandbox://../../x", "type": "bind"}]},
            w.bundle, w.scratch).text)
        vm.create("work", spec, w.bundle, w.scratch)
        w.pid, w.io = start(vm, w)
        code, out, err = vm.run("work", "sh", "-c", "hostname; cat /etc/hostname; id -u; id -g; "
                                "grep -c pod0 /etc/hosts; df -k /dev/shm | tail -1; "
                                "echo 1 > /shared/x && echo 2 > /fast/y; touch /etc/resolv.conf; "
                                "ps | grep -c 'sleep 1000$'")
        lines = out.decode().splitlines()
        t.equal(lines[:5], ["pod0.example", "pod0.example", "1000", "2000", "1"], (out, err))
        t.match("shm +4096", lines[5])
        t.equal(lines[6], "2", "the pid namespace is the pod's")
        t.equal(vm.shell("cat /run/gcs/pods/pod/pod/sandboxMounts/a/b/x; "
                         "cat /sys/fs/cgroup/pods/pod/work/cgroup.procs | wc -l"), "1\n1\n")
        # Not its own pid namespace: who is left over is killed with it.
        pid, io = vm.exec("work", "sleep", "777", names=("out",))
        t.equal(end(vm, w), 137)
        t.equal(vm.shell("ps | grep -c '[s]leep 777' || true"), "0\n")
        t.equal(vm.create_refused("other", make_spec(w.root, "true", annotations={
            CRI + "container-type": "container", CRI + "sandbox-id": "none"}),
            f"{POD}/none/other").code, 0x80004005)
        vm.call("ShutdownGraceful", "pod")
        vm.call("ShutdownForced", "pod")
        wait = vm.send_wait("pod", s.pid)
        s.io.read_all("out"), s.io.read_all("err")
        t.equal(vm.answer(wait)["ExitCode"], 137)
        t.equal(vm.refused("ShutdownForced", "pod").code, 0xC0370110)
        remove(vm, s)
        t.equal(vm.shell("ls /run/gcs/pods; ls -d /sys/fs/cgroup/pods/*/ 2>/dev/null; "
                         "grep -c sandbox /proc/mounts || true"), "0\n")


NOTHING_OF_PODS = ("find /run/gcs/pods -mindepth 2; ls /run/crun 2>/dev/null; ls -d /sys/fs/cgroup/pods/*/ 2>/dev/null; "
                   "grep -c pods/pod /proc/mounts; ls /run/mounts/scsi/0_0_0/scratch/pod 2>/dev/null; "
                   "pidof pause || true")


@test("guest: a pod that a process of the agent holds, without layers and without crun")
def holder(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        s, w = Place("pod"), Place("work", "pod")

        def bundle(action="Add"):
            vm.modify("CombinedLayers", action, ContainerID=s.name, ContainerRootPath=s.root,
                      ScratchPath=s.scratch)

        def spec(kind="sandbox", **sysctl):
            return make_spec(s.root, "/pause", hostname="pod0", linux={"sysctl": sysctl},
                             user={"uid": 65535, "gid": 65535}, annotations={
                                 CRI + "container-type": kind, CRI + "sandbox-id": "pod"})

        empty = vm.shell(NOTHING_OF_PODS)
        bundle()
        for bad in (spec(**{"net.no.such": "1"}), spec(kind="container")):
            vm.create_refused("pod", bad, s.bundle, s.scratch, Holder=True)
        bundle("Remove")
        t.equal(vm.shell(NOTHING_OF_PODS), empty, "a create that failed leaves nothing")
        bundle()
        vm.create("pod", spec(**{"kernel.shmmni": "77"}), s.bundle, s.scratch, Holder=True)
        s.pid, s.io = start(vm, s)
        t.match("executable file not found", vm.exec_refused("pod", "sh").text)
        vm.modify("ContainerConstraints", "Update", "pod", Linux={"pids": {"limit": 50}})
        vm.modify("ContainerFreezer", "Update", "pod", Frozen=True)
        vm.modify("ContainerFreezer", "Update", "pod", Frozen=False)
        t.check(vm.properties("pod", "Statistics")["LCOWMetrics"], "no metrics")
        t.equal([p["Name"] for p in vm.properties("pod", "ProcessList")["ProcessList"]], ["pause"])
        joined = [{"type": n, "path": f"/proc/{s.pid}/ns/{f}"} for n, f in
                  (("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("network", "net"))]
        combine(vm, w)
        vm.create("work", make_spec(w.root, "sleep", "1000", annotations={
            CRI + "container-type": "container", CRI + "sandbox-id": "pod"},
            mounts=[{"destination": "/shared", "type": "bind", "source": "sandbox://a",
                     "options": ["rbind"]}],
            linux={"namespaces": [*joined, {"type": "mount"}]}), w.bundle, w.scratch)
        w.pid, w.io = start(vm, w)
        code, out, err = vm.run("work", "sh", "-c", "hostname; cat /proc/sys/kernel/shmmni /proc/1/comm; "
                                "ls -l /proc/1/root/ /proc/1/fd 2>&1 | grep -c denied; "
                                "df /shared | tail -1; (sleep 0.1 &) ; sleep 1; ps -o stat | grep -c Z")
        t.match(r"(?s)^pod0\n77\npause\n.*/dev/sd.*\n0\n$", out.decode())
        t.note(out.decode())
        t.equal(end(vm, w), 137)
        vm.signal("pod", s.pid, signal.SIGTERM)
        wait = vm.send_wait("pod", s.pid)
        s.io.read_all("out"), s.io.read_all("err")
        t.equal(vm.answer(wait)["ExitCode"], 0)
        bundle("Remove")
        vm.delete("pod")
        t.equal(vm.shell(NOTHING_OF_PODS), empty)


@test("guest: huge pages of a container without a pod go with it")
def huge_pages(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("one")
        create(vm, c, "grep", "-c", "/huge hugetlbfs", "/proc/mounts", mounts=[
            {"destination": "/huge", "type": "bind", "source": "hugepages://2M/h",
             "options": ["rbind"]}])
        pid, io = start(vm, c)
        t.equal(io.read_all("out"), b"1\n")
        io.read_all("err")
        t.equal(vm.wait(c.name, pid), 0)
        remove(vm, c)
        t.equal(vm.shell("grep -c hugetlbfs /proc/mounts || true; ls /run/gcs/pods"), "0\n")


@test("guest: a link that a container makes in a directory of its pod leads no other one out of it")
def pod_links(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        s = Place("pod")
        create(vm, s, "sleep", "1000", annotations={
            CRI + "container-type": "sandbox", CRI + "sandbox-id": "pod"},
            mounts=[{"destination": "/shared", "type": "bind", "source": "sandbox://s",
                     "options": ["rbind"]}])
        s.pid, s.io = start(vm, s)
        t.equal(vm.run("pod", "ln", "-s", "/run", "/shared/link")[0], 0)
        vm.shell("mkdir /run/gcs/pods/pod/pod/hugepages/2M; "
                 "ln -s /run /run/gcs/pods/pod/pod/hugepages/2M/link")
        w = Place("work", "pod")
        combine(vm, w)
        for source in ("sandbox://s/link", "sandbox://s/link/gcs", "sandbox://s/link/made",
                       "hugepages://2M/link/made"):
            t.words("symbolic link", vm.create_refused(w.name, make_spec(
                w.root, "true", annotations={CRI + "container-type": "container",
                                             CRI + "sandbox-id": "pod"},
                mounts=[{"destination": "/x", "type": "bind", "source": source,
                         "options": ["rbind"]}]), w.bundle, w.scratch).text)
        uncombine(vm, w)
        t.equal(vm.shell("ls -d /run/made 2>/dev/null || true"), "")
        t.equal(end(vm, s), 137)


@test("guest: a container on disks: read-only image, partitionless scratch made in the guest")
def disks(t):
    tree = busybox_tree(t)
    image = ext4_image(t, "image", "32M", tree)
    with open(f"{t.work}/empty", "wb") as f:
        f.truncate(64 << 20)
    with BridgeVM(t, [Disk(f"{t.work}/empty", 0), Disk(image, 3, True)]) as vm:
        vm.modify("MappedVirtualDisk", MountPath=SCRATCH_DISK, EnsureFilesystem=True,
                  Filesystem="ext4")
        vm.modify("MappedVirtualDisk", MountPath="/run/mounts/scsi/0_3_0", Lun=3, ReadOnly=True,
                  Options=["ro"])
        vm.modify("MappedVirtualDisk", MountPath="/run/dev/d3", Lun=3, BlockDev=True)
        node = vm.shell("readlink /run/dev/d3").strip()
        t.match("^/dev/sd[ab]$", node)
        t.equal(vm.shell(f"grep '^{node} /run/mounts/scsi/0_3_0 ext4 ro,' /proc/mounts | wc -l"),
                "1\n")
        t.equal(vm.modify_refused("MappedVirtualDisk", MountPath="/run/x", Controller=4).code,
                0x80070057)
        t.equal(vm.modify_refused("MappedVirtualDisk", MountPath="/etc/x", Lun=3).code, 0x80070057)
        c = Place("disk")
        combine(vm, c, "/run/mounts/scsi/0_3_0")
        vm.create(c.name, make_spec(c.root, "sh", "-c", "cat /etc/marker; echo x > /tmp/x"),
                  c.bundle, c.scratch)
        c.pid, c.io = start(vm, c)
        t.equal((c.io.read_all("out"), c.io.read_all("err")), (b"from the image\n", b""))
        t.equal(vm.wait(c.name, c.pid), 0)
        t.equal(vm.refused("ExecuteProcess", c.name, **vm.execute_keys((), OciProcess=make_process(
            "true"))[1]).code, 0xC0370110)
        # A deletion with the root still mounted fails, says so, and can be repeated.
        t.match("mounted|busy", vm.refused("DeleteContainerState", c.name).text)
        remove(vm, c)
        vm.modify("MappedVirtualDisk", "Remove", MountPath="/run/dev/d3", Lun=3, BlockDev=True)
        vm.modify("MappedVirtualDisk", "Remove", MountPath="/run/mounts/scsi/0_3_0", Lun=3)
        vm.modify("MappedVirtualDisk", "Remove", MountPath="/run/mounts/scsi/0_3_0", Lun=3)
        vm.modify("SCSIDevice", "Remove", Lun=3)
        vm.modify("SCSIDevice", "Remove", Lun=3)
        t.equal(vm.shell("ls /dev/sd* | wc -l; ls /run/mounts/scsi/0_0_0/scratch/disk"), "1\n")


@test("guest: disks and shares that come while the VM runs, and go, and come again")
def hot_plug(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        disk = Disk(ext4_image(t, "more", "16M"), 9)
        for _ in range(3):
            vm.attach(disk)
            vm.modify("MappedVirtualDisk", MountPath="/run/mounts/scsi/0_9_0", Lun=9)
            vm.shell("echo here >> /run/mounts/scsi/0_9_0/file")
            vm.modify("MappedVirtualDisk", "Remove", MountPath="/run/mounts/scsi/0_9_0", Lun=9)
            vm.modify("SCSIDevice", "Remove", Lun=9)
            vm.detach(disk)
        vm.attach(disk)
        vm.modify("MappedVirtualDisk", MountPath="/run/mounts/scsi/0_9_0", Lun=9)
        t.equal(vm.shell("wc -l < /run/mounts/scsi/0_9_0/file; ls /dev/sd* | wc -l"), "3\n2\n")

        # In use: not unmounted, said so, and gone once it is free.
        pid, io = vm.execute(names=("in",), CommandArgs=["cat"],
                             WorkingDirectory="/run/mounts/scsi/0_9_0")
        t.match("busy", vm.modify_refused("MappedVirtualDisk", "Remove", Lun=9,
                                          MountPath="/run/mounts/scsi/0_9_0").text)
        io.close_in()
        t.equal(vm.wait(NULL_ID, pid), 0)
        vm.modify("MappedVirtualDisk", "Remove", MountPath="/run/mounts/scsi/0_9_0", Lun=9)

        t.equal(vm.modify_refused("MappedDirectory", ShareName="2", MountPath="/run/s/2").code,
                0x80004005)
        os.mkdir(f"{vm.shares}/2")
        with open(f"{vm.shares}/2/f", "w") as f:
            f.write("late\n")
        with open(f"{vm.shares}/3", "w") as f:
            f.write("a file\n")
        for name in "23":
            vm.modify("MappedDirectory", ShareName=name, MountPath=f"/run/s/{name}", ReadOnly=True)
        t.equal(vm.shell("cat /run/s/2/f /run/s/3; touch /run/s/2/x 2>/dev/null || echo ro"),
                "late\na file\nro\n")
        vm.modify("MappedDirectory", ShareName="2", MountPath="/run/s/2w")
        t.equal(vm.shell("echo new > /run/s/2w/n; cat /run/s/2/n"), "new\n")
        for name in ("2", "3", "2w"):
            vm.modify("MappedDirectory", "Remove", MountPath=f"/run/s/{name}")
        t.equal(vm.shell("ls -A /run/s"), "")


@test("guest: bad requests are refused, and leave nothing")
def bad(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("bad")
        combine(vm, c)
        good = make_spec(c.root, "true")

        def refuse(code, pattern, name="bad", bundle=c.bundle, **changes):
            spec = {k: v for k, v in {**good, **changes}.items() if v is not None}
            r = vm.create_refused(name, spec, bundle, c.scratch)
            t.words(pattern, r.text)
            t.equal(r.code, code, r.text)

        for part in ("linux", "process", "root"):
            refuse(0x80070057, f"{part} is missing", **{part: None})
        for name in ("a/b", "..", "", "x" * 200, "a b"):
            refuse(0x80070057, "container ID", name=name)
        refuse(0x80070057, "must be below /run", bundle="/etc")
        refuse(0x80070057, "component", bundle="/run/../etc")
        refuse(0x80070057, "root.path", root={"path": "/"})
        refuse(0x80070057, "container-type", annotations={CRI + "container-type": "strange",
                                                          CRI + "sandbox-id": "x"})
        refuse(0x80070057, "host name", hostname="no blanks")
        refuse(0x80004005, "executable file not found", process=make_process("nonsense"))
        refuse(0x80004005, "permission denied", process=make_process("/etc/passwd"))
        refuse(0x80004005, "device /dev/none", linux={"resources": {}, "namespaces": [
            {"type": "mount"}], "devices": [{"path": "/dev/none", "type": "c"}]})
        refuse(0x80070057, "no user", process=make_process("true", user={"username": "who"}))
        t.equal(vm.refused("Create", "bad", ContainerConfig="{}").code, 0xC037010D)

        for share, path in (("a,b", "/run/s"), ("..", "/run/s"), ("1", "/run/../s"), ("1", "")):
            t.equal(vm.modify_refused("MappedDirectory", ShareName=share, MountPath=path).code,
                    0x80070057)
        t.equal(vm.modify_refused("MappedDirectory", ShareName="none", MountPath="/run/s").code,
                0x80004005)
        for layers in ([], [{"Path": "/a:b"}], [{"Path": "/a,b"}]):
            t.equal(vm.modify_refused("CombinedLayers", ContainerRootPath="/run/r/rootfs",
                                      Layers=layers).code, 0x80070057)
        t.equal(vm.modify_refused("Network").code, 0x80070057)  # it has no settings
        t.equal(vm.modify_refused("VPMemDevice").code, 0x80004001)
        t.equal(vm.modify_refused("VPCIDevice").code, 0x80070057)  # it names no place
        t.equal(vm.modify_refused("SecurityPolicy", EncodedSecurityPolicy="eA==").code, 0x80004001)
        vm.modify("SecurityPolicy", EncodedSecurityPolicy="")
        t.equal(vm.modify_refused("SecurityPolicy", EncodedSecurityPolicy="").code, 0x80004005)
        vm.call("ModifySettings", Request={"RequestType": "Update",
                                           "ResourceType": "PodCgroupMemoryLimit"})
        vm.modify("Clock", "Update", WallNs=1_000_000_000 * 10**9)
        t.equal(vm.shell("date +%Y"), "2001\n")
        for name in ("DeleteContainerState", "ShutdownForced", "GetProperties"):
            t.equal(vm.refused(name, "bad").code, 0xC037010E)

        # After all that the same id can be used, twice it cannot, and a running one stays.
        vm.create("bad", make_spec(c.root, "sleep", "100"), c.bundle, c.scratch)
        t.equal(vm.create_refused("bad", good, c.bundle).code, 0xC037010F)
        c.pid, c.io = start(vm, c)
        t.equal(vm.refused("ExecuteProcess", "bad", **vm.execute_keys(())[1]).code, 0x80004005)
        t.equal(vm.refused("DeleteContainerState", "bad").code, 0x80370105)
        t.equal(end(vm, c), 137)

        # One that was never started, and one whose create failed: both go without a trace.
        create(vm, c, "sleep", "100")
        remove(vm, c)
        combine(vm, c)
        refuse(0x80004005, "executable", process=make_process("nonsense"))
        uncombine(vm, c)
        t.equal(vm.shell("ls /run/gcs/pods/bad 2>/dev/null; ls /run/crun /run/gcs/crun; "
                         "ls -d /sys/fs/cgroup/pods/*/ 2>/dev/null; ps | grep -c '[s]leep' ; "
                         "ls /run/mounts/scsi/0_0_0/scratch/bad; grep -c overlay /proc/mounts; "
                         "grep -c bundle /proc/mounts; true").split(),
                ["/run/crun:", "/run/gcs/crun:", "0", "0", "0"])


@test("guest: containers come and go, and the agent is as small as before")
def again(t):
    def size(vm):
        return [int(n) for n in vm.shell(
            "for p in $(pidof gcs); do tr '\\0' ' ' < /proc/$p/cmdline | grep -q serve && break; "
            "done; ls /proc/$p/fd | wc -l; grep VmRSS /proc/$p/status | tr -dc 0-9").split()]

    def cycle(vm, i):
        c = running(vm, f"c{i}")
        for n in range(4):
            t.equal(vm.run(c.name, "sh", "-c", f"echo {n}"), (0, b"%d\n" % n, b""))
        t.equal(end(vm, c), 137)

    with share_and_scratch(t) as vm:
        mount_all(vm)
        cycle(vm, 0)
        before, began = size(vm), time.monotonic()
        for i in range(1, 9):
            cycle(vm, i)
        seconds, after = time.monotonic() - began, size(vm)
        t.note(f"8 containers with 4 execs each: {seconds:.1f} s; fds and RSS in KiB of the agent: "
               f"{before} before, {after} after")
        spent = {}
        for line in vm.log:
            if '"request done"' in line:
                name, took = re.search('operation":"(.*?)".*duration":"(.*?)"', line).groups()
                spent.setdefault(name, []).append(took)
        for name, took in spent.items():
            t.note(f"{name}: {' '.join(took[:12])}")
        t.equal(after[0], before[0], "open fds")
        t.check(after[1] <= before[1] + 256, f"RSS: {before[1]} KiB, then {after[1]}")


@test("guest: a container is deleted while it is being created: that is waited for")
def deleted_while_created(t):
    place = Place("c1")
    with share_and_scratch(t) as vm:
        mount_all(vm)
        combine(vm, place)
        spec = make_spec(place.root, "sleep", "1000")
        made = vm.send("Create", place.name, **vm._create_keys(spec, place.bundle, place.scratch))
        t.match("busy", str(vm.refused("DeleteContainerState", place.name)))  # by its layers
        t.equal(vm.answer(made)["Result"], 0)
        remove(vm, place)
        create(vm, place, "true")  # the name is free
        remove(vm, place)


@test("guest: layers are removed while their container is being created: that is waited for")
def uncombined_while_created(t):
    place = Place("c1")
    with share_and_scratch(t) as vm:
        mount_all(vm)
        for _ in range(5):  # as a host does whose client has gone
            combine(vm, place)
            spec = make_spec(place.root, "sleep", "1000")
            made = vm.send("Create", place.name,
                           **vm._create_keys(spec, place.bundle, place.scratch))
            uncombine(vm, place)
            t.equal(vm.answer(made)["Result"], 0)
            vm.delete(place.name)

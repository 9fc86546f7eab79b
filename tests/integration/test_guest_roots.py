"""Roots made to mislead: links in place of /dev, /proc, /sys, /etc and of what mounts go to. A real VM,
the host's end of the bridge by hand. Whatever such a root says, the VM's own files stay as they are."""

import json
import re

from bridge_vm import Refused, make_spec
from harness import test
from test_guest_containers import (Place, end, mount_all, remove, share_and_scratch, start,
                                   uncombine)

BASE = "/run/mounts/plan9/1"
UPPER = "/run/mounts/upper"  # a layer above the image's, made anew for each case

# Names, kinds, owners, sizes, times and link targets of all that is the VM's own.
OWN_FILES = ("find / -xdev -exec stat -c '%N %f %u %g %s %Y' {} +; "
             "find /dev -xdev -exec stat -c '%N %f %u %g %t %T' {} +; "
             "grep -v ' /run/' /proc/mounts")


class Roots:
    """Containers on roots of their own in one VM, which is looked at after each."""

    def __init__(self, t, vm):
        self.t, self.vm, self.n = t, vm, 0
        mount_all(vm)
        # Once, for what the first container leaves on purpose: modules, cgroups.
        self.end(self.run())
        self.before = self.look()

    def look(self):
        return sorted(self.vm.shell(OWN_FILES).splitlines())

    def place(self, script):
        """A root: the image's with what script, which runs in the upper layer, changes."""
        self.n += 1
        c = Place(f"c{self.n}")
        self.vm.shell(f"mkdir -p {UPPER}/{c.name} && cd {UPPER}/{c.name} && {script or 'true'}")
        self.vm.modify("CombinedLayers", ContainerID=c.name, ContainerRootPath=c.root,
                       Layers=[{"Path": f"{UPPER}/{c.name}"}, {"Path": BASE}],
                       ScratchPath=c.scratch)
        return c

    def unchanged(self, what):
        after = self.look()
        self.t.equal((sorted(set(after) - set(self.before)), sorted(set(self.before) - set(after))),
                     ([], []), f"{what}: the VM's own files (new, gone)")

    def run(self, script="", args=("sleep", "1000"), mounts=None, **spec):
        c = self.place(script)
        document = make_spec(c.root, *args, **spec)
        if mounts is not None:
            document["mounts"] = mounts
        self.vm.create(c.name, document, c.bundle, c.scratch)
        c.pid, c.io = start(self.vm, c)
        return c

    def end(self, c):
        end(self.vm, c)

    def refused(self, script, pattern, mounts=None, **spec):
        c = self.place(script)
        document = make_spec(c.root, "true", **spec)
        if mounts is not None:
            document["mounts"] = mounts
        answer = self.vm.create_refused(c.name, document, c.bundle, c.scratch)
        self.t.words(pattern, answer.text, script)
        uncombine(self.vm, c)
        self.unchanged(script)

    def outcome(self, c, spec):
        """How a container ends that is not meant to run for long; nothing of it stays."""
        try:
            self.vm.create(c.name, spec, c.bundle, c.scratch)
        except Refused as refused:
            uncombine(self.vm, c)
            return f"refused: {refused.text}"
        try:
            names = ("out",) if spec["process"]["terminal"] else ("out", "err")
            pid, io = start(self.vm, c, names)
            text = "".join(io.read_all(name).decode() for name in names)
            text = f"exit {self.vm.wait(c.name, pid)}: {text}"
        except Refused as refused:
            text = f"refused: {refused.text}"
        remove(self.vm, c)
        return text

    def works(self, script, command, output, **spec):
        """The container runs, command in it says output, and it all stayed in its root."""
        c = self.run(script, **spec)
        self.t.equal(self.vm.run(c.name, "/bin/busybox", "sh", "-c", command)[:2],
                     (0, output), script)
        self.end(c)
        self.unchanged(script)


def roots(work):
    def body(t):
        with share_and_scratch(t) as vm:
            work(t, Roots(t, vm))
    body.__name__ = work.__name__
    return body


TARGETS = ("/bin", "bin", "../../../../../../../bin", "/run", "/nowhere", "nowhere",
           "/proc/1/root/bin", ".")


@test("guest root: a root whose /dev, /proc or /sys is a link is refused by name")
@roots
def linked_places(t, r):
    for name in ("dev", "proc", "sys"):
        for target in TARGETS:
            r.refused(f"ln -s {target} {name}",
                      f"/{name} of the image is a symbolic link to {re.escape(target)}: .*"
                      f"directory")
        r.refused(f"echo x > {name}", f"/{name} of the image is not a directory")
        r.works(f"mknod {name} c 0 0", "ls -d /dev/null /proc/1 /sys/kernel",
                b"/dev/null\n/proc/1\n/sys/kernel\n")  # a whiteout: the image has none


@test("guest root: a link at /etc stays in the container's root")
@roots
def linked_etc(t, r):
    for target in ("/sbin", "sbin", "../../../../sbin"):
        r.works(f"ln -s {target} etc", "readlink /etc; tail -n 1 /sbin/hosts",
                f"{target}\nff02::2 ip6-allrouters\n".encode())
    r.refused("ln -s /nowhere etc", "`etc`: No such file or directory")
    r.works("mkdir etc && ln -s /bin/gcs etc/hosts; mkdir bin; touch bin/gcs", "tail -n 1 /etc/hosts",
            b"ff02::2 ip6-allrouters\n")
    r.works("mkdir etc && ln -s /nowhere/hosts etc/hosts", "tail -n 1 /nowhere/hosts",
            b"ff02::2 ip6-allrouters\n")


def standard(*left_out, more=()):
    """The usual mounts without some of them."""
    usual = make_spec("/", mounts=(
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"}))["mounts"]
    return [m for m in usual if m["destination"] not in left_out] + list(more)


@test("guest root: links below /dev stay in the container's root, with and without a mount on /dev")
@roots
def links_in_dev(t, r):
    for name in ("pts", "shm", "mqueue"):
        for target in ("/bin", "../../../../../bin", "/nowhere", "nowhere", "/proc/1/root/bin"):
            r.works(f"mkdir dev && ln -s {target} dev/{name}", f"grep -o ' /dev/{name} ' /proc/mounts",
                    f" /dev/{name} \n".encode(), mounts=standard())
    for name, kind in (("shm", "tmpfs"), ("mqueue", "mqueue"), ("pts", "devpts")):
        for target, seen in (("/mnt", "/mnt"), ("../../../../mnt", "/mnt")):
            r.works(f"mkdir dev mnt; ln -s {target} dev/{name}",
                    f"grep -o ' {seen} {kind} ' /proc/mounts", f" {seen} {kind} \n".encode(),
                    mounts=standard("/dev"))
    # What crun makes in /dev itself: a bad image may not run, but nothing leaves it.
    for name, runs in (("null", False), ("fd", True), ("ptmx", True), ("console", False)):
        for target in ("/bin/gcs", "../../../../../bin", "/nowhere"):
            script = f"mkdir dev; ln -s {target} dev/{name}"
            c = r.place(script)
            spec = make_spec(c.root, "/bin/busybox", "true", terminal=name == "console")
            spec["mounts"] = standard("/dev")
            outcome = r.outcome(c, spec)
            t.equal(outcome.startswith("exit 0"), runs, f"{script}: {outcome}")
            r.unchanged(script)


@test("guest root: mounts whose targets pass through links stay in the container's root")
@roots
def mount_targets(t, r):
    def tmpfs(destination):
        return [{"destination": destination, "type": "tmpfs", "source": "tmpfs"}]

    def seen(path):
        return f"grep -o ' {path} tmpfs' /proc/mounts", f" {path} tmpfs\n".encode()

    r.works("mkdir mnt; ln -s /mnt data", *seen("/mnt/sub"), mounts=standard(more=tmpfs("/data/sub")))
    r.works("mkdir mnt; ln -s ../../../../../../mnt data", *seen("/mnt/sub"),
            mounts=standard(more=tmpfs("/data/sub")))
    r.works("mkdir -p run/gcs; ln -s /run/gcs data", *seen("/run/gcs/sub"), mounts=standard(more=tmpfs("/data/sub")))
    r.works("mkdir var run; ln -s /run var/run", *seen("/run/x"),
            mounts=standard(more=tmpfs("/var/run/x")))
    # The last component itself, and one that is not there.
    r.works("ln -s /sbin data", *seen("/sbin"), mounts=standard(more=tmpfs("/data")))
    r.refused("ln -s /none/such data", "data", mounts=standard(more=tmpfs("/data")))
    # Through a link of the kernel's, which no root contains.
    for target in ("/proc/1/root/bin", "/proc/self/root", "/proc/self/cwd", "/proc/thread-self/root"):
        r.refused(f"ln -s {target} data", "data", mounts=standard(more=tmpfs("/data/sub")))
    r.refused("ln -s data data", "data", mounts=standard(more=tmpfs("/data/sub")))
    # A file of the VM's as the target of a bind mount.
    r.works("mkdir bin; touch bin/gcs; ln -s /bin/gcs data", "cat /bin/gcs", b"from the image\n", mounts=standard(
        more=[{"destination": "/data", "type": "bind", "options": ["bind"],
               "source": f"{BASE}/etc/marker"}]))


# What a directory of the VM's would have in it, seen from the working directory.
LOOK_AROUND = ("for up in . .. ../.. ../../.. ../../../..; do for name in bin/gcs init run/gcs run/crun "
               "cgroup.procs config.json; do test -e /proc/self/cwd/$up/$name && "
               "echo found $up/$name; done; done; true")


@test("guest root: a working directory in /proc/self/fd leads to no file of the VM's")
@roots
def working_directory(t, r):
    look = ("/bin/busybox", "sh", "-c", LOOK_AROUND)
    numbers = [f"/proc/self/fd/{n}" for n in range(24)]
    for cwd in ("/proc/self/fd", "/proc/1/root", "/proc/self/cwd", "/link", *numbers):
        c = r.place("ln -s /proc/self/fd/7 link")
        outcome = r.outcome(c, make_spec(c.root, *look, cwd=cwd))
        t.check(outcome == "exit 0: " or re.search("refused: .*chdir", outcome), f"{cwd}: {outcome}")
    box = r.run("ln -s /proc/self/fd/7 link")
    for cwd in ("/link", *numbers):
        try:
            t.equal(r.vm.run(box.name, *look, cwd=cwd), (0, b"", b""), f"exec {cwd}")
        except Refused as refused:
            t.check("chdir" in refused.text, f"exec {cwd}: {refused.text}")
    r.end(box)
    r.unchanged("cwd")


@test("guest root: a root with a /proc of its own, or a mount in its place, changes nothing in the VM")
@roots
def fake_proc(t, r):
    fake = ("mkdir -p proc/self/attr proc/sys/kernel proc/1/ns proc/self/fd && "
            "echo 1 > proc/self/attr/exec; ln -s /bin proc/self/exe; ln -s /bin/busybox "
            "proc/sys/kernel/core_pattern; ln -s /bin proc/kcore; ln -s ../bin proc/sysrq-trigger")
    masked = {"maskedPaths": ["/proc/kcore", "/proc/sysrq-trigger"],
              "readonlyPaths": ["/proc/sys", "/bin"]}
    r.works(fake, "readlink /proc/self/exe; grep -c ' /proc proc ' /proc/mounts",
            b"/bin/busybox\n1\n", mounts=standard(), linux=masked)
    # The container's mounts are its own business: it gets what it asks for, and no more than that.
    empty = {"destination": "/proc", "type": "tmpfs", "source": "tmpfs"}
    bind = {"destination": "/proc", "type": "bind", "source": f"{BASE}/etc", "options": ["bind"]}
    for what, mounts in (("none", standard("/proc")), ("tmpfs", [empty, *standard("/proc")]),
                         ("tmpfs above", standard(more=[empty])),
                         ("bind", [bind, *standard("/proc")]),
                         ("bind above", standard(more=[bind]))):
        for linux in ({}, masked, {"sysctl": {"kernel.shm_rmid_forced": "1"}}):
            c = r.place(fake)
            spec = make_spec(c.root, "/bin/busybox", "true", linux=linux)
            spec["mounts"] = mounts
            outcome = r.outcome(c, spec)
            # Without any mount there, masks fall upon what the links lead to: /bin.
            runs = what != "none" or linux is not masked
            t.equal(outcome.startswith("exit 0"), runs, f"{what} {list(linux)}: {outcome}")
            r.unchanged(what)
            t.equal(r.vm.shell("cat /proc/sys/kernel/shm_rmid_forced"), "0\n")


@test("guest root: the VM's own files and device nodes are read-only, /run, /tmp and /mnt are not")
def read_only(t):
    with share_and_scratch(t) as vm:
        for where in ("", "/bin", "/sbin", "/etc", "/lib/modules", "/usr", "/root", "/var",
                      "/dev"):
            t.equal(vm.shell(f"touch {where}/new 2>&1; mknod {where}/node c 1 3 2>&1; true"),
                    f"touch: {where}/new: Read-only file system\n"
                    f"mknod: {where}/node: Read-only file system\n")
        for change in ("rm -f /bin/gcs", "chmod 666 /dev/console", "mv /bin /nib"):
            t.check("Read-only file system" in vm.shell(f"{change} 2>&1; true"), change)
        t.equal(vm.shell("echo x >/run/new && echo y >/tmp/new && mkdir -p /mnt/a/b && "
                         "cat /run/new /tmp/new && echo z >/dev/null && echo >/dev/kmsg && "
                         "wc -c </etc/machine-id"),
                "x\ny\n33\n")


@test("guest root: crun itself follows no link at /dev, should one appear after the agent's look")
def crun_alone(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        spec = make_spec("/run/alone/root", "/bin/busybox", "true")
        del spec["windows"]
        for mounts in (standard(), standard("/dev", "/dev/pts", "/dev/shm", "/dev/mqueue")):
            spec["mounts"] = mounts
            vm.shell(f"rm -rf /run/alone /run/target; mkdir -p /run/alone/root /run/target && "
                     f"cd /run/alone && cp -r {BASE}/bin {BASE}/proc {BASE}/sys root && "
                     f"ln -s /run/target root/dev && mkdir -p root/run/target")
            vm.shell(f"cat >/run/alone/config.json <<'END'\n{json.dumps(spec)}\nEND\n")
            text = vm.shell("crun --cgroup-manager=disabled run --bundle /run/alone alone 2>&1; "
                            "echo; echo status $?; ls /run/target")
            t.check("open /dev directory in" in text and text.endswith("status 0\n"),
                    f"crun made something in the VM: {text}")

"""What a container writes to its root: kept in its snapshot, or discarded with its VM (the key
rootfs); and what a root that is kept does not do."""

import json
import os
import tarfile

import e2e

FOREVER = ("sleep", "100000")
WRITE = ("echo written >/kept; chown 1000:34 /kept; chmod 4751 /kept; rm -r /etc/group; "
         "mkdir -p /var/new/deep; ln -s deep /var/new/link; mkfifo /var/new/fifo; sync")
LOOK = ("cat /kept; stat -c '%u %g %a' /kept; ls /etc/group 2>/dev/null; readlink /var/new/link; "
        "stat -c %F /var/new/fifo")
SEEN = "written\n1000 34 4751\ndeep\nfifo\n"

# Rules of rootprobe.c that do not hold: on the host, and in a VM whose root is kept or discarded.
# docs/docker.md has the same list in words.
ON_HOST = {"rename-image-directory"}
DISCARDED = ON_HOST | {"o-tmpfile"}
KEPT = DISCARDED | {"rename-exchange", "rename-noreplace", "unlinked-ftruncate", "unlinked-fchmod",
                    "unlinked-open-again", "device-node", "file-capability", "acl", "file-times",
                    "setuid-drops-at-write"}


def writes(t, container):
    """As lcow inspect has it."""
    found = [c["rootfs"] for c in json.loads(t.lcow("inspect", container).out)["containers"]
             if c["id"] == container]
    t.equal(len(found), 1, found)
    return found[0]


def end_task(t, container):
    t.must("tasks", "kill", "-s", "SIGKILL", container)
    t.await_status(container, "STOPPED")
    t.must("tasks", "rm", container)


@e2e.test("what a container writes to its root is there when its task is started again", smoke=True)
def kept(t):
    t.detach("c1", *FOREVER)
    t.equal(t.exec("c1", "sh", "-c", WRITE).code, 0)
    for _ in range(2):
        if not t.is_runc:
            t.equal(writes(t, "c1"), "kept")
        end_task(t, "c1")
        t.must("tasks", "start", "-d", "c1")
        t.equal(t.exec("c1", "sh", "-c", LOOK).out, SEEN)


@e2e.test("what a container wrote is in its snapshot while it runs")
def visible(t):
    t.detach("c1", *FOREVER)
    t.equal(t.exec("c1", "sh", "-c", WRITE).code, 0)
    with open(os.path.join(t.work, "diff.tar"), "wb") as f:
        t.must("snapshots", "diff", "c1", stdout=f)
    with tarfile.open(os.path.join(t.work, "diff.tar")) as tar:
        names = {m.name.rstrip("/"): m for m in tar}
    t.check({"kept", "etc/.wh.group", "var/new/link"} <= set(names), "the diff", sorted(names))
    t.equal((names["kept"].uid, names["kept"].gid, names["kept"].mode), (1000, 34, 0o4751))


@e2e.test("what a container has written is kept when its QEMU is killed", runc=False)
def killed(t):
    t.detach("c1", *FOREVER)
    t.equal(t.exec("c1", "sh", "-c", WRITE.removesuffix("; sync")).code, 0)
    e2e.kill(t.qemu_pid())
    t.await_status("c1", "STOPPED")
    t.must("tasks", "rm", "c1")
    t.must("tasks", "start", "-d", "c1")
    t.equal(t.exec("c1", "sh", "-c", LOOK).out, SEEN)


@e2e.test("rootfs = scratch discards what a container writes with its VM", runc=False)
def discarded(t):
    t.config(rootfs="scratch")
    t.detach("c1", *FOREVER)
    t.equal(writes(t, "c1"), "discarded")
    t.equal(t.exec("c1", "sh", "-c", WRITE).code, 0)
    t.equal(t.exec("c1", "sh", "-c", LOOK).out, SEEN)
    end_task(t, "c1")
    t.must("tasks", "start", "-d", "c1")
    t.equal(t.exec("c1", "ls", "/kept").code, 1)
    t.equal(t.exec("c1", "ls", "/etc/group").out, "/etc/group\n")


@e2e.test("a read-only root is neither kept nor discarded", runc=False)
def read_only(t):
    t.detach("--read-only", "c1", *FOREVER)
    t.equal(writes(t, "c1"), "read-only")
    t.match("Read-only file system", t.exec("c1", "touch", "/f").err)


@e2e.test("ordinary programs work on a root that is kept; what does not is known", images=("roots",))
def rules(t):
    ways = {"host": ON_HOST} if t.is_runc else {"auto": KEPT, "scratch": DISCARDED}
    for way, expected in ways.items():
        if not t.is_runc:
            t.config(rootfs=way)
        container = f"c-{way}"
        t.detach("--allow-new-privs", container, *FOREVER)
        lines = t.exec(container, "rootprobe", "rules", "/rules").out.splitlines()
        broken = [line for line in lines if not line.endswith(": ok")]
        t.equal({line.split(":")[0] for line in broken}, expected, "\n".join(broken))
        t.check(len(lines) > 35, "all rules were tried", len(lines))

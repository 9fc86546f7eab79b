"""User namespaces: pods with hostUsers: false, ctr run --uidmap, and what only a shim called by hand
can be sent."""

import glob
import os
import re
import shutil

import archives
import cri
import members
import test_layers
from e2e import test
from pod import pod_test
from shimcall import INVALID, UNIMPLEMENTED, Shim, Status, text
from test_roots import erofs, mounts, typed

BASE, SIZE = 300000, 65536
IDS = [{"host_id": BASE, "container_id": 0, "length": SIZE}]
USERNS = {"mode": cri.POD, "uids": IDS, "gids": IDS}
MAP = ["0", str(BASE), str(SIZE)]
OCI = [{"containerID": 0, "hostID": BASE, "size": SIZE}]
OPTIONS = (f"uidmap=0:{BASE}:{SIZE}", f"gidmap=0:{BASE}:{SIZE}")


def owner(path):
    st = os.lstat(path)
    return st.st_uid, st.st_gid


# ---------------------------------------------------------------- by the CRI

def folders(t):
    """What the kubelet has made: a volume, one that is not mapped, a secret, an emptyDir."""
    where = {name: os.path.join(t.work, path) for name, path in (
        ("rw", "volume"), ("raw", "raw"), ("secret", "secret"),
        ("empty", "pods/uid/volumes/kubernetes.io~empty-dir/data"))}
    for path in where.values():
        os.makedirs(path, 0o755)
    os.chown(where["raw"], BASE, BASE)
    os.chown(where["empty"], 0, 2000)
    os.chmod(where["empty"], 0o2777)
    t.write("secret/key", "secret\n", 0o400)
    return {**where, "log": t.write("termination-log", "", 0o644)}


def volume(to, path, **more):
    return {"container_path": to, "host_path": path, "uidMappings": IDS, "gidMappings": IDS, **more}


def check_volumes(t, a, b, where):
    a.sh("echo x >/rw/root && mkdir /rw/d && chown 1000:1001 /rw/d && ln -s root /rw/link && "
         "echo y >/raw/f && echo ended >/dev/termination-log")
    b.sh("echo z >/rw/d/user")
    t.equal([owner(os.path.join(where["rw"], n)) for n in ("root", "d", "link", "d/user")],
            [(0, 0), (1000, 1001), (0, 0), (1000, 1000)], "ids on the host")
    t.equal(owner(os.path.join(where["raw"], "f")), (BASE, BASE), "ids of what is not mapped")
    t.equal(a.sh("cd /rw; stat -c '%u %g' . root d link d/user /raw /raw/f /dev/termination-log"),
            "0 0\n0 0\n1000 1001\n0 0\n1000 1000\n0 0\n0 0\n0 0\n")
    t.check(a.exec("chown", str(SIZE), "/rw/root").code != 0, "an id that is not mapped was set")
    t.equal(a.sh("cat /secret/key"), "secret\n")
    t.check(a.exec("touch", "/secret/new").code != 0, "a read-only volume was written to")
    t.check(b.exec("cat", "/secret/key").code != 0, "another user read root's secret")
    t.equal(b.sh("stat -c '%u %g %a' /empty && echo e >/empty/f && stat -c '%u %g' /empty/f"),
            "0 2000 2777\n1000 2000\n")
    a.sh("rm /empty/f && touch /dev/shm/x /etc/hosts /etc/hostname && "
         "stat -c %u /etc/hosts /etc/hostname /etc/resolv.conf /dev/shm | grep -v ^0$ && exit 1; :")
    t.equal(b.sh("stat -c %u /dev/shm/x"), "0\n")


@pod_test("user namespaces: two containers, volumes, exec, stdio, network; ids on the host and in the "
          "VM", versions=("2.1",), both=True)
def pod_of_two(t):
    where = folders(t)
    own = {"namespace_options": {"userns_options": USERNS}}
    volumes = [volume("/rw", where["rw"]), volume("/secret", where["secret"], readonly=True),
               volume("/empty", where["empty"]), volume("/dev/termination-log", where["log"]),
               {"container_path": "/raw", "host_path": where["raw"]}]
    pod = t.pod("p1", namespaces={"userns_options": USERNS})
    a = pod.run("a", "sh", "-c", "echo first >/dev/stdout; exec sleep 100000", mounts=volumes,
                working_dir="/made/here", linux={"security_context": {
                    **own, "capabilities": {"add_capabilities": ["NET_ADMIN"]}}})
    b = pod.run("b", "sh", "-c", "tty; exec sleep 100000", tty=True, mounts=volumes, linux={
        "security_context": {**own, "run_as_user": {"value": 1000}}})
    a.await_log("first")
    b.await_log("/dev/(pts|console)")
    for c in (a, b):
        t.equal(c.sh("cat /proc/self/uid_map /proc/self/gid_map").split(), MAP * 2)
    for kind in ("user", "net", "ipc", "uts"):
        t.equal(a.sh(f"readlink /proc/self/ns/{kind}"), b.sh(f"readlink /proc/self/ns/{kind}"))
    t.equal(a.sh("id -u; touch /new; chown 7:8 /new; stat -c '%u %g' / /bin/busybox /new /made/here; "
                 "echo second >/dev/stdout"), "0\n0 0\n0 0\n7 8\n0 0\nsecond\n")
    t.check(a.exec("mknod", "/node", "c", "1", "3").code != 0, "it is root of the VM")
    check_volumes(t, a, b, where)
    t.match(rf"inet {pod.ip}/", a.sh("ip -o addr"))
    t.equal(a.sh("ls /sys/class/net").split(), ["eth0", "lo"])
    a.sh("ip link set lo mtu 1400")  # the network is the user namespace's own
    if not t.is_runc:
        r = t.lcow("exec", "--vm", pod.id, "--", "sh", "-c", "for p in /proc/[0-9]*; do "
                   "[ \"$(cat $p/comm)\" = sleep ] && stat -c %u $p; done; :")
        t.equal(set(r.out.split()), {str(BASE), str(BASE + 1000)}, r)
    a.stop()
    with open(where["log"]) as f:
        t.equal(f.read(), "ended\n")


# ---------------------------------------------------------------- by ctr

SCRIPT = ("cat /proc/self/uid_map; touch /new; stat -c %u / /bin/busybox /new /etc/hosts; "
          "echo more >>/etc/hosts; ip -o link | wc -l")


@test("ctr run --uidmap: owners that containerd has changed, and layers that are mapped",
      prepare=test_layers.small, runc=False, versions=("2.1",))
def by_ctr(t):
    for name, *more in (("labels", "--remap-labels"), ("erofs", "--snapshotter=erofs")):
        r = t.run(f"--uidmap=0:{BASE}:{SIZE}", f"--gidmap=0:{BASE}:{SIZE}", *more, name, "sh", "-c",
                  SCRIPT)
        t.equal((r.code, r.out.split()), (0, MAP + ["0"] * 4 + ["1"]), f"{name}: {r}")
    kept = glob.glob(f"{t.work}/c/**/snapshots/*/fs/new", recursive=True)
    t.equal([owner(path) for path in kept], [(BASE, BASE)] * 2, "in the snapshots")


# ---------------------------------------------------------------- by hand

def userns(document, uids=OCI, gids=OCI, user=True):
    linux = document["linux"]
    linux["namespaces"] += [{"type": "user"}] if user else []
    linux.update({key: m for key, m in (("uidMappings", uids), ("gidMappings", gids)) if m})
    return document


def line(inside, outside, size):
    return {"containerID": inside, "hostID": outside, "size": size}


NO_LINES = ("OCI spec: linux.namespaces has a user namespace, but linux.uidMappings and "
            "linux.gidMappings are missing")


@test("user namespaces: each error of a mapping is one of Create, before a VM is made", images=(),
      runc=False, versions=("2.1",))
def refused(t):
    shim = Shim(t, "c1")
    shim.start()
    for how, message in (
            ({"uids": None, "gids": None}, NO_LINES),
            ({"user": False}, "OCI spec: linux.uidMappings is set, but linux.namespaces has no user "
                              "namespace"),
            ({"gids": None}, "OCI spec: linux: gidMappings is empty"),
            ({"uids": [line(0, 1000, 0)]}, "OCI spec: linux: uidMappings[0] has size 0"),
            ({"uids": [line(0, 1000, 9), line(8, 5000, 1)]},
             "OCI spec: linux: uidMappings[1] overlaps uidMappings[0]"),
            ({"gids": [line(0, 4294967000, 1000)]},
             "OCI spec: linux: gidMappings[0]: its ids exceed 4294967294"),
            ({"gids": [line(i, i, 1) for i in range(340)]},
             "OCI spec: linux: gidMappings has 340 lines, at most 339")):
        shim.spec(userns(shim.document(), **how))
        try:
            shim.create()
            t.check(False, f"not refused: {message}")
        except Status as e:
            t.equal(e.code, INVALID, e.message)
            t.words(f"^{re.escape(f'create container c1: {message}')}$", e.message)
    t.explains("c1", "INVALID_ID_MAPPING")
    t.equal(t.qemu_pids(), [])


def tree(t):
    """A root in which a shell runs; a file of another user."""
    top = os.path.join(t.work, "root")
    for name in ("bin", "proc", "dev", "sys"):
        os.makedirs(os.path.join(top, name))
    shutil.copy(archives.STATIC, os.path.join(top, "bin/busybox"))
    for name in ("sh", "sleep", "cat", "stat", "touch"):
        os.symlink("busybox", os.path.join(top, "bin", name))
    os.chown(t.write("root/user", "u\n"), 1000, 1001)
    return top


@test("user namespaces by hand: a directory and erofs layers that are mapped; a mapping that is not "
      "the pod's, a file system that cannot be mapped, other ids of the root", images=(), runc=False,
      versions=("2.1",))
def by_hand(t):
    top = tree(t)
    bind = mounts(("bind", top, "rbind", "rw", *OPTIONS))
    shim = Shim(t, "p1")
    document = userns(shim.document())
    document["annotations"] = {members.GROUP: "p1", members.KIND: "sandbox"}
    shim.spec(document)
    shim.start()
    shim.call("Create", text(1, "p1"), text(2, shim.bundle), bind)
    shim.call("Start", text(1, "p1"))

    def member(name, rootfs, *args, more=(), **how):
        d = userns(shim.document(), **how)
        d["process"]["args"] = args or ["true"]
        d["mounts"] += more
        return members.Member(shim, name, d, rootfs)

    def fails(m, code, message):
        try:
            m.create()
            t.check(False, f"not refused: {message}")
        except Status as e:
            t.equal(e.code, code, e.message)
            t.words(f"^{re.escape(f'create container {m.name}: {message}')}$", e.message)
    script = ("sh", "-c", "touch /mine; stat -c '%u %g' / /bin /user /mine; cat /proc/self/uid_map")
    layers = typed(erofs(t, "top.img", top), overlay=OPTIONS)
    want = ["0", "0"] * 2 + ["1000", "1001"] + ["0", "0"] + MAP
    for name, rootfs in (("bind", bind), ("erofs", layers)):
        code, out = member(name, rootfs, *script).run()
        t.equal((code, out.decode().split()), (0, want), name)
    other = [line(0, 500000, SIZE)]
    fails(member("w", bind, uids=other), INVALID,
          f"container w: its user namespace (uids 0:500000:{SIZE}, gids 0:{BASE}:{SIZE}) differs from "
          f"that of pod p1 (uids 0:{BASE}:{SIZE}, gids 0:{BASE}:{SIZE}): a pod has one mapping")
    fails(member("v", bind, more=[{"destination": "/v", "type": "bind", "source": "/proc/self/net",
                                   "options": ["rbind", "idmap"]}]), UNIMPLEMENTED,
          "mount /proc/self/net on /v: /proc/self/net cannot be id-mapped: the kernel cannot do this "
          "for its file system, or it is id-mapped already; use another file system, such as ext4, "
          "xfs or btrfs")
    fails(member("r", mounts(("bind", top, "rbind", "rw", "uidmap=0:1:9", "gidmap=0:1:9"))), INVALID,
          "root file system: its ids (uidmap=0:1:9, gidmap=0:1:9) differ from the container's user "
          f"namespace (uids 0:{BASE}:{SIZE}, gids 0:{BASE}:{SIZE})")

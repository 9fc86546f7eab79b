"""Layers of the overlayfs snapshotter that become images: the first container gets a share, later
ones disks, and both see the same."""

import glob
import json
import os
import re
import socket
import stat
import subprocess
import time

import cell
import members
import packages
from e2e import test
from test_roots import Pod, fill, mounts
from test_layers import CHANGE, CHANGED, LOOK, SEEN, disks, end, probe, small_files, unpack

FOREVER = ("sleep", "100000")
SNAPSHOTTER = "--snapshotter=overlayfs"
# Owners, modes, sizes, times and targets of all that is not a kernel's own.
TREE = r"""cd / && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./etc \
 -o -path ./small \) -prune -o -exec stat -c '%n %f %u %g %s %Y %h %N' {} + | grep -v '^\./* \|^\. ' | sort"""


def layer_test(name, **how):
    return test(name, runc=False, images=(), versions=("2.1",), **{"deadline": 600, **how})


def images(t):
    return sorted(glob.glob(os.path.join(t.work, "layers", "[0-9a-f]*", "image")))


def layers(t, *args):
    r = t.lcow("layers", *args, "--json")
    return r.code, json.loads(r.out)


def await_images(t, n):
    t.until(lambda: len(images(t)) == n and not glob.glob(
        os.path.join(t.work, "layers", ".new-*")), f"{n} layer images", 300)


def root_types(t, container):
    """How many erofs images the guest has mounted, and how many shares."""
    r = t.lcow("exec", "--vm", container, "--", "cat", "/proc/mounts")
    t.equal(r.code, 0, r)
    mounts = [line.split() for line in r.out.splitlines()]
    return (sum(m[2] == "erofs" for m in mounts),
            sum(m[2] == "9p" and bool(re.search("/[0-9]+$", m[1])) for m in mounts))


def look(t, container):
    r = t.exec(container, "sh", "-c", LOOK)
    t.equal((r.code, r.out), (0, SEEN), r)
    t.equal(probe(t, container, "tree", "/small"), small_files())
    r = t.exec(container, "sh", "-c", TREE)
    t.equal(r.code, 0, r)
    # Sizes of directories are their file system's.
    return [re.sub(r"^(\S+ 4\w{3} \d+ \d+) \d+ (\d+) \d+", r"\1 \2", line)
            for line in r.out.splitlines()]


@layer_test("layer images: the first container gets a share, the second disks, and both see the same")
def second(t):
    t.config(rootfs="scratch", layer_images="auto")
    unpack(t, "overlayfs", "files")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    found, shares = disks(t, "c1")
    t.equal((found, shares), ({}, 1))
    t.equal(root_types(t, "c1"), (0, 1))
    before = look(t, "c1")
    await_images(t, 3)
    t.detach(SNAPSHOTTER, "c2", *FOREVER)
    found, shares = disks(t, "c2")
    t.equal(([d for d in found.values()], shares), ([(True, 1)] * 3, 0), f"{found}")
    t.equal(sorted(found), images(t))
    t.equal(root_types(t, "c2"), (3, 0))
    t.equal(look(t, "c2"), before)
    r = t.exec("c2", "sh", "-c", CHANGE)
    t.equal((r.code, r.out), (0, CHANGED), r)
    end(t, "c1")
    code, docs = layers(t, "verify")
    t.equal((code, [d["good"] for d in docs]), (0, [True] * 3), f"{docs}")
    t.config(layer_images_max_mib=1)
    t.equal((layers(t, "prune"), len(images(t))), ((0, []), 3), "QEMU has them open")
    end(t, "c2")
    t.equal(layers(t, "prune")[0], 0)
    t.check(len(images(t)) < 3, f"{images(t)}")


@layer_test("layer images: always waits for them; a damaged one is ignored and made again; "
            "a snapshot that is gone takes its image along")
def damaged(t):
    t.config(rootfs="scratch", layer_images="always")
    unpack(t, "overlayfs", "whiteouts")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    t.equal(root_types(t, "c1"), (3, 0))
    r = t.exec("c1", "sh", "-c", "ls data opaque; test -e tree; echo $?")
    t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)
    end(t, "c1")
    bad = images(t)[1]
    os.chmod(bad, 0o600)
    with open(bad, "r+b") as f:
        f.seek(1024)
        f.write(b"damaged")
    code, docs = layers(t, "ls")
    t.equal((code, [d["good"] for d in docs].count(False)), (1, 1), f"{docs}")
    t.detach(SNAPSHOTTER, "c2", *FOREVER)
    t.equal(root_types(t, "c2"), (3, 0))
    t.equal([d["good"] for d in layers(t, "verify")[1]], [True] * 3)
    end(t, "c2")
    for name in ("c1", "c2"):
        t.must("containers", "rm", name)
    t.must("images", "rm", "--sync", t.image)
    t.until(lambda: layers(t, "prune")[0] == 0 and not images(t), "no image of a snapshot", 120)


@layer_test("layer images: what was written earlier is seen: a snapshot with files of its own is "
            "shared, and kept containers are")
def kept(t):
    t.config(layer_images="always")
    unpack(t, "overlayfs", "whiteouts")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    t.equal(root_types(t, "c1")[0], 0)
    t.equal(t.exec("c1", "sh", "-c", "rm -r data; echo mine >/mine").code, 0)
    end(t, "c1")
    t.config(rootfs="scratch", layer_images="always")
    t.must("tasks", "start", "-d", "c1")
    t.equal(root_types(t, "c1"), (0, 1))
    r = t.exec("c1", "sh", "-c", "cat /mine; test -e data; echo $?")
    t.equal((r.code, r.out), (0, "mine\n1\n"), r)


@layer_test("layer images: with layer_verity the guest verifies each block, and inspect has the "
            "root hashes")
def verified(t):
    t.config(rootfs="scratch", layer_images="always", layer_verity=True)
    unpack(t, "overlayfs", "whiteouts")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    t.equal(root_types(t, "c1"), (3, 0))
    hashes = {d["key"]: d["header"]["root_hash"] for d in layers(t, "ls")[1]}
    t.check(all(len(h) == 64 for h in hashes.values()), f"{hashes}")
    shown = json.loads(t.lcow("inspect", "c1").out)["vm"]["disks"]
    t.equal(sorted(d["root_hash"] for d in shown if d["path"] != "(scratch)"),
            sorted(hashes.values()))
    r = t.lcow("exec", "--vm", "c1", "--", "cat", "/proc/mounts")
    t.equal(sum(l.startswith("/dev/dm-") or "/dev/mapper/" in l.split()[0]
                for l in r.out.splitlines() if l.split()[2] == "erofs"), 3, r)


@layer_test("layer images: a layer for which there is no space stays a share, with a warning")
def fallback(t):
    t.config(rootfs="scratch", layer_images="always", layer_images_max_mib=1)
    unpack(t, "overlayfs", "files")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    kinds = root_types(t, "c1")
    t.equal(kinds, (0, 1))
    t.equal(probe(t, "c1", "tree", "/small"), small_files())
    t.words("could not make images of all layers", t.containerd.log)


@layer_test("layer images: one that the guest cannot mount is shared, removed, and made again later")
def rotten(t):
    t.config(rootfs="scratch", layer_images="always")
    unpack(t, "overlayfs", "whiteouts")
    t.detach(SNAPSHOTTER, "c1", *FOREVER)
    t.equal(root_types(t, "c1"), (3, 0))
    end(t, "c1")
    bad = images(t)[1]
    was = os.stat(bad)
    os.chmod(bad, 0o600)
    with open(bad, "r+b") as f:
        f.seek(1024)
        f.write(b"rot!")  # where the superblock's magic number was
    os.chmod(bad, stat.S_IMODE(was.st_mode))
    os.utime(bad, ns=(was.st_atime_ns, was.st_mtime_ns))
    t.equal([d["good"] for d in layers(t, "ls")[1]], [True] * 3)
    t.detach(SNAPSHOTTER, "c2", *FOREVER)
    t.equal(root_types(t, "c2"), (0, 1))
    r = t.exec("c2", "sh", "-c", "ls data opaque; test -e tree; echo $?")
    t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)
    t.words("the VM could not use a layer image", t.containerd.log)
    t.check(bad not in images(t) and len(images(t)) == 2, f"{images(t)}")
    end(t, "c2")
    failure, = glob.glob(os.path.join(t.work, "layers", "failed-*"))
    then = time.time() - 700
    os.utime(failure, (then, then))
    t.detach(SNAPSHOTTER, "c3", *FOREVER)
    t.equal(root_types(t, "c3"), (3, 0))


@layer_test("layer images: two pods start at the same time, wait for them, and each is built once")
def twice(t):
    t.config(rootfs="scratch", layer_images="always")
    unpack(t, "overlayfs", "whiteouts")
    running = [t.start_run("-d", SNAPSHOTTER, name, *FOREVER) for name in ("c1", "c2")]
    for r in running:
        t.equal(r.wait(240).code, 0)
    for name in ("c1", "c2"):
        r = t.exec(name, "sh", "-c", "ls data opaque; test -e tree; echo $?")
        t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)
        t.equal(root_types(t, name), (3, 0))
    t.equal(len(images(t)), 3)
    made = re.findall(r" key=(\w+)\S* path=\S+ bytes=\d+\S* took=", t.containerd.log)
    t.equal((len(made), len(set(made))), (3, 3), f"{made}")


def odd_layers(t):
    """Two layers, topmost first: all that a layer may have in it, and what hides files below."""
    low, top = fill(os.path.join(t.work, "snapshots/1/fs")), os.path.join(t.work, "snapshots/2/fs")
    probe_path = os.path.join(low, "bin/fsprobe")
    subprocess.run(["gcc", "-O1", "-static", "-o", probe_path,
                    os.path.join(packages.HERE, "fsprobe.c")], check=True)
    odd = os.path.join(low, "odd")
    os.mkdir(odd)

    def put(name, data=b"x"):
        path = os.path.join(os.fsencode(odd), name)
        with open(path, "wb") as f:
            f.write(data)
        return path
    for name in (b" ", b"new\nline", b"tab\t", b"\xff\xfe", "\u00e4\u4e2d".encode(), b"\\:,=", b"-n",
                 b"'\"", b"n" * 254, b".hidden", b"*?["):
        put(name, name)
    for byte in set(range(1, 256)) - {ord("/")}:  # alone, unless that is a name of its own
        put(bytes([byte]) if byte != ord(".") else b"..dots", b"alone")
        put(b"in%cside" % byte, b"inside")
    for i, (owner, mode) in enumerate(((0, 0o4755), (4_000_000_000, 0o2750), (65534, 0o1777),
                                       (1000, 0))):
        path = put(b"mode%d" % i)
        os.chown(path, owner, owner)
        os.chmod(path, mode)
    first = put(b"link0", b"linked")
    for i in range(1, 300):
        os.link(first, os.path.join(os.fsencode(odd), b"link%d" % i))
    for name, kind, number in (("null", stat.S_IFCHR, (1, 3)), ("disk", stat.S_IFBLK, (259, 70000)),
                               ("fifo", stat.S_IFIFO, (0, 0))):
        os.mknod(os.path.join(odd, name), kind | 0o640, os.makedev(*number))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.join(odd, "socket"))
    for when, name in ((1, b"old"), (4_000_000_000, b"late"), (1_600_000_000, b"then")):
        os.utime(put(name), (when, when))
    path = put(b"attributes")
    for name, size in (("user.a", 1), ("user.empty", 0), ("trusted.large", 65535),
                       ("user.many", 3000)):
        os.setxattr(path, name, bytes(range(256)) * (size // 256) + b"v" * (size % 256))
    os.symlink("x" * 4000, os.path.join(odd, "far"))
    with open(os.path.join(odd, "sparse"), "wb") as f:
        f.truncate(64 << 20)
        f.seek(40 << 20)
        f.write(b"middle")
    put(b"large", bytes(range(256)) * 80_000)  # 20 MB
    put(b"nothing", b"")
    deep = odd
    for i in range(100):
        deep = os.path.join(deep, "deep")
        os.mkdir(deep)
    for name in ("opaque/below", "gone/inside", "stays/below", "file"):
        path = os.path.join(low, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write("low")
    os.makedirs(os.path.join(top, "opaque"))
    os.makedirs(os.path.join(top, "stays"))
    os.setxattr(os.path.join(top, "opaque"), "trusted.overlay.opaque", b"y")
    for name in ("gone", "file", "stays/never"):
        os.mknod(os.path.join(top, name), stat.S_IFCHR, 0)
    for name in ("opaque/above", "stays/above"):
        with open(os.path.join(top, name), "w") as f:
            f.write("top")
    return top, low, probe_path


@layer_test("layer images: the guest sees of odd names, owners, devices, links, attributes, sparse "
            "and large files what an overlay on the host shows")
def fidelity(t):
    memory = os.path.join(t.work, "memory")  # ext4 has no room for large attributes
    os.mkdir(memory)
    cell.mount("tmpfs", memory, "tmpfs")
    t.at_end(lambda: cell.umount(memory))
    work, t.work = t.work, memory
    try:
        top, low, probe_path = odd_layers(t)
    finally:
        t.work = work
    merged = os.path.join(t.work, "merged")
    os.mkdir(merged)
    cell.mount("overlay", merged, "overlay", 1, f"lowerdir={top}:{low}")
    try:
        wanted = subprocess.run([probe_path, "dump", merged], capture_output=True,
                                check=True).stdout
    finally:
        cell.umount(merged)
    t.config(rootfs="scratch", layer_images="always")
    pod = Pod(t)
    rootfs = mounts(("overlay", "overlay", "index=off", f"lowerdir={top}:{low}"))
    document = pod.document(args=("fsprobe", "dump", "/odd"))
    document["process"]["capabilities"] = {  # trusted attributes, and files without a right to read
        kind: ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"] for kind in ("bounding", "effective", "permitted")}
    probing = members.Member(pod.shim, "odd", document, rootfs)
    t.at_end(pod.drop, probing)
    code, out = probing.run()
    part = wanted.split(b"in odd\n", 1)[1]
    part = part[:part.index(b"in opaque\n")]
    seen, wanted = out.decode().splitlines(), part.decode().splitlines()
    t.equal((code, [p for p in zip(seen, wanted) if p[0] != p[1]], len(seen)), (0, [], len(wanted)))
    code, out = pod.member("rest", rootfs, args=(
        "sh", "-c", "ls / /opaque /stays; ls -d /gone /file 2>/dev/null")).run()
    t.equal(out.decode().split("/opaque:")[1].split(), ["above", "/stays:", "above", "below"])
    t.equal(len(images(t)), 2)
    shown = json.loads(t.lcow("inspect", "p1").out)["vm"]["disks"]
    t.equal(sum("/layers/" in d["path"] for d in shown), 0, "they were released")

"""Root file systems of every kind of snapshotter: directories (overlayfs, native), a block image of
its own (blockfile), layers that are block images (erofs)."""

import ctypes
import json
import os
import re
import stat
import struct
import subprocess
import tarfile

import archives
import e2e

KINDS = ("overlayfs", "native", "blockfile", "erofs")
SCRATCH = ("overlayfs", "erofs")  # what is written goes with the VM; native keeps it, a blockfile
                                  # is the container's own
BLOCKFILE = "io.containerd.snapshotter.v1.blockfile"
GROUP, KIND = "io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.container-type"
DEADLINE = 900  # images of hundreds of MiB, on a machine that does other things too
FOREVER = ("sleep", "100000")
ENCRYPTED = "io.microsoft.virtualmachine.storage.scratch.encrypted"
SECRET = "a secret of the guest"
MIB = 256  # written and read back; under emulation some 70 MB/s


def prepare(t, mib=MIB + 96):
    """blockfile copies a whole image for each layer; erofs leaves its layers mounted."""
    image = os.path.join(t.work, "blockfile.img")
    with open(image, "wb") as f:
        f.truncate(mib << 20)
    subprocess.run(["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1",
                    image], check=True)
    t.at_end(lambda: unmount_layers(t))
    return {"enable": (BLOCKFILE,), "more": f"""
[plugins."{BLOCKFILE}"]
scratch_file = "{image}"
fs_type = "ext4"
"""}


def small(t):
    return prepare(t, 64)


def unmount_layers(t):
    with open("/proc/self/mounts") as f:
        layers = [line.split()[1] for line in f if line.split()[2] == "erofs"]
    for path in reversed(layers):
        if path.startswith(os.path.join(t.work, "c/")):
            umount(path)


def umount(path):
    """Not the program, which keeps files in /run."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(path.encode(), 0) < 0:
        raise OSError(ctypes.get_errno(), f"umount {path}")


def end(t, container):
    t.must("tasks", "kill", "-s", "SIGKILL", container)
    t.await_status(container, "STOPPED")
    t.must("tasks", "rm", container)


def unpack(t, kind, image):
    local = () if t.version.startswith("1") else ("--local",)
    t.must("images", "import", *local, "--snapshotter", kind, archives.path(image))
    t.image = archives.name(image)


def disks(t, sandbox):
    """{path: (read-only, holders)} of all but the scratch disk, and the number of shares."""
    doc = json.loads(t.lcow("inspect", sandbox).out)
    return {d["path"]: (d["read_only"], d["holders"]) for d in doc["vm"]["disks"]
            if d["path"] != "(scratch)"}, len(doc["vm"]["shares"])


def probe(t, container, *args):
    """What fsprobe says, but for the time."""
    r = t.exec(container, "fsprobe", *args)
    t.equal(r.code, 0, r)
    return re.sub(r" us=\d+\s*$", "", r.out)


def changed(t, kind, key):
    """Names in the snapshot that are not in its image, as a commit would take them."""
    path = os.path.join(t.work, f"{kind}.diff")
    with open(path, "wb") as f:
        t.must("snapshots", "--snapshotter", kind, "diff", key, stdout=f)
    with tarfile.open(path) as tar:
        return {m.name for m in tar if m.isfile()}


# What the layers of the image say, seen from inside. One line each, so that a failure names it.
LOOK = """
echo data: $(ls data); echo gone: $(ls -d gone 2>/dev/null); echo opaque: $(ls opaque)
echo again: $(ls again)
echo links: $(stat -c %h links/a links/b) $(cat links/b links/s)
test "$(stat -c %i links/a)" = "$(stat -c %i links/b)" && echo same inode
echo modes: $(stat -c %a:%u:%g marks/setuid marks/setgid marks/sticky)
echo attr: $(fsprobe xattr marks/attr user.colour)
"""
SEEN = """data: stays
gone:
opaque: above
again: new
links: 2 2 linked linked
same inode
modes: 4755:1000:1000 2750:0:34 1777:0:0
attr: green
"""
# A layer's file is changed, deleted, and made again.
CHANGE = """
echo changed >> data/stays && rm -r opaque && mkdir opaque && ls -A opaque &&
ln links/a links/c && echo more >> links/c && rm links/a && mknod fifo p && echo new > /new &&
cat data/stays links/c && stat -c %F fifo && chown 7:8 marks/sticky && stat -c %a:%u marks/sticky
"""
CHANGED = "lower\nchanged\nlinked\nmore\nfifo\n1777:7\n"


def small_files():
    """What fsprobe must say of them."""
    total = bytes_ = 0
    for i in range(archives.SMALL_FILES):
        data = (f"file {i}\n" * (1 + i % 97)).encode()
        bytes_ += len(data)
        data += bytes(-len(data) % 8)
        for (word,) in struct.iter_unpack("<Q", data):
            total = ((total ^ word) * 1099511628211) % 2**64
    return f"files={archives.SMALL_FILES} bytes={bytes_} sum={total:016x}"


def layer_test(name, prepare=small):
    return e2e.test(name, deadline=DEADLINE, runc=False, images=(), versions=("2.1",),
                    prepare=prepare)


def declare(kind):
    @layer_test(f"{kind}: an image's files are right, many are read, much is written",
                prepare=prepare)
    def files(t):
        if kind in SCRATCH:
            t.config(rootfs="scratch")
        unpack(t, kind, "files")
        t.detach(f"--snapshotter={kind}", "c1", *FOREVER)
        r = t.exec("c1", "sh", "-c", LOOK)
        t.equal((r.code, r.out), (0, SEEN), r)
        t.equal(probe(t, "c1", "tree", "/small"), small_files())
        written = probe(t, "c1", "write", "/big", str(MIB))
        r = t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
        t.equal(r.code, 0, r)
        t.equal(probe(t, "c1", "read", "/big"), written)
        t.exec("c1", "rm", "/big")
        r = t.exec("c1", "sh", "-c", CHANGE)
        t.equal((r.code, r.out), (0, CHANGED), r)
        end(t, "c1")
        t.equal("new" in changed(t, kind, "c1"), kind not in SCRATCH)

    @layer_test(f"{kind}: two containers of one pod attach each layer once")
    def shared(t):
        unpack(t, kind, "whiteouts")
        for name, what in (("c1", "sandbox"), ("c2", "container")):
            t.detach(f"--snapshotter={kind}", f"--label={GROUP}=c1", f"--label={KIND}={what}",
                     name, *FOREVER)
            r = t.exec(name, "sh", "-c", "ls data opaque; test -e tree; echo $?; echo x > /mine")
            t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)
        found, shares = disks(t, "c1")
        if kind == "erofs":
            t.equal(sorted(found.values()), [(True, 2)] * 3, f"{found}")
            t.check(all(p.endswith("/layer.erofs") for p in found), f"{found}")
            t.equal(shares, 0)
        elif kind == "blockfile":
            t.equal(sorted(found.values()), [(False, 1)] * 2, f"{found}")
            t.equal(shares, 0)
        else:
            t.equal((found, shares), ({}, 2))
        end(t, "c2")
        found, shares = disks(t, "c1")
        t.equal([holders for _, holders in found.values()],
                {"erofs": [1] * 3, "blockfile": [1]}.get(kind, []))
        t.equal(t.exec("c1", "cat", "/mine").out, "x\n")


for each in KINDS:
    declare(each)


@layer_test("blockfile: what is not the snapshot's own file is refused by its name")
def exchanged(t):
    unpack(t, "blockfile", "static")
    t.must("containers", "create", "--snapshotter", "blockfile", "--runtime", t.runtime, t.image,
           "c1", "true")
    said = t.must("snapshots", "--snapshotter", "blockfile", "mounts", "/x", "c1").out
    path = re.search(r" (/\S+/snapshots/\d+) ", said).group(1)
    os.rename(path, path + ".kept")
    outside = os.path.join(t.work, "outside")
    with open(outside, "wb") as f:
        f.truncate(1 << 20)
    for make, pattern in ((lambda: None, "no such file|not found"),
                          (lambda: os.symlink(outside, path), "symbolic link"),
                          (lambda: os.mkfifo(path), "fifo"),
                          (lambda: os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 0)),
                           "is a device")):
        make()
        r = t.fails("tasks", "start", "c1", pattern=pattern)
        t.check(path in r.err, "the file is named", r)
        t.explains("c1", "LAYER_CHANGED" if os.path.lexists(path) else "ROOTFS_FAILED")
        if os.path.lexists(path):
            os.remove(path)
    os.rename(path + ".kept", path)
    t.equal(t.must("tasks", "start", "c1").code, 0)


def look_for(t, word):
    """In the scratch disk as the host has it: its bytes, and whether the word is among them."""
    paths = [os.path.join(at, n) for at, _, names in os.walk(
        os.path.join(t.env["TMPDIR"], "sandboxes")) for n in names]
    t.equal(len(paths), 1, f"scratch disks: {paths}")
    fd, end, size, found = os.open(paths[0], os.O_RDONLY), 0, 0, False
    try:
        while True:
            begin = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
            data = os.pread(fd, end - begin, begin)
            size, found = size + len(data), found or word in data
    except OSError:  # no data beyond: ENXIO
        return size, found
    finally:
        os.close(fd)


def scratch_bytes(t, sandbox):
    """{container: bytes}, as soon as the guest has answered for all of them."""
    def look():
        doc = json.loads(t.lcow("inspect", sandbox).out)
        used = {c["id"]: c["scratch_bytes"] for c in doc["containers"]}
        return used if None not in used.values() else None
    return t.until(look, "the use of the scratch disk to be known")


@e2e.test("a container beyond its quota leaves the scratch disk to the others", runc=False,
          versions=("2.1",))
def quota(t):
    t.config(scratch_quota_mib=32)
    for name, what in (("c1", "sandbox"), ("c2", "container")):
        t.detach(f"--label={GROUP}=c1", f"--label={KIND}={what}", name, *FOREVER)
    r = t.exec("c1", "dd", "if=/dev/zero", "of=/big", "bs=1M", "count=48")
    t.check(r.code != 0 and "quota exceeded" in r.err, "more than the quota is refused", r)
    r = t.exec("c2", "dd", "if=/dev/zero", "of=/big", "bs=1M", "count=16", "conv=fsync")
    t.equal(r.code, 0, r)
    used = scratch_bytes(t, "c1")
    t.check(30 << 20 <= used["c1"] <= 32 << 20, f"nearly all of it is in use: {used}")
    t.check(16 << 20 <= used["c2"] <= 20 << 20, f"one does not count for the other: {used}")
    t.equal(t.exec("c1", "sh", "-c", "rm /big && echo more > /small && cat /small").out, "more\n")
    t.until(lambda: scratch_bytes(t, "c1")["c1"] < 4 << 20, "what was removed is given back")
    end(t, "c2")
    # No VM is started: it could not hold the limit.
    r = t.run("--rm", f"--label={ENCRYPTED}=true", "c3", "true")
    t.check(r.code != 0, "refused with an encrypted disk", r)
    t.words("keeps no quotas", r.err, r)


@e2e.test("an encrypted scratch disk keeps no quotas: its use is unknown, a limit is refused",
          runc=False, versions=("2.1",))
def encrypted(t):
    t.config(allow_annotations="io.lcow.scratch_quota_mib")
    t.detach(f"--label={GROUP}=c1", f"--label={KIND}=sandbox", f"--label={ENCRYPTED}=true", "c1",
             *FOREVER)
    t.equal(t.exec("c1", "sh", "-c", f"yes {SECRET} | head -n 40000 > /mine && head -n 1 /mine").out,
            f"{SECRET}\n")
    r = t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "sync; grep -c '^/dev/dm-.* ext4 ' /proc/mounts")
    t.check(r.code == 0 and int(r.out) > 0, "a dm-crypt device is mounted", r)
    size, found = look_for(t, SECRET.encode())
    t.check(size > 40000 * len(SECRET), f"{size} bytes are on the host's disk")
    t.check(not found, "what the guest wrote can be read on the host")
    t.equal([c["scratch_bytes"] for c in json.loads(t.lcow("inspect", "c1").out)["containers"]],
            [None])
    r = t.run("--rm", f"--label={GROUP}=c1", f"--label={KIND}=container",
              "--label=io.lcow.scratch_quota_mib=32", "c2", "true")
    t.check(r.code != 0, "the guest refuses", r)
    t.words("scratch_quota_mib", r.err, r)
    t.equal(t.run("--rm", f"--label={GROUP}=c1", f"--label={KIND}=container", "c3", "true").code, 0)

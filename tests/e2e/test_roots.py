"""Root file systems and mounts that no snapshotter or client here can be made to send: by the
shim's Task service, in one pod."""

import errno
import gzip
import hashlib
import json
import os
import shutil
import stat
import struct
import subprocess

import archives
import cell
import members
import packages
import peer
from e2e import test
from harness import Skip
from shimcall import INVALID, NOT_FOUND, Status, number, text

MIB = 1 << 20
UNKNOWN = 2   # the guest has few codes
LAYERS = 200  # as many as become disks
APPLETS = ("sh", "sleep", "cat", "dd", "grep", "head", "ls", "ln", "rm", "rmdir", "mkdir", "wc")
EROFS = os.path.join(packages.folder("erofs-utils"), "usr/bin/mkfs.erofs")
DISKS = os.path.join(packages.TOP, "tests/golden/disks")


def mounts(*entries):
    """containerd's list: (type, source, option…) each."""
    return b"".join(text(3, text(1, kind) + text(2, source) + b"".join(text(4, o) for o in options))
                    for kind, source, *options in entries)


def fill(folder):
    """A root in which a shell runs."""
    for name in ("bin", "proc", "dev", "sys"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    shutil.copy(archives.STATIC, os.path.join(folder, "bin/busybox"))
    for name in APPLETS:
        os.symlink("busybox", os.path.join(folder, "bin", name))
    return folder


def sparse(t, name, size):
    path = t.write(name, b"")
    os.truncate(path, size)
    return path


def ext4(t, name, folder):
    path = sparse(t, name, 8 * MIB)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", folder, path], check=True)
    return path


def erofs(t, name, folder):
    path = os.path.join(t.work, name)
    subprocess.run([EROFS, "-T0", "--quiet", path, folder], check=True, stdout=subprocess.DEVNULL)
    return path


def loop(t, path):
    r = subprocess.run(["losetup", "--find", "--show", path], capture_output=True, text=True)
    if r.returncode != 0:
        raise Skip(f"no loop devices here: {r.stderr.strip()}")
    device = r.stdout.strip()
    t.at_end(lambda: subprocess.run(["losetup", "--detach", device], check=True))
    return device


def xfs(t, name):
    """The golden image, with a root put into it by the host's kernel."""
    with gzip.open(os.path.join(DISKS, "xfs.img.gz")) as f:
        path = t.write(name, f.read())
    where = os.path.join(t.work, "mnt")
    os.mkdir(where)
    try:
        cell.mount(loop(t, path), where, "xfs")
    except OSError as e:
        if e.errno != errno.ENODEV:
            raise
        raise Skip("the host's kernel has no xfs to put files into the image with") from e
    try:
        fill(where)
    finally:
        cell.umount(where)
    return path


class Pod:
    def __init__(self, t):
        self.t, self.shim = t, members.pod(t)

    def document(self, *more, args=("sleep", "100000")):
        d = self.shim.document()
        d["process"]["args"] = list(args)
        d["mounts"] += [{"destination": to, "type": kind, "source": source, "options": ["rbind"]}
                        for kind, source, to in more]
        d["mounts"].append({"destination": "/nowhere", "type": "tmpfs"})  # has no source
        return d

    def member(self, name, rootfs, *more, **how):
        m = members.Member(self.shim, name, self.document(*more, **how), rootfs)
        self.t.at_end(self.drop, m)
        return m

    def drop(self, member):
        """What a test that failed has left; else there is nothing."""
        try:
            member.end()
        except Status:
            pass

    def sh(self, member, line):
        code, out = member.exec("sh", "-c", line)
        self.t.equal(code, 0, f"{line}: {out}")
        return out.decode()

    def refused(self, name, rootfs, code, *words, mount=()):
        """Create names what is wrong, and nothing is left of it."""
        m = self.member(name, rootfs, *mount)
        try:
            m.create()
        except Status as e:
            self.t.equal(e.code, code, e.message)
            for word in words:
                self.t.words(word, e.message)
        else:
            self.t.check(False, f"{name}: not refused")


def shared_things(t, pod, a, b):
    """Of a pod: a disk, and what only its VM has."""
    pod.sh(a, "echo a >/shared/f; echo b >/memory/f; mkdir /data/sub; "
              "printf word | dd of=/dev/xvda bs=1 seek=512 conv=fsync,notrunc 2>/dev/null")
    t.equal(pod.sh(b, "cat /shared/f /memory/f; ls /data; "
                      "dd if=/dev/xvda bs=1 skip=512 count=4 2>/dev/null"), "a\nb\nsub\nword")
    for m in (a, b):
        t.match(r"(?m)^\S+ /huge hugetlbfs \S*pagesize=2M", pod.sh(m, "cat /proc/mounts"))


def sub_path(t, pod, a, rootfs, folder):
    """A container puts a link where the kubelet's next mount goes."""
    os.mkdir(os.path.join(folder, "sub"))
    pod.sh(a, "rmdir /data/sub; ln -s /../../../.. /data/sub")
    pod.refused("link", rootfs, UNKNOWN, "a container has put a symbolic link into the path",
                mount=(("bind", os.path.join(folder, "sub"), "/sub"),))
    pod.sh(a, "rm /data/sub; mkdir /data/sub; echo inside >/data/sub/f")
    code, out = pod.member("again", rootfs, ("bind", os.path.join(folder, "sub"), "/sub"),
                           args=("cat", "/sub/f")).run()
    t.equal((code, out), (0, b"inside\n"))


@test("roots by hand: an xfs image and a block device, with a raw disk, sandbox://, sandbox-tmp:// "
      "and hugepages:// of two containers; a link in a subPath is refused", images=(), runc=False,
      versions=("2.1",))
def by_hand(t):
    root, raw = fill(os.path.join(t.work, "root")), sparse(t, "raw.img", MIB)
    folder = os.path.join(t.work, "pods/uid/volumes/kubernetes.io~empty-dir/data")
    os.makedirs(folder)
    device, disk = loop(t, ext4(t, "root.img", root)), xfs(t, "xfs.img")
    more = (("virtual-disk", raw, "blockdev:///dev/xvda"), ("bind", "sandbox://s", "/shared"),
            ("bind", "sandbox-tmp://t", "/memory"), ("bind", "hugepages://2M/h", "/huge"),
            ("bind", folder, "/data"))
    pod = Pod(t)
    a = pod.member("xfs", mounts(("xfs", disk, "loop", "rw")), *more).start()
    b = pod.member("device", mounts(("ext4", device, "discard")), *more).start()
    t.match(r"(?m)^\S+ / xfs rw", pod.sh(a, "cat /proc/mounts; echo new >/new"))
    t.match(r"(?m)^\S+ /nowhere tmpfs rw", pod.sh(a, "cat /proc/mounts"))
    t.match(r"(?m)^\S+ / ext4 rw", pod.sh(b, "cat /proc/mounts; echo new >/new"))
    shared_things(t, pod, a, b)
    sub_path(t, pod, a, mounts(("bind", root, "ro")), folder)
    t.equal(os.listdir(folder), ["sub"], "on the host")
    b.end()
    t.equal(pod.sh(a, "dd if=/dev/xvda bs=1 skip=512 count=4 2>/dev/null"), "word")
    a.end()
    with open(raw, "rb") as f:
        t.equal(f.read()[512:516], b"word")
    r = subprocess.run(["debugfs", "-R", "cat /new", device], capture_output=True, check=True)
    t.equal(r.stdout, b"new\n", "the device was written to")


def typed(*layers, upper="mkfs/ext4", more=(), overlay=()):
    """As containerd 2.2's erofs snapshotter gives it, topmost first. more: options of each layer,
    overlay: of what combines them."""
    n = len(layers)
    return mounts((upper, "/none/rwlayer.img", "X-containerd.mkfs.fs=ext4",
                   "X-containerd.mkfs.size=67108864", "rw", "loop"),
                  *(("erofs", layer, "ro", "loop", *more) for layer in layers),
                  ("format/mkdir/overlay", "overlay",
                   "X-containerd.mkdir.path={{ mount 0 }}/upper:0755",
                   "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
                   "workdir={{ mount 0 }}/work", "upperdir={{ mount 0 }}/upper",
                   f"lowerdir={{{{ overlay 1 {n} }}}}", *overlay))


def make_layers(t, n):
    """Topmost first: each says its number, and the same file anew."""
    made = [erofs(t, "layer.0", fill(os.path.join(t.work, "root")))]
    for i in range(1, n):
        t.write("one/top", f"{i}\n")
        t.write(f"one/layers/{i}", "")
        made.append(erofs(t, f"layer.{i}", os.path.join(t.work, "one")))
        os.remove(os.path.join(t.work, f"one/layers/{i}"))
    return made[::-1]


@test(f"typed mounts of containerd 2.2: {LAYERS} layers as disks, in their order; layers that are "
      "none are refused by their names; an image with nothing in it", images=(), runc=False,
      versions=("2.1",), deadline=900)
def typed_mounts(t):
    os.makedirs(os.path.join(t.work, "one/layers"))
    layers = make_layers(t, LAYERS)
    pod = Pod(t)
    for name, make, code, words in (
            ("missing", lambda p: None, NOT_FOUND, "[Nn]o such file"),
            ("folder", os.mkdir, INVALID, "is a directory, not the image"),
            ("node", lambda p: os.mknod(p, 0o600 | stat.S_IFBLK, os.makedev(7, 0)), INVALID,
             "is a device where the image"),
            ("text", lambda p: t.write("text", "x" * 8192), INVALID, "file system")):
        path = os.path.join(t.work, name)
        make(path)
        pod.refused(name, typed(layers[0], path, layers[-1]), code, path, words)
    os.mkdir(os.path.join(t.work, "void"))
    empty = pod.member("void", typed(erofs(t, "void.img", os.path.join(t.work, "void"))))
    try:
        empty.start()
    except Status as e:
        t.match("sleep", e.message)
    else:
        t.check(False, "a program that is not there runs")
    code, out = pod.member("many", typed(*layers), args=(
        "sh", "-c", "ls /layers | wc -l; cat /top; echo mine >/top; cat /top")).run()
    t.equal((code, out.decode().split()), (0, [str(LAYERS - 1), str(LAYERS - 1), "mine"]))


BLOCK = 4096


def add_verity(path, salt=bytes(32)):
    """Behind the image: the superblock and the tree as veritysetup writes them, and beside it the
    metadata of the erofs snapshotter. Returns the root hash."""
    def digest(block):
        return hashlib.sha256(salt + block).digest()

    def blocks(data):
        return [data[i:i + BLOCK] for i in range(0, len(data), BLOCK)]

    with open(path, "rb") as f:
        level = f.read()
    size, levels = len(level), []
    while len(level) > BLOCK:
        level = b"".join(map(digest, blocks(level)))
        level += bytes(-len(level) % BLOCK)
        levels.insert(0, level)
    superblock = struct.pack("<8sII16s32sIIQH6x256s", b"verity", 1, 1, bytes(16), b"sha256", BLOCK,
                             BLOCK, size // BLOCK, len(salt), salt)
    with open(path, "ab") as f:
        f.write(superblock.ljust(BLOCK, b"\0") + b"".join(levels))
    root = digest(level).hex()
    metadata(path, root, size)
    return root


def metadata(path, root, offset):
    with open(path + ".dmverity", "w", encoding="ascii") as f:
        json.dump({"roothash": root, "hashoffset": offset}, f)


def flip(path, word):
    with open(path, "r+b") as f:
        at = f.read().index(word)
        f.seek(at)
        f.write(bytes([word[0] ^ 1]))


@test("dm-verity of containerd's erofs snapshotter: a layer that is verified runs, a wrong root hash "
      "refuses the container and names the layer, a bit that was flipped is an I/O error",
      images=(), runc=False, versions=("2.1",))
def verity(t):
    folder = fill(os.path.join(t.work, "root"))
    t.write("root/word", "true content " * 1000)
    layer = erofs(t, "layer.erofs", folder)
    size = os.path.getsize(layer)
    root = add_verity(layer)
    named = (f"X-containerd.dmverity={layer}.dmverity",)
    pod = Pod(t)
    m = pod.member("good", typed(layer, more=named)).start()
    t.equal(pod.sh(m, "head -c 12 /word; echo mine >/mine; cat /mine"), "true contentmine\n")
    t.match(r"(?m) dm-0$", pod.sh(m, "cat /proc/partitions"))
    m.end()
    code, out = pod.member("single", mounts(("erofs", layer, "ro", "X-containerd.dmverity=on")),
                           args=("head", "-c", "12", "/word")).run()
    t.equal((code, out), (0, b"true content"))
    for name, digest, offset, words in (
            ("wrong", "ab" * 32, size, f"wrong root hash of the disk: it is {root}, must be abab"),
            ("short", "ab", size, "64 hex digits"),
            ("beyond", root, size * 1024, "invalid hashoffset")):
        metadata(layer, digest, offset)
        pod.refused(name, typed(layer, more=named), INVALID, "layer.erofs", words)
    os.remove(layer + ".dmverity")
    pod.refused("none", typed(layer, more=named), NOT_FOUND, "layer.erofs.dmverity")
    metadata(layer, root, size)
    flip(layer, b"true content " * 300)
    m = pod.member("flipped", typed(layer, more=named)).start()
    code, out = m.exec("sh", "-c", "cat /word 2>&1")
    t.check(code != 0 and b"Input/output error" in out and b"urue" not in out, f"{code} {out[-200:]}")
    m.end()
    m = pod.member("unverified", typed(layer)).start()
    t.equal(pod.sh(m, "head -c 12 /word"), "urue content", "as long as nothing is asked for")


def verified_layers(t):
    """Two, topmost first, each with its tree of hashes."""
    for n in ("1", "2", "upper"):
        os.mkdir(os.path.join(t.work, n))
    t.write("upper/word", "from above\n")
    layers = [erofs(t, "1/layer.erofs", os.path.join(t.work, "upper")),
              erofs(t, "2/layer.erofs", fill(os.path.join(t.work, "root")))]
    for layer in layers:
        add_verity(layer)
    return layers


@test("containerd 2.2 by a peer of our own: -info, start, a typed list with verified layers, streams, "
      "Shutdown and delete", images=(), runc=False, versions=("2.1",))
def peer_2_2(t):
    c = peer.Peer(t, "c1", "2.2")
    document = c.document()
    document["process"]["args"] = ["sh", "-c", "cat /word; echo mine >/word; cat /word; "
                                               "grep -c dm- /proc/partitions; exit 3"]
    c.start()
    task = c.task("c1", document, peer.erofs_mounts("/none/rwlayer.img", verified_layers(t)),
                  bundle=c.bundle)
    task.create()
    task.start()
    t.equal(task.wait(), (3, b"from above\nmine\n2\n"))
    task.delete()
    r = c.delete()
    t.equal((r.returncode, r.stderr), (0, b""), r)
    t.until(lambda: not os.path.exists(c.address), "the shim has left")
    c.forget()


@test("containerd 2.3 by a peer of our own: BootstrapParams with a socket directory, a sandbox with "
      "typed mounts, execs over streams without a reader or that end early", images=(), runc=False,
      versions=("2.1",))
def peer_2_3(t):
    layers = verified_layers(t)
    directory = f"/run/{t.tag}"[:40]
    s = peer.Peer(t, "s1", "2.3")
    t.at_end(lambda: os.path.isdir(directory) and os.rmdir(directory))
    os.unlink(os.path.join(s.bundle, "config.json"))  # CRI puts none there
    s.start(directory)
    s.sandbox("CreateSandbox", text(2, s.bundle))
    s.sandbox("StartSandbox")
    t.equal(s.sandbox("SandboxStatus")[3], b"SANDBOX_READY")
    document = s.document()
    document["annotations"] = {members.GROUP: "s1", members.KIND: "container"}
    c = s.task("c1", document, peer.erofs_mounts("/none/rwlayer.img", layers))
    c.create()
    c.start()
    t.equal(c.run("e1", "sh", "-c", "cat /word; exit 4"), (4, b"from above\n"))
    t.equal(c.run("e2", "cat", stdin=b"in and out " * 20000), (0, b"in and out " * 20000))
    slow = c.exec("e3", "sh", "-c", "head -c 10485760 /dev/zero", reads=False)
    t.equal(c.run("e4", "cat", "/word"), (0, b"from above\n"), "beside one without a reader")
    slow[2].grant()
    t.equal(c.end(slow), (0, bytes(10 << 20)))
    for name, mounts_, words in (
            ("view", [("erofs", layers[1], "ro", "loop", f"device={layers[0]}"),
                      ("format/bind", "{{ mount 0 }}", "ro", "rbind")], "unsupported option .device=/"),
            ("empty", [("mkfs/ext4", "/none/rwlayer.img", "X-containerd.mkfs.fs=ext4",
                        "X-containerd.mkfs.size=67108864", "rw", "loop"),
                       ("format/mkdir/bind", "{{ mount 0 }}/upper",
                        "X-containerd.mkdir.path={{ mount 0 }}/upper:0755", "rw", "rbind")],
             '"format/mkdir/bind" is not supported in a list of images')):
        refused = s.task(name, document, mounts_)
        try:
            refused.create()
        except Status as e:
            t.equal(e.code, INVALID)
            t.words(words, e.message)
        else:
            t.check(False, f"{name}: not refused")
        refused.out.wait()  # what waits for its output sees the end
    c.call("Kill", number(3, 9))
    t.equal(c.wait(), (137, b""))
    c.delete()
    t.equal(s.sandbox("SandboxStatus")[3], b"SANDBOX_READY")
    s.sandbox("StopSandbox")
    s.sandbox("ShutdownSandbox")
    t.equal(s.delete().returncode, 0)
    t.until(lambda: not os.path.exists(s.address), "the shim has left")
    s.forget()

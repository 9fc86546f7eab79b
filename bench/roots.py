#!/usr/bin/python3 -B
"""Root file systems of each kind of snapshotter in a VM: how long a container takes to start, how
fast ten thousand small files and a large one are read, and 256 MiB are written (with fsync) and read
back; beside QEMU's own virtio-9p with the same msize and a disk, with and without a file system, in a
VM without lcow. Every read is from outside the guest's cache. Also alone:

    bench/roots.py [RUNS]

"overlayfs images" is the overlayfs snapshotter with layer_images: its images exist before the first start
that is measured.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import cells  # first: it sets the path of the others
import archives
import packages
import storage
import test_layers
from stats import summary

IMAGES = "overlayfs images"
KINDS = ("overlayfs", IMAGES, *test_layers.KINDS[1:])  # a share and its images one after the other
RAW = ("raw 9p", "raw ext4", "raw disk")
SMALL_FILES = 10_000
LARGE = 64 << 20
WRITE_MIB = 256
IMAGE = "bulk"
PROBE = os.path.join(archives.FOLDER, "fsprobe")
DROP = "sync; echo 3 > /proc/sys/vm/drop_caches"
MEBI = 1 << 20


def small_files():
    """(path, content) of each."""
    for i in range(SMALL_FILES):
        yield f"small/{i // 250:02}/{i % 250:03}", f"file {i}\n" * (1 + i % 97)


def make_image():
    """static, fsprobe, ten thousand small files and one large one, in one layer."""
    if os.path.exists(archives.path(IMAGE)) and os.path.exists(PROBE):
        return
    layer = archives._base(archives.STATIC)
    layer.file("bin/fsprobe", archives._compile(os.path.join(packages.HERE, "fsprobe.c")), 0o755)
    for path, content in small_files():
        layer.file(path, content)
    layer.file("large", os.urandom(1 << 20) * (LARGE >> 20))
    archives._write(IMAGE, [layer.bytes()])


def figures(text):
    """(files, bytes, microseconds) of what fsprobe printed."""
    found = dict(re.findall(r"(\w+)=(\w+)", text))
    return int(found["files"]), int(found["bytes"]), int(found["us"])


def probe(t, container, *args):
    r = t.exec(container, "fsprobe", *args)
    t.equal(r.code, 0, r)
    return figures(r.out)


def snapshotter(kind):
    return kind.split()[0]


def one(t, kind, name):
    """A VM of its own."""
    def cold():
        r = t.lcow("exec", "--vm", name, "--", "sh", "-c", DROP)
        t.equal(r.code, 0, r)

    t.config(layer_images="always" if kind == IMAGES else "off")
    begin = time.monotonic()
    t.detach(f"--snapshotter={snapshotter(kind)}", name, *test_layers.FOREVER)
    found = {"root_start_ms": (time.monotonic() - begin) * 1e3}
    disks, shares = test_layers.disks(t, name)
    t.equal(shares, int(kind in ("overlayfs", "native")), f"{disks}")
    cold()
    files, _, us = probe(t, name, "tree", "/small")
    t.equal(files, SMALL_FILES)
    found["root_files_s"] = files / us * 1e6
    cold()
    _, size, us = probe(t, name, "read", "/large")
    found["root_read_mb_s"] = size / us
    _, size, us = probe(t, name, "write", "/new", str(WRITE_MIB))
    t.equal(size, WRITE_MIB * MEBI)
    found["root_write_mb_s"] = size / us
    cold()
    _, size, us = probe(t, name, "read", "/new")
    t.equal(size, WRITE_MIB * MEBI)
    found["root_back_mb_s"] = size / us
    test_layers.end(t, name)
    t.must("containers", "rm", name)
    return found


def measure(t, runs):
    """{kind: {figure: summary}}; the kinds are measured in turns, and a failure affects only its kind."""
    values, troubles = {}, []
    for kind in KINDS:
        if kind != IMAGES:
            test_layers.unpack(t, kind, IMAGE)
    t.config(layer_images="always")
    t.must(*t.run_args("--rm", "--snapshotter=overlayfs", "builds", "true"))
    for n in range(runs):
        for kind in KINDS:
            try:
                found = one(t, kind, f"{kind.replace(' ', '-')}{n}")
            except Exception as e:  # reported; the other kinds continue
                troubles.append(f"{kind}: {type(e).__name__}: {e}"[:500])
                continue
            for key, value in found.items():
                values.setdefault(kind, {}).setdefault(key, []).append(value)
    result = {kind: {key: summary(v) for key, v in found.items()}
              for kind, found in values.items()}
    return {**result, "troubles": troubles}


measure.images = ()
measure.prepare = functools.partial(test_layers.prepare, mib=2 * WRITE_MIB)


# ---------------------------------------------------------------- without lcow

RAW_WORK = r"""
for d in sda sdb; do case $(cat /sys/block/$d/size) in BARE) bare=/dev/$d;; *) tree=/dev/$d;; esac; done
mount -t ext4 $tree /disk || echo "raw: no disk"
for i in $(seq COUNT); do
    for where in mnt disk; do
        DROP; echo "$where-files $(/fsprobe tree /$where/small)"
        DROP; echo "$where-read $(/fsprobe read /$where/large)"
        echo "$where-write $(/fsprobe write /$where/new MIB)"
        DROP; echo "$where-back $(/fsprobe read /$where/new)"; rm /$where/new
    done
    echo "dev-write $(/fsprobe write $bare MIB)"
    DROP; echo "dev-back $(/fsprobe read $bare)"
done
umount /disk
"""


def raw(work, image, qemu, runs):
    """{peer: {figure: summary}} of a VM without lcow."""
    tree, disk, bare = (os.path.join(work, name) for name in ("tree", "tree.img", "bare.img"))
    for path, content in small_files():
        os.makedirs(os.path.join(tree, os.path.dirname(path)), exist_ok=True)
        with open(os.path.join(tree, path), "w", encoding="ascii") as f:
            f.write(content)
    with open(os.path.join(tree, "large"), "wb") as f:
        f.write(os.urandom(MEBI) * (LARGE // MEBI))
    for path, size in ((disk, 3 * WRITE_MIB), (bare, WRITE_MIB)):
        with open(path, "wb") as f:
            f.truncate(size * MEBI)
    subprocess.run(["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, disk], check=True)
    commands = RAW_WORK.replace("DROP", DROP).replace("COUNT", str(runs)).replace(
        "BARE", str(WRITE_MIB * MEBI // 512))  # the order of the disks is random
    try:
        text = storage.raw_vm(work, image, qemu, commands.replace("MIB", str(WRITE_MIB)), tree,
                              (disk, bare), (PROBE,))
    finally:
        shutil.rmtree(tree)
        os.unlink(disk)
        os.unlink(bare)
    found = {peer: {key: rates(text, f"{where}-{what}", what)
                    for what, key in (("files", "root_files_s"), ("read", "root_read_mb_s"),
                                      ("write", "root_write_mb_s"), ("back", "root_back_mb_s"))}
             for peer, where in zip(RAW, ("mnt", "disk", "dev"))}
    found = {peer: {key: s for key, s in one.items() if s} for peer, one in found.items()}
    if [len(found[peer]) for peer in RAW] != [4, 4, 2]:
        raise RuntimeError(f"a VM without lcow printed {text[-500:]!r}")
    return found


def rates(text, name, what):
    """files/s or MB/s of the lines of that name; None without any."""
    lines = re.findall(rf"^{name} (files=.*)$", text, re.MULTILINE)
    values = [(files / us * 1e6 if what == "files" else size / us)
              for files, size, us in map(figures, lines)]
    return summary(values) if values else None


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cells.prepare(["2.1"])
    make_image()
    result = cells.run("lcow", "2.1", measure, runs, template="off", rootfs="scratch")
    if isinstance(result, str):
        sys.exit(f"bench: error: {result}")
    for trouble in result.pop("troubles"):
        print(f"bench: {trouble}", file=sys.stderr)
    work = tempfile.mkdtemp(prefix="lcow-bench-")
    try:
        result |= raw(work, os.path.join(cells.TOP, "build/image"), "qemu-system-x86_64", runs)
    finally:
        shutil.rmtree(work)
    columns = ("root_start_ms", "root_files_s", "root_read_mb_s", "root_write_mb_s",
               "root_back_mb_s")
    print(f"{'':>18}" + "".join(f"{name:>16}" for name in columns))
    for peer, found in result.items():
        print(f"{peer:>18}" + "".join(f"{found[name]['median']:16.0f}" if name in found
                                      else f"{'–':>16}" for name in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())

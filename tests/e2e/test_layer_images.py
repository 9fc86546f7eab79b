"""Layers of the overlayfs snapshotter that become images: the first container gets a share, later
ones disks, and both see the same."""

import glob
import json
import os
import re

from e2e import test
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
    end(t, "c2")
    code, docs = layers(t, "verify")
    t.equal((code, [d["good"] for d in docs]), (0, [True] * 3), f"{docs}")


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
    t.match("could not make images of all layers", t.containerd.log)


@layer_test("layer images: two pods start at the same time and build each image once")
def twice(t):
    t.config(rootfs="scratch", layer_images="always")
    unpack(t, "overlayfs", "whiteouts")
    running = [t.start_run("-d", SNAPSHOTTER, name, *FOREVER) for name in ("c1", "c2")]
    for r in running:
        t.equal(r.wait(240).code, 0)
    for name in ("c1", "c2"):
        r = t.exec(name, "sh", "-c", "ls data opaque; test -e tree; echo $?")
        t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)
    await_images(t, 3)
    t.detach(SNAPSHOTTER, "c3", *FOREVER)
    t.equal(root_types(t, "c3"), (3, 0))

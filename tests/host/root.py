"""The disk of an emulated host: a Debian of its own packages, with systemd, a kernel with all its
modules, QEMU and containerd. Made once and kept in the cache; never written to afterwards.

    root.make(root.VARIANTS["kvm"])     # a directory with disk.img, vmlinuz, initrd.cpio
"""
import dataclasses
import fcntl
import glob
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(TOP, "image"))  # behind ours: it has tests too

import cpio  # noqa: E402
import inputs  # noqa: E402
import modules  # noqa: E402

CACHE = os.environ.get("LCOW_CACHE", os.path.join(TOP, "build/cache"))
DISK_MIB = 8192  # sparse
UNUSED_SECONDS = 86400
# What an initrd needs to find the disk.
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
# e2fsprogs, libjansson4, libprotobuf-c1 and QEMU are what the packages of lcow depend on.
# containerd comes by itself. The last two lines are what tests of containerd and pods run.
PACKAGES = ("systemd-sysv", "udev", "dbus", "kmod", "iproute2", "procps", "python3",
            "python3-protobuf", "ca-certificates", "qemu-system-x86", "libjansson4", "libprotobuf-c1",
            "e2fsprogs", "erofs-utils", "python3-hpack", "containernetworking-plugins", "iptables",
            "xfsprogs", "nftables", "strace")
AGENT_UNIT = """[Unit]
Description=commands of the test
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/bin/python3 /opt/agent.py
# Until udev has made the port.
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
"""
INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
while read -r m; do $B insmod /modules/$m.ko || echo "initrd: module $m not loaded"; done </modules/order
i=0
while [ ! -e /dev/vda ] && [ $i -lt 300 ]; do $B sleep 0.1; i=$((i+1)); done
$B mount -t ext4 -o noatime /dev/vda /root || { echo "initrd: no root"; $B sleep 5; $B poweroff -f; }
for d in proc sys dev; do $B mount -o move /$d /root/$d; done
exec $B switch_root /root /sbin/init
"""
# In the chroot: services do not start there, and apt needs no network.
INSTALL = """set -e
mount -t proc proc "$1/proc"
printf '#!/bin/sh\\nexit 101\\n' >"$1/usr/sbin/policy-rc.d"; chmod 755 "$1/usr/sbin/policy-rc.d"
chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \\
    sh -c 'apt-get install -qy --no-install-recommends /srv/debs/*.deb'
rm -rf "$1/usr/sbin/policy-rc.d" "$1/srv/debs" "$1"/var/cache/apt/*
chroot "$1" systemctl enable agent.service
chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer
"""


@dataclasses.dataclass
class Variant:
    name: str
    release: str = "bookworm"
    options: str = ""  # of its kernel


VARIANTS = {v.name: v for v in (
    Variant("kvm"),
    Variant("v1", options="systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"),
    Variant("trixie", release="trixie"),
)}


def make(variant):
    """The directory with the files, made if they are missing or their recipe has changed. Several trees
    may share the cache, so each recipe has its own; those that nobody has used for a day are removed."""
    folder = os.path.join(CACHE, f"host-{variant.release}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "made.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([os.path.join(TOP, "scripts/lib/debian-root"), "--into", os.path.basename(folder),
             "--release", variant.release, *PACKAGES])
        kernel = inputs.kernel_of(variant.release)[1]
        made = os.path.join(folder, "made-" + recipe(folder, kernel)[:12])
        if not os.path.exists(made):
            build(folder, kernel, made)
        os.utime(made)
        for other in glob.glob(os.path.join(folder, "made-*")):
            if os.path.getmtime(other) < time.time() - UNUSED_SECONDS:
                shutil.rmtree(other)
    return made


def recipe(folder, kernel):
    texts = [kernel.sha256]
    for path in (os.path.join(folder, "needs"), __file__, os.path.join(HERE, "agent.py")):
        with open(path) as f:
            texts.append(f.read())
    return inputs.sha256_of(*texts)


def build(folder, kernel, made):
    work, new = os.path.join(folder, "work"), os.path.join(folder, "new")
    for path in (work, new):
        shutil.rmtree(path, ignore_errors=True)
    os.mkdir(new)
    tree, root = os.path.join(work, "kernel"), os.path.join(work, "root")
    os.makedirs(root)
    inputs.unpack(kernel, tree)
    if not os.path.exists(os.path.join(tree, "lib")):
        os.symlink("usr/lib", os.path.join(tree, "lib"))  # as on a system of today
    release, = os.listdir(os.path.join(tree, "lib/modules"))
    shutil.copy(os.path.join(tree, "boot", "vmlinuz-" + release), os.path.join(new, "vmlinuz"))
    write_initrd(modules.Tree(tree, release), os.path.join(work, "modules"),
                 os.path.join(new, "initrd.cpio"))
    run(["tar", "-xf", os.path.join(folder, "base.tar"), "--numeric-owner", "-C", root])
    shutil.copytree(os.path.join(folder, "debs"), os.path.join(root, "srv/debs"))
    # /lib is a link to usr/lib there.
    shutil.copytree(os.path.join(tree, "lib/modules", release),
                    os.path.join(root, "usr/lib/modules", release), symlinks=True)
    put(root, "opt/agent.py", open(os.path.join(HERE, "agent.py")).read())
    put(root, "etc/systemd/system/agent.service", AGENT_UNIT)
    put(root, "etc/hostname", "host\n")
    put(root, "etc/hosts", "127.0.0.1 localhost host\n")
    put(root, "etc/fstab", "")
    log = os.path.join(folder, "install.log")
    print(f"# installing the emulated host's packages; log: {log}", flush=True)
    with open(log, "wb") as out:
        run(["unshare", "--mount", "--propagation", "private", "sh", "-c", INSTALL, "sh", root], out)
    run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", root,
         os.path.join(new, "disk.img"), f"{DISK_MIB}M"])
    shutil.rmtree(work)
    os.rename(new, made)


def put(root, path, text):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def write_initrd(tree, folder, path):
    archive, order = cpio.Archive(), []
    os.makedirs(folder)
    for name in ("bin", "proc", "sys", "dev", "root", "modules"):
        archive.directory(name)
    busybox = inputs.fetch("busybox-static")
    inputs.unpack(busybox, folder)
    with open(os.path.join(folder, "bin/busybox"), "rb") as f:
        archive.file("bin/busybox", f.read(), 0o755)
    for root in BOOT_MODULES:
        order += [m for m in tree.load_order(root) if m not in order]
    for name in order:
        tree.extract(name, os.path.join(folder, name))
        with open(os.path.join(folder, name), "rb") as f:
            archive.file(f"modules/{name}.ko", f.read())
    archive.file("modules/order", "".join(f"{n}\n" for n in order).encode())
    archive.file("init", INIT.encode(), 0o755)
    with open(path, "wb") as out:
        archive.write(out)


def run(command, out=sys.stderr):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

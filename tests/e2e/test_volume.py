"""Volumes of CSI drivers that are disks of the VM, by `lcow volume`, as a node plugin calls it."""

import errno
import gzip
import json
import os
import re
import stat
import subprocess

import cell
import packages
from e2e import test
from harness import Failure
from pod import FOREVER, pod_test
from test_mounts import MIB, MS_RDONLY, image, loop, mount, mount_for, mounted, of_image


def csi(t, name, uid="uid"):
    """The directory in which a CSI driver publishes a volume."""
    path = os.path.join(t.work, f"pods/{uid}/volumes/kubernetes.io~csi/{name}/mount")
    os.makedirs(path)
    return path


def volume(t, verb, path, *words, code=0):
    r = t.lcow("volume", verb, "--volume-path", path, *words)
    t.equal(r.code, code, r)
    return r


def add(t, path, device, *words, fs="ext4"):
    volume(t, "add", path, "--device", device, "--fs-type", fs, *words)
    t.at_end(lambda: volume(t, "remove", path))


def refused(t, words, message):
    r = t.lcow("volume", *words)
    t.equal(r.code, 1, r)
    t.words(f"^lcow: error: {re.escape(message)}$", " ".join(r.err.split()), r)


@pod_test("a CSI volume is a disk in the VM: options, fsGroup, subPath, statistics, growth, and "
          "what is written stays; two VMs never write to one device", runc=False, smoke="one")
def volumes(t):
    disk = image(t, "disk.img", size=16 * MIB, there="on the device\n")
    device, path, other = loop(t, disk), csi(t, "pv1"), csi(t, "pv1", uid="other")
    add(t, path, device, "--options", "noatime,discard", "--fs-group", "2000")
    os.makedirs(os.path.join(path, "logs/app"))
    bound = os.path.join(t.work, "pods/uid/volume-subpaths/pv1/b/0")
    os.makedirs(bound)
    mount_for(t, os.path.join(path, "logs/app"), bound, "", cell.MS_BIND)
    pod = t.pod("p1")
    a = pod.run("a", *FOREVER, mounts=[mount(path, "/data"), mount(path, "/ro", readonly=True)])
    b = pod.run("b", *FOREVER, mounts=[mount(bound, "/logs")])
    t.match(r"(?m)^/dev/sd\w /data ext4 rw,nodev,noatime,discard", a.sh("cat /proc/mounts"))
    t.equal(a.sh("stat -c '%g %a' /data /data/there; cat /data/there; echo new >/data/new"),
            "2000 2775\n2000 664\non the device\n")
    t.equal(a.exec("sh", "-c", "echo x >/ro/x").code, 1, "a read-only mount was written to")
    t.equal(b.sh("echo line >/logs/l; stat -c '%g %a' /logs"), "2000 2775\n")
    t.equal(a.sh("cat /data/logs/app/l"), "line\n")
    t.equal(os.listdir(os.path.join(path, "logs/app")), [], "on the host")

    second_vm(t, device, other)
    statistics_and_growth(t, a, path, disk, device)
    a.sh("mv /data/logs /data/gone && ln -s /etc /data/logs && mkdir -p /data/gone/app")
    t.fails(lambda: pod.run("c", "true", mounts=[mount(bound, "/logs")]),
            r"volume /run/mounts/scsi/\S+: a container has put a symbolic link into")
    volume(t, "remove", path)  # a VM that has it keeps it
    a.sh("echo more >>/data/new")
    pod.stop()
    pod.remove()
    t.equal(of_image(disk, "new"), "new\nmore\n")
    subprocess.run(["e2fsck", "-fn", disk], check=True, capture_output=True)


def second_vm(t, device, other):
    """Beside the pod that has the device: it is refused, and so is what else cannot be; a read-only
    volume and one with xfs can."""
    add(t, other, device)
    pod = t.pod("p2")

    def fails(path, words):
        name = os.path.basename(os.path.dirname(path))
        t.fails(lambda: pod.run(name, "true", mounts=[mount(path, "/data")]), words)
    fails(other, rf"mount {other} on /data: volume {other}: {device} is in use by another pod: a "
          "device that one of them writes to is in one VM at a time; see: lcow volume ls")
    folder = os.path.join(t.work, "mnt")
    os.mkdir(folder)
    try:
        with mounted(device, folder, "ext4"):
            raise Failure("the host mounted a device that a VM writes to")
    except OSError as e:
        t.equal(e.errno, errno.EBUSY, e)

    used, wrong, gone = csi(t, "used"), csi(t, "wrong"), csi(t, "gone")
    ro, plain = csi(t, "ro"), csi(t, "xfs")
    busy = loop(t, image(t, "busy.img"))
    add(t, used, busy)
    with mounted(busy, folder, "ext4", MS_RDONLY):
        fails(used, rf"{busy} is in use on the host: unmount it there before a VM gets it")
    add(t, wrong, busy, fs="xfs")
    fails(wrong, r"disk 0:\d+ \(/dev/sd\w\) holds ext4, not xfs")
    lost = image(t, "lost.img")
    add(t, gone, lost)
    os.unlink(lost)
    fails(gone, rf"mount {gone} on /data: volume {gone}: open {lost}: No such file or directory")

    kept = image(t, "kept.img", there="kept\n")
    add(t, ro, kept, "--read-only", "--fs-group", "2000")
    with gzip.open(os.path.join(packages.TOP, "tests/golden/disks/xfs.img.gz")) as f:
        xfs = t.write("xfs.img", f.read())
    add(t, plain, xfs, fs="xfs")
    c = pod.run("c", *FOREVER, mounts=[mount(ro, "/ro"), mount(plain, "/xfs")])
    t.match(r"(?m)^/dev/sd\w /ro ext4 ro", c.sh("cat /proc/mounts"))
    t.equal(c.exec("sh", "-c", "echo x >/ro/x").code, 1, "a read-only volume was written to")
    t.equal(c.sh("cat /ro/there; stat -c %g /ro/there"), "kept\n0\n")
    refused(t, ("resize", "--volume-path", ro), f"volume {ro} is read-only, so its file system cannot grow")
    before = usage(t, plain)
    os.truncate(xfs, os.path.getsize(xfs) + 64 * MIB)
    volume(t, "resize", plain)
    t.check(usage(t, plain)[0]["total"] > before[0]["total"] + 50 * MIB, "xfs did not grow")
    pod.stop()
    pod.remove()
    volume(t, "remove", other)


def usage(t, path):
    found = json.loads(volume(t, "stats", path).out)["usage"]
    t.equal([u["unit"] for u in found], [1, 2])
    return found


def statistics_and_growth(t, a, path, disk, device):
    space, inodes = usage(t, path)
    blocks = a.sh("stat -f -c '%S %b %f %a %c %d' /data").split()
    size, total, free, available, files, unused = map(int, blocks)
    t.equal((space["total"], space["available"]), (size * total, size * available))
    t.equal((inodes["total"], inodes["used"]), (files, files - unused))
    t.check(0 < space["used"] <= size * total, str(space))
    listed = json.loads(t.lcow("volume", "ls", "--json").out)
    t.equal([v["vm"] for v in listed if v["record"]["volume-path"] == path], [f"k8s.io/{a.pod.id}"])
    refused(t, ("resize", "--volume-path", path, "--size", str(40 * MIB)),
            f"volume {path}: device {device} has {16 * MIB} bytes, less than {40 * MIB}; grow it on "
            "the host first")
    os.truncate(disk, 40 * MIB)
    subprocess.run(["losetup", "--set-capacity", device], check=True)
    volume(t, "resize", path, "--size", str(40 * MIB))
    t.check(usage(t, path)[0]["total"] > 30 * MIB, "the file system did not grow")
    a.sh("head -c 20000000 /dev/zero >/data/much && sync && rm /data/much")


@test("lcow volume: records are root's alone, and what cannot be is refused", runc=False)
def records(t):
    disk, path = image(t, "disk.img"), csi(t, "pv1")
    link = os.path.join(t.work, "link")
    os.symlink(path, link)
    where = ("--volume-path", path)
    plain = ("--device", disk, "--fs-type", "ext4")
    for words, message in (
            (("add", *plain), "--volume-path is missing"),
            (("add", "--volume-path", "v", *plain),
             "--volume-path must be an absolute path of at most 4095 bytes"),
            (("add", "--volume-path", "/" + "a" * 65535, *plain),
             "--volume-path must be an absolute path of at most 4095 bytes"),
            (("add", "--volume-path", path + "/none", *plain),
             f"volume path {path}/none: create the directory first: No such file or directory"),
            (("add", "--volume-path", disk, *plain), f"volume path {disk} is not a directory"),
            (("add", *where, "--device", disk), "--fs-type is missing"),
            (("add", *where, "--device", disk, "--fs-type", "nfs"),
             f'volume {path}: unsupported file system type "nfs": must be ext4 or xfs'),
            (("add", *where, "--device", disk + "0", "--fs-type", "ext4"),
             f"volume {path}: device {disk}0: No such file or directory"),
            (("add", *where, "--device", "/dev/null", "--fs-type", "ext4"),
             f"volume {path}: device /dev/null is neither a block device nor an image file"),
            (("add", *where, *plain, "--options", "noatime,errors=panic"),
             f'volume {path}: unsupported mount option "errors=panic": ro, rw, noatime, '
             "nodiratime, relatime, strictatime, lazytime, nodev, nosuid, noexec, sync, dirsync, "
             "discard, nodiscard and defaults are supported"),
            (("add", *where, *plain, "--fs-group", "users"),
             f'volume {path}: invalid fsGroup "users": must be 0–4294967294'),
            (("add", *where, "--mount-info", "{"),
             "--mount-info: JSON at byte 1: string or '}' expected near end of file"),
            (("stats", *where),
             f"volume {path} is not recorded; see: lcow volume ls, lcow volume add")):
        refused(t, words, message)
    info = {"volume-type": "block", "device": disk, "fstype": "ext4", "options": ["ro"],
            "metadata": {"fsGroup": "7", "fsGroupChangePolicy": "OnRootMismatch"}}
    for _ in range(2):  # a plugin may repeat its call; a symlink is the directory behind it
        volume(t, "add", link, "--mount-info", json.dumps(info))
    t.equal(t.lcow("volume", "ls").out, f"{path}\t{disk}\text4\tro\t-\n")
    refused(t, ("add", *where, *plain),
            f"volume {path} is already recorded with device {disk} and other settings; remove it "
            f"first: lcow volume remove --volume-path {path}")
    refused(t, ("stats", *where), f"no running VM has volume {path}: it is attached only while a "
            "container mounts it; see: lcow volume ls")
    folder = f"{t.run_root}/.volumes"
    record = os.path.join(folder, os.listdir(folder)[0])
    t.equal((stat.S_IMODE(os.stat(folder).st_mode), stat.S_IMODE(os.stat(record).st_mode)),
            (0o700, 0o600))
    os.chown(record, 1000, 1000)
    r = t.run("--rm", f"--mount=type=bind,src={path},dst=/d,options=rbind", "c1", "true")
    t.check(r.code != 0, "a record that root does not own was accepted")
    t.words(rf"mount {path} on /d: {record} must be a file that root owns and only root can write",
            r.err, r)
    volume(t, "remove", link)
    volume(t, "remove", path)
    t.equal((t.lcow("volume", "ls").out, os.path.exists(folder)), ("", False))

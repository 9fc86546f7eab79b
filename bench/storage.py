"""Throughput of a shared directory and of the scratch disk, in a container; beside a virtio-9p
device without lcow around it."""

import os
import re
import subprocess
import sys

import cells
from stats import summary

sys.path.insert(0, os.path.join(cells.TOP, "image"))
import cpio  # noqa: E402

FILE = 128 << 20
DISK = 320 << 20   # larger than the VM's memory, so that reading is not from its cache
RAW_SECONDS = 240

RAW_INIT = r"""#!/bin/sh
mount -t proc proc /proc; mount -t devtmpfs dev /dev; mount -t sysfs sys /sys
for m in virtio_pci 9pnet_virtio 9p virtio_scsi sd_mod ext4; do modprobe $m; done
mkdir -p /mnt /disk
mount -t 9p -o trans=virtio,version=9p2000.L,cache=mmap,access=client,msize=512000 bench /mnt ||
    echo "raw: no mount"
WORK
poweroff -f
"""
SHARE_WORK = r"""for i in $(seq COUNT); do
    echo "raw-read: $(READ)"
    echo "raw-write: $(WRITE)"
done"""

# busybox's dd prints no time, and /proc/uptime has a resolution of 10 ms, so each runs four times.
TIMED = ("read a x </proc/uptime; for n in 1 2 3 4; do COMMAND 2>/dev/null || exit 1; done; "
         "read b x </proc/uptime; echo timed $a $b")


def script(command):
    return TIMED.replace("COMMAND", command)


def read_from(path):
    return script(f"dd if={path} of=/dev/null bs=1M")


def write_to(path, size, more=""):
    return script(f"dd if=/dev/zero of={path} bs=1M count={size >> 20} {more}")


def rate(text, size, what=""):
    """MB/s of each line that such a script printed."""
    found = re.findall(what + r"timed ([\d.]+) ([\d.]+)", text)
    return [4 * size / max(float(b) - float(a), 0.01) / 1e6 for a, b in found]


def in_container(t, commands, size):
    r = t.exec("c1", "sh", "-c", commands)
    t.equal(r.code, 0, r)
    return rate(r.out, size)[0]


def make_file(directory):
    with open(os.path.join(directory, "file"), "wb") as f:
        f.write(os.urandom(1 << 20) * (FILE >> 20))


def measure(t, runs):
    directory = os.path.join(t.work, "shared")
    os.mkdir(directory)
    make_file(directory)
    t.detach(f"--mount=type=bind,src={directory},dst=/share,options=rbind:rw", "c1", "sleep",
             "100000")
    found = {"share_read_mb_s": [], "share_write_mb_s": [], "disk_read_mb_s": [],
             "disk_write_mb_s": []}
    for _ in range(runs):
        for key, commands, size in (
                ("share_read_mb_s", read_from("/share/file"), FILE),
                ("share_write_mb_s", write_to("/share/new", FILE), FILE),
                ("disk_write_mb_s", write_to("/big", DISK, "conv=fsync"), DISK),
                ("disk_read_mb_s", read_from("/big"), DISK)):
            found[key].append(in_container(t, commands, size))
    return {key: summary(values) for key, values in found.items()}


def accel():
    """In the emulated host, which is prepared, by KVM as lcow's VMs there."""
    if "LCOW_TEST_PREPARED" in os.environ:
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,tb-size=40", "-cpu", "max,-la57,-erms,-fsrm"]


def raw_vm(work, image, qemu, commands, directory, disks=(), programs=(), more=()):
    """A VM without lcow around it: the same kernel, the same devices and mount options, nothing
    else. Runs the shell's commands with directory by 9p on /mnt; what it printed."""
    archive = cpio.Archive()
    archive.file("bench-init", RAW_INIT.replace("WORK", commands).encode(), 0o755)
    for path in programs:
        with open(path, "rb") as f:
            archive.file(os.path.basename(path), f.read(), 0o755)
    initrd, serial = os.path.join(work, "raw.cpio"), os.path.join(work, "raw.log")
    with open(initrd, "wb") as out:
        with open(os.path.join(image, "initrd.cpio"), "rb") as f:
            out.write(f.read())
        archive.write(out)
    argv = [qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-machine", "q35,sata=off,smbus=off,vmport=off,usb=off", *accel(), "-m", "256M", "-kernel",
            os.path.join(image, "vmlinux"), "-initrd", initrd, "-append",
            "quiet console=ttyS0 panic=-1 no_timer_check mitigations=off nokaslr "
            "rdinit=/bench-init", "-serial", f"file:{serial}",
            "-fsdev", f"local,id=f,path={directory},security_model=none",
            "-device", "virtio-9p-pci,fsdev=f,mount_tag=bench", "-device", "virtio-scsi-pci,id=s"]
    for n, path in enumerate(disks):
        argv += ["-blockdev", f"driver=raw,node-name=d{n},discard=unmap,file.driver=file,"
                 f"file.filename={path},file.discard=unmap",
                 "-device", f"scsi-hd,bus=s.0,channel=0,scsi-id=0,lun={n},drive=d{n},"
                 "rotation_rate=1"]
    subprocess.run([*argv, *more], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=RAW_SECONDS,
                   check=True, text=True)
    with open(serial, encoding="utf-8", errors="replace") as f:
        return f.read()


def raw_9p(work, image, qemu, runs):
    """Figures, or a string: why there are none."""
    directory = os.path.join(work, "raw")
    os.mkdir(directory)
    make_file(directory)
    commands = SHARE_WORK.replace("COUNT", str(runs)).replace("READ", read_from("/mnt/file"))
    text = raw_vm(work, image, qemu, commands.replace("WRITE", write_to("/mnt/new", FILE)),
                  directory)
    read, write = rate(text, FILE, "raw-read: "), rate(text, FILE, "raw-write: ")
    if not read or not write:
        return f"raw virtio-9p printed no figures: {text[-300:]!r}"
    return {"share_read_mb_s": summary(read), "share_write_mb_s": summary(write)}

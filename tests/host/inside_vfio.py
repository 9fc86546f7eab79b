"""Runs in the emulated host: PCI devices behind its IOMMU are given to containers (0018).

    python3 -B inside_vfio.py nvme …    # cases of this file

0000:00:10.0 is an NVMe disk, 12.0 a NIC; 13.0 (edu) and 13.1 (a NIC) are functions of one device and
share an IOMMU group.
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import inside
from inside import archives, check, cri, harness, note, pod, programs, sh

NVME, NIC, EDU, TWIN = "0000:00:10.0", "0000:00:12.0", "0000:00:13.0", "0000:00:13.1"
MODELS = {EDU: "0x1234 0x11e8", TWIN: "0x8086 0x100e"}
CONF = "/etc/lcow/lcow.conf.d/vfio.conf"
MIB = 1 << 20
SHOW_MODELS = "cd /sys/bus/pci/devices; for d in *; do echo $(cat $d/vendor $d/device); done"
WRITE = "echo {0} | dd of=/dev/nvme0n1 bs=512 seek=9 conv=sync,fsync 2>/dev/null"
READ = "dd if=/dev/nvme0n1 bs=512 skip=9 count=1 iflag=direct 2>/dev/null | head -n 1"
LOAD = "while :; do dd if=/dev/zero of=/dev/nvme0n1 bs=64k count=64 seek=16 oflag=direct; done"


def driver(address):
    path = f"/sys/bus/pci/devices/{address}/driver"
    return os.path.basename(os.readlink(path)) if os.path.exists(path) else ""


def bind(address, wanted="vfio-pci"):
    """As driverctl does."""
    path = f"/sys/bus/pci/devices/{address}"
    sh(f"modprobe {wanted}; echo {wanted} >{path}/driver_override; "
       f"[ ! -e {path}/driver ] || echo {address} >{path}/driver/unbind; "
       f"echo {address} >/sys/bus/pci/drivers_probe")
    inside.check(driver(address) == wanted, f"{address} has driver {driver(address)!r}, not {wanted}")


def group(address):
    return os.path.basename(os.readlink(f"/sys/bus/pci/devices/{address}/iommu_group"))


def doctor():
    report = json.loads(sh("lcow doctor --json", code=None))
    return next(c for c in report["checks"] if c["name"] == "pci")


# ---------------------------------------------------------------- containers without a pod

def ctr(text, code=0):
    return sh(f"ctr -n {pod.NAMESPACE} {text}", code)


def start(name, *flags, command="sleep 100000", code=0):
    return ctr(f"run -d --runtime io.containerd.lcow.v2 {' '.join(flags)} {archives.name('busybox')} "
               f"{name} {command}", code)


def annotation(address):
    return f"--annotation io.lcow.device/a={address}"


def run(name, script, code=0):
    return ctr(f"tasks exec --exec-id x {name} sh -c '{script}'", code)


def remove(name):
    ctr(f"tasks rm -f {name}; ctr -n {pod.NAMESPACE} containers rm {name}")


def refused(name, pattern, *flags):
    out = start(name, *flags, code=None)
    ctr(f"containers rm {name}", code=None)
    check(re.search(pattern, out, re.S), f"not refused with {pattern}:", out)


@contextlib.contextmanager
def allowed(n, words, template="off"):
    """These devices, which get their drivers back once no VM has them."""
    sh("modprobe -a nvme e1000 e1000e")
    drivers = {address: driver(address) for address in words.split()}
    with open(CONF, "w") as f:
        f.write(f"[host]\nallow_devices = {words}\n[vm]\ntemplate = {template}\n")
    try:
        yield
    finally:
        trouble = n.clear()
        os.unlink(CONF)
        for address, name in drivers.items():
            if name and name != driver(address):
                bind(address, name)
    check(not trouble, "pods could not be removed:", *trouble)


# ---------------------------------------------------------------- the cases

def nvme(n):
    """By annotation, then by a vfio node of the CRI; the disk keeps what was written."""
    with allowed(n, f"{NVME} {NIC}"):
        check(driver(NIC) == "e1000e", "the NIC has no driver to refuse")
        refused("c0", f"PCI device {NIC} is bound to driver e1000e.*driverctl set-override {NIC} vfio-pci",
                annotation(NIC))
        check(not programs("qemu-system"), "a VM was booted for a device that is refused")
        found = doctor()
        check(found["status"] == "warning" and NVME in found["detail"], "doctor:", found)
        bind(NVME)
        bind(NIC)
        found = doctor()
        check(found["status"] == "ok" and "by vfio groups" in found["detail"], "doctor:", found)
        before = os.stat(f"/dev/vfio/{group(NVME)}")
        start("c1", annotation(NVME))
        run("c1", WRITE.format("kept-1"))
        n.equal(run("c1", READ), "kept-1\n", "what was written")
        qemu, = programs("qemu-system")
        n.equal(os.listdir(f"/proc/{qemu}/root/dev/vfio"), [], "/dev/vfio of the jail")
        check(os.stat(f"/proc/{qemu}").st_uid != 0, "QEMU runs as root")
        now = os.stat(f"/dev/vfio/{group(NVME)}")
        n.equal((now.st_uid, now.st_mode), (before.st_uid, before.st_mode), "owner and mode of the host's node")
        note(f"locked: {status(qemu, 'VmLck')} KiB, {limit(qemu)}")
        refused("c2", f"{NVME}.*another VM or program has a device of its IOMMU group", annotation(NVME))
        remove("c1")
        c = n.pod("p1").run("c3", *pod.FOREVER, devices=[node(NVME)])
        n.equal(c.sh(READ), "kept-1\n", "what the first container wrote")
        c.sh(WRITE.format("kept-2"))
        n.equal(c.sh(READ), "kept-2\n", "what the second wrote")


def node(address):
    path = f"/dev/vfio/{group(address)}"
    return {"container_path": path, "host_path": path, "permissions": "rwm"}


def status(pid, key):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(rf"{key}:\s+(\d+)", f.read()).group(1))


def limit(pid):
    with open(f"/proc/{pid}/limits") as f:
        return re.search(r"Max locked memory\s+\d+", f.read()).group(0)


def in_use(n):
    """Taken from a pod that keeps running, while the guest reads and writes it; then given to the next."""
    with allowed(n, NVME):
        bind(NVME)
        first = n.pod("p1")
        stays = first.run("stays", *pod.FOREVER)
        c = first.run("c1", "sh", "-c", LOAD, devices=[node(NVME)])
        held = subprocess.Popen(["lcow", "exec", "--vm", first.id, "--", "sh", "-c",
                                 "exec 3</dev/nvme0n1; echo held; sleep 100000"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        n.equal(held.stdout.readline(), "held\n", "a program of the VM that holds the disk open")
        c.stop()
        c.remove()
        n.equal(stays.sh("ls /sys/class/nvme"), "", "what is left of the device in the VM")
        held.kill()
        held.wait()
        second = n.pod("p2").run("c2", *pod.FOREVER, devices=[node(NVME)])
        second.sh(WRITE.format("kept-3"))
        n.equal(second.sh(READ), "kept-3\n", "what was written")
        n.equal(stays.sh("echo well"), "well\n", "the first pod")


def killed(n):
    """kill -9 of QEMU: the next container has the device."""
    with allowed(n, NVME):
        bind(NVME)
        start("c1", annotation(NVME))
        run("c1", WRITE.format("kept-4"))
        qemu, = programs("qemu-system")
        os.kill(qemu, signal.SIGKILL)
        n.until(lambda: not programs("qemu-system"), "QEMU has ended")
        remove("c1")
        start("c2", annotation(NVME))
        n.equal(run("c2", READ), "kept-4\n", "what the killed VM wrote")
        remove("c2")


def functions(n):
    """Two functions of one group: a driver of the host on the other is refused; a VM has both or none."""
    n.equal(group(EDU), group(TWIN), "groups of the two functions")
    with allowed(n, f"{EDU} {TWIN}"):
        bind(EDU)
        bind(TWIN, "e1000")
        refused("c0", f"{EDU} shares IOMMU group {group(EDU)} with {TWIN}, which is bound to driver "
                f"e1000[.;,].*set-override {TWIN} vfio-pci", annotation(EDU))
        check(TWIN in doctor()["detail"], "doctor does not name it:", doctor())
        bind(TWIN)
        start("c1", f"--device /dev/vfio/{group(EDU)}")
        models = run("c1", SHOW_MODELS).splitlines()
        check(set(MODELS.values()) <= set(models), "not both functions:", models)
        remove("c1")
        start("c2", annotation(EDU))
        refused("c3", f"{TWIN}.*another VM or program has a device of its IOMMU group", annotation(TWIN))
        n.equal(run("c2", "echo well"), "well\n", "the first container")
        remove("c2")
        start("c4", annotation(TWIN))
        remove("c4")


def clone(n):
    """A clone's memory is shared with its template until the device is there: what that costs."""
    with allowed(n, NVME, "auto"):
        bind(NVME)
        sh("lcow template build")
        p = n.pod("p1")
        qemu, = programs("qemu-system")
        with open(f"/proc/{qemu}/cmdline", "rb") as f:
            check(b"-incoming" in f.read().split(b"\0"), "not a clone")
        before = own(qemu)
        c = p.run("c1", *pod.FOREVER, devices=[node(NVME)])
        c.sh(WRITE.format("kept-5"))
        n.equal(c.sh(READ), "kept-5\n", "what was written")
        note(f"memory of its own: {before >> 20} MiB before, {own(qemu) >> 20} MiB with the device")
        sh("lcow template verify")
        c.stop()
        c.remove()
        note(f"and {own(qemu) >> 20} MiB after it has gone")


def own(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(k) << 10 for k in re.findall(r"Private_\w+:\s+(\d+)", f.read()))


def main():
    for name in sys.argv[1:]:
        with inside.node() as n:
            globals()[name](n)


if __name__ == "__main__":
    try:
        main()
    except (inside.Failure, cri.Error, harness.Failure) as e:
        sys.exit(str(e))

"""PCI devices in containers: QEMU's edu (registers only) and nvme (a disk), handed through the code
that hands out the host's own (docs/decisions/0018)."""

import json
import os
import signal

import members
from e2e import test
from shimcall import Status, number, text

FOREVER = ("sleep", "100000")
EDU, NVME = "0x1234 0x11e8", "0x1b36 0x0010"
MODELS = "cd /sys/bus/pci/devices; for d in *; do echo $(cat $d/vendor $d/device); done"


def allow(t, words="test:edu test:nvme", **keys):
    t.config(allow_devices=words, template="off", **keys)


def device(name):
    return f"--annotation=io.lcow.device/{name}=test:{name}"


def devices(t, sandbox):
    doc = json.loads(t.lcow("inspect", sandbox).out)
    return sorted((d["device"], d["state"], d["holders"]) for d in doc["vm"]["devices"])


@test("an nvme disk hot-added for one container is written and read in it", runc=False)
def nvme(t):
    allow(t)
    t.detach(device("nvme"), "c1", *FOREVER)
    t.equal(devices(t, "c1"), [("test:nvme", "Ready", 1)])
    script = ("test -b /dev/nvme0n1; echo kept | dd of=/dev/nvme0n1 bs=512 seek=9 conv=sync;"
              "sync; dd if=/dev/nvme0n1 bs=512 skip=9 count=1 iflag=direct | head -c 5;"
              "cat /sys/block/nvme0n1/size")
    r = t.exec("c1", "sh", "-c", f"set -e; {script}")
    t.equal((r.code, r.out), (0, "kept\n32768\n"), r)
    doc = json.loads(t.lcow("inspect", "c1").out)
    t.equal([c["devices"] for c in doc["containers"]], [["test:nvme"]])


@test("a PCI device without a driver is in the container's sysfs", runc=False)
def edu(t):
    allow(t)
    t.detach(device("edu"), device("nvme"), "c1", *FOREVER)
    models = t.exec("c1", "sh", "-c", MODELS).out.splitlines()
    t.check(EDU in models and NVME in models, "both are there", models)
    r = t.exec("c1", "sh", "-c",
               "head -c 4 /sys/bus/pci/devices/0000:00:10.0/*:00.0/config | od -An -tx2")
    t.equal(r.out.split(), EDU.replace("0x", "").split(), r)
    r = t.exec("c1", "sh", "-c", "stat -c %s /sys/bus/pci/devices/0000:00:10.0/*:00.0/resource0")
    t.equal(r.out.strip(), str(1 << 20), r)  # its registers


@test("PCI devices that the configuration does not allow, or the host does not have, are refused",
      runc=False)
def refused(t):
    t.config(template="off")
    for words, said in (("", r"test:edu.*is not in allow_devices"),
                        ("test:nvme 8086:1572", r"test:edu.*is not in allow_devices")):
        t.config(allow_devices=words)
        t.fails(*t.run_args("--rm", device("edu"), "c1", "true"), pattern=said)
        t.explains("c1", "DEVICE_NOT_ALLOWED")
    for address, said, reason in (
            ("03:00.9", "not a PCI address", "DEVICE_ADDRESS"),
            ("ffff:03:00.0", "no PCI device ffff:03", "DEVICE_NOT_FOUND"),
            ("test:all", "not a PCI address", "DEVICE_ADDRESS")):
        t.fails(*t.run_args("--rm", f"--annotation=io.lcow.device/x={address}", "c2", "true"),
                pattern=said)
        t.explains("c2", reason)
    t.equal(t.qemu_pids(), [], "no VM was booted for that")


# ---------------------------------------------------------------- several holders

def member(shim, name, *ids):
    document = shim.document()
    document["mounts"].append({"destination": "/sys", "type": "sysfs", "source": "sysfs"})
    document["windows"] = {"devices": [{"id": i, "idType": "vpci-instance-id"} for i in ids]}
    m = members.Member(shim, name, document)
    m.call("Create", text(2, m.bundle), shim.rootfs())
    m.call("Start")
    return m


def end(m):
    m.call("Kill", number(3, signal.SIGKILL), number(4, 1))
    m.call("Wait")
    m.call("Delete")


def in_vm(t):
    return t.lcow("exec", "--vm", "p1", "--", "sh", "-c", MODELS).out.splitlines()


@test("windows.devices: two containers share a device, which goes with the last; slots are counted",
      images=(), runc=False)
def holders(t):
    allow(t, device_slots=1)
    shim = members.pod(t)
    t.check(NVME not in in_vm(t), "nothing is there before")
    c1 = member(shim, "c1", "test:nvme")
    c2 = member(shim, "c2", "test:nvme")
    t.equal(devices(t, "p1"), [("test:nvme", "Ready", 2)])
    t.equal(in_vm(t).count(NVME), 1, "attached once")
    t.equal(c1.exec("sh", "-c", "echo from one > /dev/nvme0n1")[0], 0)
    t.equal(c2.exec("sh", "-c", "read a < /dev/nvme0n1; echo $a")[1], b"from one\n")
    try:
        member(shim, "c3", "test:edu")
        t.check(False, "a second device on the only slot")
    except Status as e:
        t.words("PCI ports of the VM are in use", str(e))
        t.explains("p1", "DEVICE_NO_SLOT")
    t.equal(devices(t, "p1"), [("test:nvme", "Ready", 2)])
    end(c1)
    t.equal(devices(t, "p1"), [("test:nvme", "Ready", 1)])
    t.equal(c2.exec("sh", "-c", "read a < /dev/nvme0n1; echo $a")[1], b"from one\n")
    end(c2)
    t.equal(devices(t, "p1"), [])
    t.until(lambda: NVME not in in_vm(t), "the VM has it no more", 60)
    # The slot serves again, for another one; and the first is a new device.
    c4 = member(shim, "c4", "test:edu")
    t.check(EDU in in_vm(t), "the other device")
    end(c4)
    c5 = member(shim, "c5", "test:nvme")
    t.equal(c5.exec("sh", "-c", "read -n 1 a < /dev/nvme0n1; echo +$a+")[1], b"++\n")
    end(c5)


@test("a clone of a template takes PCI devices, too", runc=False, deadline=400)
def clone(t):
    allow(t)
    t.config(template="auto", template_dir=os.path.join(t.work, "templates"))
    r = t.lcow("template", "build", seconds=200)
    t.equal(r.code, 0, r)
    t.detach(device("nvme"), "c1", *FOREVER)
    with open(f"/proc/{t.qemu_pid()}/cmdline", "rb") as f:
        t.check(b"-incoming" in f.read().split(b"\0"), "no clone")
    t.equal(t.exec("c1", "cat", "/sys/block/nvme0n1/size").out, "32768\n")

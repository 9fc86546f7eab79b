"""PCI devices in containers: QEMU's edu (registers only) and nvme (a disk), handed through the code
that hands out the host's own (docs/decisions/0018)."""

import json

from e2e import test

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
    t.match("test:nvme", t.lcow("inspect", "c1").out)


@test("a PCI device without a driver is in the container's sysfs", runc=False)
def edu(t):
    allow(t)
    t.detach(device("edu"), device("nvme"), "c1", *FOREVER)
    models = t.exec("c1", "sh", "-c", MODELS).out.splitlines()
    t.check(EDU in models and NVME in models, "both are there", models)
    r = t.exec("c1", "sh", "-c", "head -c 4 /sys/bus/pci/devices/0000:00:10.0/*:00.0/config | od -An -tx2")
    t.equal(r.out.split(), EDU.replace("0x", "").split(), r)

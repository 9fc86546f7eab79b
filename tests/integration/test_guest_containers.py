"""The agent and containers: a real VM, the host's end of the bridge by hand (bridge_vm.py)."""

import time

from bridge_vm import BridgeVM, Disk, busybox_tree, ext4_image, make_spec
from harness import test

POD = "/run/gcs/pods"
SCRATCH_DISK = "/run/mounts/scsi/0_0_0"


class Place:
    """Where a container is, as the v2 shim chooses it."""

    def __init__(self, name, pod=None):
        self.name, self.pod = name, pod or name
        self.bundle = f"{POD}/{self.pod}/{name}"
        self.root = f"{self.bundle}/rootfs"
        self.scratch = f"{SCRATCH_DISK}/scratch/{self.pod}/{name}"


def share_and_scratch(t):
    tree = busybox_tree(t)
    return BridgeVM(t, [Disk(ext4_image(t, "scratch"))], {"1": tree})


def mount_all(vm):
    vm.modify("MappedVirtualDisk", MountPath=SCRATCH_DISK)
    vm.modify("MappedDirectory", MountPath="/run/mounts/plan9/1", ShareName="1", ReadOnly=True)


def combine(vm, place, layer="/run/mounts/plan9/1"):
    vm.modify("CombinedLayers", ContainerID=place.name, ContainerRootPath=place.root,
              Layers=[{"Path": layer}], ScratchPath=place.scratch)


def uncombine(vm, place):
    vm.modify("CombinedLayers", "Remove", ContainerID=place.name, ContainerRootPath=place.root,
              ScratchPath=place.scratch)


def create(vm, place, *args, **spec):
    combine(vm, place)
    vm.create(place.name, make_spec(place.root, *args, **spec), place.bundle, place.scratch)


def start(vm, place, names=("out", "err")):
    vm.call("Start", place.name)
    return vm.execute(place.name, names)


def remove(vm, place):
    uncombine(vm, place)
    vm.delete(place.name)


@test("guest: a container on a share and a scratch disk runs, exits and is gone")
def share_container(t):
    with share_and_scratch(t) as vm:
        mount_all(vm)
        c = Place("one")
        create(vm, c, "sh", "-c", "cat /etc/marker; echo new > /etc/marker; cat /etc/marker >&2; "
               "exit 7")
        pid, io = start(vm, c)
        wait = vm.send_wait(c.name, pid)
        t.equal(io.read_all("out"), b"from the image\n")
        t.equal(io.read_all("err"), b"new\n")
        t.equal(vm.answer(wait)["ExitCode"], 7)
        t.until(lambda: vm.notes, "the notification comes", 5)
        t.equal(vm.notes[0]["Type"], "UnexpectedExit")
        t.check(vm.order().index(("answer", wait)) < vm.order().index(("note", c.name)),
                "the notification came before the answer")
        remove(vm, c)
        t.equal(vm.refused("DeleteContainerState", c.name).code, 0xC037010E)
        vm.modify("MappedDirectory", "Remove", MountPath="/run/mounts/plan9/1", ShareName="1")
        vm.modify("MappedVirtualDisk", "Remove", MountPath=SCRATCH_DISK)
        vm.modify("SCSIDevice", "Remove", Lun=0)
        t.equal(vm.shell("ls /run/gcs /run/mounts; ls /sys/fs/cgroup/pods | grep -v '\\.'; "
                         "ls /run/crun /run/gcs/crun /dev/sd* 2>/dev/null; "
                         "grep -c ' /run/' /proc/mounts").split(),
                ["/run/gcs:", "crun", "pods", "/run/mounts:", "9p", "plan9", "scsi",
                 "/run/crun:", "/run/gcs/crun:", "1"])

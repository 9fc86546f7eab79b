"""lcow explain: reason, cause and remedy of failures that are provoked, one table for each way to
provoke them. The words of the errors are not looked at: only their reasons are an interface. And the
log that they are in: what it must not show."""

import json
import os
import re
import shutil
import signal

import members
import shimcall
import test_layers
from e2e import test
from harness import IMAGE
from shimcall import Shim, Status, text

WRITABLE = "io.microsoft.virtualmachine.fileshares.disablewritable"
DEVICE = "io.lcow.device/x"


def refuse(t, sandbox, reason, call):
    """The call fails, and explain knows why."""
    try:
        call()
    except Status as e:
        t.note(f"{reason}: {e}"[:300])
    else:
        t.check(False, f"what should fail with {reason} succeeded")
    t.explains(sandbox, reason)


def annotated(name, value):
    def change(document):
        document["annotations"] = {name: value}
    return change


def bind(*options, source="/tmp"):
    return {"destination": "/d", "type": "bind", "source": source, "options": ["rbind", *options]}


def without_network(document):
    document["linux"]["namespaces"] = [n for n in document["linux"]["namespaces"]
                                       if n["type"] != "network"]


def in_namespace(document):
    for n in document["linux"]["namespaces"]:
        if n["type"] == "pid":
            n["path"] = "/proc/1/ns/pid"


def writable(document):
    document["annotations"] = {WRITABLE: "true"}
    document["mounts"].append(bind("rw"))


SPECS = (
    ("INVALID_SPEC", lambda d: d.pop("process")),
    ("INVALID_ANNOTATION", annotated("io.lcow.cpus", "many")),
    ("HOST_NAMESPACE", without_network),
    ("FOREIGN_NAMESPACE", in_namespace),
    ("INVALID_ID_MAPPING", lambda d: d["linux"]["namespaces"].append({"type": "user"})),
    ("MOUNT_PROPAGATION", lambda d: d["mounts"].append(bind("rshared"))),
    ("UNSUPPORTED", lambda d: d["linux"].update(netDevices={"eth9": {}})),
    ("DEVICE_ADDRESS", annotated(DEVICE, "03:00.9")),
    ("DEVICE_NOT_FOUND", annotated(DEVICE, "ffff:03:00.0")),
    ("DEVICE_NOT_ALLOWED", annotated(DEVICE, "test:edu")),
    ("WRITABLE_SHARE_FORBIDDEN", writable),
    ("SCRATCH_QUOTA", annotated(test_layers.ENCRYPTED, "true")),
)


@test("lcow explain: reason, cause and remedy of 14 requests that are refused before a VM boots",
      runc=False, images=(), versions=("2.1",))
def refused(t):
    t.config(allow_annotations="io.lcow.cpus", scratch_quota_mib=32)
    shim = Shim(t, "c1")
    shim.start()
    for reason, change in SPECS:
        document = shim.document()
        change(document)
        shim.spec(document)
        refuse(t, "c1", reason, shim.create)
    shim.spec(b'{"process": ')
    refuse(t, "c1", "INVALID_BUNDLE", shim.create)
    refuse(t, "c1", "INVALID_ID", lambda: shim.create(name="a/b"))


def cut_image(t):
    folder = os.path.join(t.work, "image")
    shutil.copytree(IMAGE, folder)
    with open(os.path.join(folder, "vmlinux"), "wb") as f:
        f.write(b"no kernel")
    return folder


HOSTS = (
    ("NO_KVM", "allow_emulation", lambda t: False),
    ("QEMU_MISSING", "qemu", lambda t: "no-such-qemu"),
    ("QEMU_UNUSABLE", "qemu", lambda t: "/no/such/qemu"),
    ("IMAGE_MISSING", "image_dir", lambda t: t.work),
    ("IMAGE_DAMAGED", "image_dir", cut_image),
    ("DISK_FULL", "scratch_free_mib", lambda t: 1 << 24),
    ("SCRATCH_FAILED", "scratch_dir", lambda t: t.write("file", "") + "/below"),
)


@test("lcow explain: reason, cause and remedy of 7 hosts that cannot boot a VM", runc=False, images=(),
      versions=("2.1",))
def unfit(t):
    t.config(template="off")
    for number, (reason, key, value) in enumerate(HOSTS):
        before = t._keys.get(key)
        t.config(**{key: value(t)})
        shim = Shim(t, f"c{number}")
        shim.start()
        refuse(t, shim.name, reason, shim.create)
        t.config(**{key: before})


def device(document):
    document["linux"]["devices"] = [{"path": "/dev/none", "type": "c", "major": 240, "minor": 7}]
    document["linux"]["resources"] = {"devices": [
        {"allow": True, "type": "c", "major": 240, "minor": 7, "access": "rwm"}]}


def in_userns(document):
    ids = [{"containerID": 0, "hostID": 300000, "size": 65536}]
    document["linux"]["namespaces"].append({"type": "user"})
    document["linux"].update(uidMappings=ids, gidMappings=ids)


def members_of(t, shim):
    """(reason, change of the spec, root file system, more of the request)"""
    plain, fifo = t.write("plain", "x" * 1024), os.path.join(t.work, "fifo")
    os.mkfifo(fifo)
    shim.rootfs()
    shutil.copy(plain, os.path.join(t.work, "tree/bin/plain"))

    def root(kind, source):
        return text(3, text(1, kind) + text(2, source))

    def runs(*args):
        return lambda d: d["process"].update(args=args)

    def disk(source):
        return lambda d: d["mounts"].append(
            {"destination": "/d", "type": "virtual-disk", "source": source})
    return (
        ("COMMAND_NOT_FOUND", runs("/no/such/program"), None, b""),
        ("COMMAND_NOT_EXECUTABLE", runs("/bin/plain"), None, b""),
        ("MOUNT_SOURCE_MISSING", lambda d: d["mounts"].append(bind(source="/no/such")), None, b""),
        ("MOUNT_SOURCE_INVALID", disk(t.work), None, b""),
        ("MOUNT_UNSUPPORTED", lambda d: d["mounts"].append(
            {"destination": "/d", "type": "nfs", "source": "server:/x"}), None, b""),
        ("DISK_NO_FILESYSTEM", disk(plain), None, b""),
        ("DEVICE_NOT_IN_VM", device, None, b""),
        ("SECCOMP_PROFILE", lambda d: d["linux"].update(
            seccomp={"defaultAction": "SCMP_ACT_NO"}), None, b""),
        ("USERNS_MISMATCH", in_userns, None, b""),
        ("STDIO_FAILED", lambda d: None, None, text(6, "/dev/null")),
        ("LOG_DRIVER_FAILED", lambda d: None, None, text(6, "binary:///no/such/program")),
        ("SNAPSHOTTER_UNSUPPORTED", lambda d: None, root("zfs", "pool/x"), b""),
        ("ROOTFS_FAILED", lambda d: None, root("bind", "/no/such"), b""),
        ("LAYER_CHANGED", lambda d: None, root("ext4", fifo), b""),
    )


@test("lcow explain: reason, cause and remedy of 16 failures in a pod that runs", runc=False, images=(),
      versions=("2.1",))
def running(t):
    shim = members.pod(t)
    for number, (reason, change, rootfs, more) in enumerate(members_of(t, shim)):
        document = shim.document()
        change(document)
        m = members.Member(shim, f"m{number}", document, rootfs)
        refuse(t, "p1", reason, lambda m=m, more=more: m.create(more))
    figures = t.lcow("metrics").out
    t.match(r'lcow_failures_total\{namespace="[^"]+",sandbox="p1",reason="LAYER_CHANGED"\} 1\n', figures)
    os.kill(t.qemu_pid(), signal.SIGKILL)
    t.explains("p1", "QEMU_KILLED")
    os.kill(t.shim_pid(), signal.SIGKILL)
    t.explains("p1", "SHIM_KILLED")


CANARY = "canary-7f3a91"
GUEST_FIBER = re.compile(r"state=.* hotplug ")


def logged(t, name):
    """All that the shim, its agent and the guest's kernel logged: the log and the journal."""
    out = ""
    for path in (f"{t.work}/c/{name}.log", f"{t.run_root}/.journal/{t.tag}@{name}"):
        with open(path, errors="replace") as f:
            out += f.read()
    return out


def with_secrets(t, name):
    """A container and an exec with a canary wherever clients put secrets; its log at trace."""
    shim = Shim(t, name)
    document = shim.document()
    document["process"]["args"] = ["sh", "-c", f": {CANARY}; exec sleep 100000"]
    document["process"]["env"] += [f"PASSWORD={CANARY}"]
    document["annotations"] = {"registry.example/auth": CANARY, "io.example": CANARY}
    shim.spec(document)
    shim.start()
    shim.create()
    shim.call("Start", text(1, name))
    process = {"cwd": "/", "args": ["sh", "-c", f": {CANARY}"], "env": ["PATH=/bin", f"TOKEN={CANARY}"],
               "user": {"uid": 0, "gid": 0}}
    shim.call("Exec", text(1, name), text(2, "e1"),
              shimcall.wrapped(7, members.PROCESS, json.dumps(process).encode()))
    shim.call("Start", text(1, name), text(2, "e1"))
    shim.call("Wait", text(1, name), text(2, "e1"))
    os.kill(t.shim_pid(), signal.SIGUSR1)
    t.until(lambda: GUEST_FIBER.search(logged(t, name)), "the dump of fibers, the guest's last")
    text_ = logged(t, name)
    shim.close()
    return text_


@test("logs at level trace: messages without secrets, unless scrub_logs is false; stacks name the sandbox",
      runc=False, images=(), versions=("2.1",))
def secrets(t):
    t.config(log_level="trace")
    text_ = with_secrets(t, "c1")
    for data in ("message=ExecuteProcess", "message=WaitForProcess", "<scrubbed>"):
        t.check(data in text_, f"{data} is not in the log")
    for words in ("message to the guest", "message from the guest"):
        t.words(words, text_)
    t.check(CANARY not in text_, "a secret is in the log",
            [line[:300] for line in text_.splitlines() if CANARY in line][:3])
    fibers = [line for line in text_.splitlines() if 'state="' in line and " age " in line]
    t.check(fibers and all("sandbox-id=c1" in line for line in fibers), "stacks name the sandbox", fibers[:3])
    t.config(scrub_logs=False)
    t.check(CANARY in with_secrets(t, "c2"), "scrub_logs = false changes nothing")

"""CDI devices, which containerd resolves into the spec, and OCI hooks (docs/decisions/0028)."""

import json
import os

import test_mounts
from e2e import test
from pod import FOREVER, pod_test

MIB = 1 << 20
STAGES = ("prestart", "createRuntime", "poststart", "poststop")
IN_VM = (r"hook {}\[0\] \({}\) is unsupported: it runs in the container's namespaces, which are in "
         r"the VM; remove it where it comes from \(client, CDI specification or NRI plugin\)")


def script(t, name, text):
    path = t.write(name, f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


def device(name, **edits):
    return {"name": name, "containerEdits": edits}


def hook(stage, path, *args):
    return {"hookName": stage, "path": path, "args": [path, *args]}


def ask(*names):
    return [{"name": f"lcow.test/thing={name}"} for name in names]


@pod_test("CDI: a disk, a mount, environment, groups and hooks of the host are there; what a VM "
          "cannot have is refused by name", sandboxers=("podsandbox",), versions=("2.1",), runc=False)
def cdi(t):
    disk = test_mounts.loop(t, t.write("disk.img", b"on the disk" + bytes(2 * MIB - 11)))
    folder = os.path.join(t.work, "folder")
    os.mkdir(folder)
    t.write("folder/file", "on the host\n")
    seen = script(t, "hook", f"cat >{t.work}/seen-$1")
    cdi_dir = os.path.join(t.work, "net/cni/cdi")
    os.makedirs(cdi_dir)
    devices = [
        device("all", env=["FROM_CDI=yes"], additionalGids=[1234],
               deviceNodes=[{"path": "/dev/data", "hostPath": disk, "permissions": "rw"}],
               mounts=[{"hostPath": folder, "containerPath": "/cdi",
                        "options": ["ro", "nosuid", "nodev", "rbind"]}],
               hooks=[hook(s, seen, s) for s in STAGES]),
        device("inside", hooks=[hook("createContainer", "/usr/bin/nvidia-cdi-hook")]),
        device("late", hooks=[hook("startContainer", "/bin/true")]),
        device("class", intelRdt={"closID": "gold"}),
        device("tun", deviceNodes=[{"path": "/dev/net/lcow-none", "hostPath": "/dev/net/tun"}]),
        device("broken", hooks=[hook("createRuntime", script(t, "bad", "echo no luck >&2; exit 7"))]),
    ]
    with open(os.path.join(cdi_dir, "thing.json"), "w") as f:
        json.dump({"cdiVersion": "0.7.0", "kind": "lcow.test/thing", "devices": devices}, f)
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER, CDI_devices=ask("all"))
    t.equal(c.sh("head -c11 /dev/data; echo; cat /cdi/file; echo $FROM_CDI; id -G | tail -c 5; touch /cdi/x || "
                 "echo read-only; printf written | dd of=/dev/data conv=fsync,notrunc 2>/dev/null"),
            "on the disk\non the host\nyes\n1234\nread-only\n")
    with open(disk, "rb") as f:
        t.equal(f.read(7), b"written")
    state = {s: json.load(open(f"{t.work}/seen-{s}")) for s in STAGES[:-1]}
    t.equal([state[s]["status"] for s in STAGES[:-1]], ["creating", "creating", "running"])
    t.equal({state[s]["id"] for s in state}, {c.id})
    pid = state["createRuntime"]["pid"]
    with open(f"/proc/{pid}/cmdline") as f:
        t.equal(f.read(), f"lcow-anchor\0{c.id}\0")
    t.equal(os.listdir(f"/proc/{pid}/root"), [], "what enters its namespaces finds nothing")
    t.equal(state["poststart"]["annotations"]["io.kubernetes.cri.container-name"], "c1")
    t.check(not os.path.exists(f"{t.work}/seen-poststop"), "poststop ran too early")
    c.stop()
    c.remove()
    with open(f"{t.work}/seen-poststop") as f:
        stopped = json.load(f)
    t.equal((stopped["status"], stopped.get("pid")), ("stopped", None))

    def refused(name, words):
        t.fails(lambda: pod.run(name, *FOREVER, CDI_devices=ask(name)), words)
    refused("inside", IN_VM.format("createContainer", "/usr/bin/nvidia-cdi-hook"))
    refused("late", IN_VM.format("startContainer", "/bin/true"))
    refused("class", r'linux.intelRdt \(class "gold"\) is unsupported: the VM has no resctrl; '
                     "remove the class")
    refused("tun", "device /dev/net/lcow-none does not exist in the VM; only block and PCI")
    refused("broken", rf"hook createRuntime\[0\] \({t.work}/bad\): exit status 7: no luck")
    t.settings(hooks="refuse")
    t.equal(pod.run("c2", *FOREVER).sh("echo well"), "well\n", "the pod is as it was")


NETWORK = """
pid=$(sed 's/.*"pid":\\([0-9]*\\).*/\\1/')
exec nsenter --net=/proc/$pid/ns/net sh -e -c '
ip link add eth0 type veth peer name peer0
ip link set peer0 netns 1
ip addr add 10.98.7.6/24 dev eth0
ip link set eth0 up'
"""


@test("hooks make a container's network as nerdctl's do; the configuration can refuse them",
      runc=False, smoke="one")
def hooks(t):
    make = script(t, "network", NETWORK.replace("netns 1", f"netns {os.getpid()}"))
    end = script(t, "end", f"cat >{t.work}/ended; ip link del peer0 2>/dev/null; true")
    t.must("containers", "create", "--runtime", t.runtime, t.image, "plain", "true")
    spec = json.loads(t.must("containers", "info", "plain").out)["Spec"]
    t.must("containers", "delete", "plain")
    root = os.path.join(t.work, "root")
    os.mkdir(root)
    t.must("images", "mount", "--rw", t.image, root)
    t.at_end(lambda: t.must("images", "unmount", "--rm", root))
    spec["root"] = {"path": root}
    spec["process"]["args"] = ["sleep", "100000"]
    spec["hooks"] = {"createRuntime": [{"path": make}], "poststop": [{"path": end}]}
    path = t.write("spec.json", json.dumps(spec))

    def run(container):
        return ("run", "--runtime", t.runtime, "-d", "--config", path, container)
    t.must(*run("c1"))
    t.match(r"inet 10\.98\.7\.6/24 .*eth0", t.exec("c1", "ip", "-o", "-4", "addr").out)
    t.must("tasks", "kill", "-s", "KILL", "c1")
    t.await_status("c1", "STOPPED")
    t.must("tasks", "delete", "c1", seconds=60)
    with open(f"{t.work}/ended") as f:
        t.equal(json.load(f)["id"], "c1")
    t.config(hooks="refuse")
    t.fails(*run("c2"), pattern=(
        rf"hook createRuntime\[0\] \({make}\) is refused by the configuration: set hooks = run in "
        r"lcow.conf, or remove it where it comes from \(client, CDI specification or NRI plugin\)"))

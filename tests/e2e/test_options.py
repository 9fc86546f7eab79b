"""What reaches the runtime from containerd's configuration and from annotations."""

import glob
import json
import os
import re
import signal
import time

import cni
import criconf
import grpcwire
import packages
import pod
import shimcall
import test_update
from e2e import test
from harness import Process, subprocess
from shimcall import text


def nproc(t, container="c1"):
    return t.exec(container, "nproc").out.strip()


@test("a configuration file named in the runtime's options is read; its errors are reported",
      runc=False)
def config_path(t):
    conf = t.write("other.conf", open(t.config_path).read() + "[vm]\ncpus = 2\n")
    t.detach(f"--runtime-config-path={conf}", "c1", "sleep", "100000")
    t.equal(nproc(t), "2")
    bad = t.write("bad.conf", "[vm]\ncpu = 2\n")
    t.fails(*t.run_args("--rm", f"--runtime-config-path={bad}", "c2", "true"),
            pattern=r"bad\.conf:2: unknown key cpu; did you mean cpus\?")


@test("annotations: those allowed change the VM, those that we cannot keep are refused", runc=False)
def annotations(t):
    t.config(allow_annotations="io.lcow.cpus")
    t.detach("--annotation=io.lcow.cpus=2", "c1", "sleep", "100000")
    t.equal(nproc(t), "2")
    t.fails(*t.run_args("--rm", "--annotation=io.lcow.cpus=many", "c2", "true"),
            pattern="io.lcow.cpus is .many.: must be 1–")
    t.explains("c2", "INVALID_ANNOTATION")
    t.fails(*t.run_args(
        "--rm", "--annotation=io.microsoft.virtualmachine.lcow.securitypolicy=cGFja2FnZQ==",
        "c3", "true"), pattern="securitypolicy.*lcow does not support confidential VMs")
    shared = os.path.join(t.work, "shared")
    os.mkdir(shared)
    mount = f"--mount=type=bind,src={shared},dst=/s,options=rbind:rw"
    no = "--annotation=io.microsoft.virtualmachine.fileshares.disablewritable=true"
    t.fails(*t.run_args("--rm", no, mount, "c4", "true"), pattern="writable.*forbids")
    t.explains("c4", "WRITABLE_SHARE_FORBIDDEN")
    r = t.run("--rm", no, mount.replace("rbind:rw", "rbind:ro"), "c5", "ls", "/s")
    t.equal(r.code, 0, r)


# ---------------------------------------------------------------- what shapes a VM

VM = "io.microsoft.virtualmachine."
CPU, NUMA = VM + "computetopology.processor.", VM + "computetopology.numa."


def notes(**annotations):
    return [f"--annotation={name}={value}" for name, value in annotations.items()]


def host_cpus(pid):
    with open(f"/proc/{pid}/status") as f:
        return re.search(r"Cpus_allowed_list:\s*(\S+)", f.read()).group(1)


def inspect(t, container):
    r = t.lcow("inspect", container)
    t.equal(r.code, 0, r)
    return json.loads(r.out)["vm"]


def groups(t):
    """Two groups of host CPUs, of one each (or the same)."""
    cpus = sorted(os.sched_getaffinity(0))
    for name, cpu in (("fast", cpus[0]), ("slow", cpus[-1])):
        t.equal(t.lcow("cpugroup", "create", name, str(cpu)).code, 0)
    r = t.lcow("cpugroup", "create", "../x", "0")
    t.words("invalid CPU group", r.err)
    return str(cpus[0]), str(cpus[-1])


def move_by_update(t, container, group):
    empty = shimcall.wrapped(2, test_update.RESOURCES, b"{}")
    grpcwire.unary(t.containerd.address, "/containerd.services.tasks.v1.Tasks/Update",
                   text(1, container) + empty + text(3, text(1, VM + "cpugroup.id") + text(2, group)),
                   120, metadata=(("containerd-namespace", t.tag),))


@test("annotations limit a VM on the host: processor time, weight, CPU group, its disks; it has a "
      "RuntimeID", runc=False, smoke="one")
def host_limits(t):
    t.config(allow_annotations="io.*", cpu_group_dir=os.path.join(t.work, "groups"))
    fast, slow = groups(t)
    t.detach(*notes(**{CPU + "limit": 80000, CPU + "weight": 300, VM + "cpugroup.id": "fast",
                       VM + "storageqos.bandwidthmaximum": 1 << 20,
                       VM + "storageqos.iopsmaximum": 1000, VM + "lcow.enforcer": "rego",
                       "io.lcow.rootfs": "scratch"}), "c1", "sleep", "100000")
    qemu, vm = t.qemu_pid(), inspect(t, "c1")
    quota, share = test_update.host_cpu(qemu)
    t.equal(quota, 80000 * vm["cpus"])
    t.check(share in (3072, 300), f"shares or weight: {share}")
    t.equal(host_cpus(qemu), fast)
    t.equal((vm["cpu_group"], vm["cpu_limit"], vm["cpu_weight"], vm["disk_iops"],
             vm["disk_bytes_per_s"]), ("fast", 80000, 300, 1000, 1 << 20))
    with open(f"/proc/{qemu}/cmdline") as f:
        t.match(f"-uuid\0{vm['runtime_id']}\0", f.read())
    t.equal(t.lcow("cpugroup", "move", "c1", "slow").code, 0)
    t.equal(host_cpus(qemu), slow)
    t.match(f"(?s)fast  {fast}\nslow  {slow}\n  {t.tag}/c1\n", t.lcow("cpugroup", "ls").out)
    move_by_update(t, "c1", "fast")
    t.equal(host_cpus(qemu), fast)
    t.match("annotation=.*lcow.enforcer", t.lcow("logs", "c1").out)
    began = time.monotonic()
    r = t.exec("c1", "dd", "if=/dev/zero", "of=/big", "bs=1M", "count=6", "conv=fsync")
    t.equal(r.code, 0, r)
    t.check(time.monotonic() - began > 4, f"6 MiB at 1 MiB/s in {time.monotonic() - began:.1f} s")


REFUSED = {
    CPU + "limit=200000": r"processor\.limit is .200000.: must be 0–100000",
    VM + "storageqos.iopsmaximum=x": r"iopsmaximum is .x.: must be 0–2147483647",
    VM + "lcow.kernelbootoptions=nosmt init=/bin/sh":
        "kernelbootoptions is .nosmt init=/bin/sh.: kernel parameter .init=/bin/sh. is not allowed",
    VM + "cpugroup.id=missing":
        "is .missing.: CPU group missing does not exist; create it with: lcow cpugroup create missing CPUS",
    VM + "bootfilesrootpath=/etc": r"lcow does not support a guest image of the pod's choice \(",
    VM + "lcow.kerneldirectboot=false": "lcow does not support UEFI boot",
    VM + "hv-socket.service-table.1-2={}": "service-table.1-2 is .{}.: lcow does not support Hyper-V sockets",
    NUMA + "mapped-physical-nodes=0,1": "have 0 and 0 numbers, but must have 2 each",
}


@test("annotations with invalid values are refused by name, before the VM starts", runc=False,
      smoke="one")
def refused_annotations(t):
    t.config(allow_annotations="io.*", cpu_group_dir=os.path.join(t.work, "groups"))
    for i, (annotation, pattern) in enumerate(REFUSED.items()):
        t.fails(*t.run_args("--rm", f"--annotation={annotation}", f"c{i}", "true"), pattern=pattern)
        t.equal(t.qemu_pids(), [])


@test("annotations that only a cold start can follow: NUMA nodes, memory at once, kernel parameters",
      runc=False)
def cold_shape(t):
    t.config(allow_annotations="io.*")
    t.detach(*notes(**{
        VM + "computetopology.memory.sizeinmb": 320, CPU + "count": 2,
        VM + "computetopology.memory.allowovercommit": "false", NUMA + "mapped-physical-nodes": "0,0",
        NUMA + "count-of-processors": "1,1", NUMA + "count-of-memory-blocks": "192,128",
        VM + "computetopology.memory.lowmmiogapinmb": 2048,
        VM + "computetopology.memory.highmmiogapinmb": 4096,
        VM + "lcow.kernelbootoptions": "slab_nomerge init_on_alloc=1"}), "c1", "sleep", "100000")
    r = t.exec("c1", "sh", "-c", "cat /proc/cmdline; ls -d /sys/devices/system/node/node*; nproc")
    t.match(r"slab_nomerge init_on_alloc=1\n(?s:.*)node0\n.*node1\n2\n", r.out)
    vm = inspect(t, "c1")
    t.equal((vm["clone"], vm["memory_mib"]), (False, 320))
    t.check(t.resident_kib(vm["pid"]) > 320 << 10, f"{t.resident_kib(vm['pid'])} KiB")


PRIVILEGED = "io.microsoft.virtualmachine.lcow.privileged"
# crun's own: a filter instead of the profile. This one is a single instruction, "allow".
CRUN_FILTER = "run.oci.seccomp_bpf_data=BgAAAAAA/38="


def devices_and_filter(t, container, *args):
    """The VM's disks that it sees, and whether it may do what the default profile denies."""
    r = t.run("--rm", "--seccomp", *args, container, "sh", "-c",
              "ls /dev; unshare -U true 2>/dev/null && echo unconfined; true")
    t.equal(r.code, 0, r)
    words = r.out.split()
    return [w for w in words if w.startswith(("sd", "vd"))], "unconfined" in words


@test("no annotation lifts seccomp or shows the VM's disks, unless the configuration allows it",
      runc=False)
def privileged(t):
    t.equal(devices_and_filter(t, "c1"), ([], False))
    t.equal(devices_and_filter(t, "c2", f"--annotation={PRIVILEGED}=true"), ([], False))
    t.equal(devices_and_filter(t, "c3", f"--annotation={CRUN_FILTER}"), ([], False))
    t.config(allow_annotations=PRIVILEGED)
    disks, unconfined = devices_and_filter(t, "c4", f"--annotation={PRIVILEGED}=true")
    t.check(disks and unconfined, "the annotation does nothing where it is allowed", disks)
    t.equal(devices_and_filter(t, "c5"), ([], False))


# ---------------------------------------------------------------- the shim's cgroup

def cgroups(pid):
    with open(f"/proc/{pid}/cgroup") as f:
        return f.read()


def directories(path):
    return glob.glob(f"/sys/fs/cgroup/*{path}") + glob.glob(f"/sys/fs/cgroup{path}")


@test("shim_cgroup = pod: the shim is in its pod's cgroup, which is removed with the pod",
      runc=False)
def shim_in_pod(t):
    t.detach("c0", "sleep", "100000")
    t.check(cgroups(t.shim_pid()) != cgroups(t.qemu_pid()), "there by default")
    t.must("tasks", "rm", "-f", "c0")
    t.must("containers", "rm", "c0")
    t.until(lambda: not t.shim_pids(), "the shim has ended")
    t.config(shim_cgroup="pod")
    t.detach("c1", "sleep", "100000")
    t.equal(cgroups(t.shim_pid()), cgroups(t.qemu_pid()))
    t.match(f"/{t.tag}/c1\n", cgroups(t.shim_pid()))
    t.equal(t.exec("c1", "echo", "x").out, "x\n")
    t.must("tasks", "rm", "-f", "c1")
    t.must("containers", "rm", "c1")
    t.until(lambda: not directories(f"/{t.tag}/c1"), "the cgroup is gone", 20)
    t.until(lambda: not t.shim_pids(), "the shim has ended")
    t.detach("c2", "sleep", "100000")
    os.kill(t.shim_pid(), signal.SIGKILL)  # nobody leaves: the cgroup is empty by its death
    t.until(lambda: "c2" not in t.tasks(), "the task is gone", 30)
    t.until(lambda: not directories(f"/{t.tag}/c2"), "the cgroup is gone", 20)


def remove_later(t, path):
    """A cgroup is busy for a moment after its last process has ended."""
    def removed():
        for directory in directories(path):
            try:
                os.rmdir(directory)
            except OSError:
                return False
        return True
    t.until(removed, f"cgroup {path} can be removed")


@test("shim_cgroup = PATH: the shim is there, with nothing else of the pod", runc=False)
def shim_in_path(t):
    t.config(shim_cgroup="below")
    t.fails(*t.run_args("--rm", "c1", "true"), pattern="none, pod or an absolute path")
    path = f"/{t.tag}/shims"
    t.config(shim_cgroup=path)
    t.at_end(remove_later, t, path)
    t.detach("c2", "sleep", "100000")
    t.match(f"{path}\n", cgroups(t.shim_pid()))
    t.check(path not in cgroups(t.qemu_pid()), "QEMU is there, too", cgroups(t.qemu_pid()))
    t.must("tasks", "rm", "-f", "c2")
    t.must("containers", "rm", "c2")
    t.until(lambda: not t.shim_pids(), "the shim has ended")


# ---------------------------------------------------------------- the CRI's options table

def prepare(t):
    """Two more handlers: one with good keys, one with a typing error."""
    network = cni.Network(os.path.join(t.work, "net"))
    t.at_end(network.remove)
    new = t.version.startswith("2")
    plugin = "io.containerd.cri.v1.runtime" if new else "io.containerd.grpc.v1.cri"
    more = criconf.text(t.version, network, "lcow")
    for name, line in (("good", "cpus = 2"), ("bad", "cpu = 2")):
        at = f'[plugins."{plugin}".containerd.runtimes.{name}'
        more += (f'\n{at}]\nruntime_type = "io.containerd.lcow.v2"\n'
                 f'privileged_without_host_devices = true\n{at}.options]\n{line}\n')
    return {"more": more, "enable": criconf.PLUGINS}


@test("keys in the options table of containerd's configuration reach the VM", runc=False,
      images=(), versions=("1.7", "2.1"), prepare=prepare)
def options_table(t):
    pods = pod.Pods(t, "good")
    c = pods.pod("p1").run("c1", *pod.FOREVER)
    t.equal(c.sh("nproc").strip(), "2")
    pods.fails(lambda: pods.pod("p2", handler="bad"),
               r"runtime options:\d+: unknown key cpu; did you mean cpus\?")


# ---------------------------------------------------------------- lcow config containerd

@test("containerd takes the stanza that lcow prints for it", runc=False, images=())
def stanza(t):
    t.config(allow_annotations="io.lcow.c*")
    program = packages.program(t.version, "containerd")
    r = t.lcow("config", "containerd", "--containerd", program)
    t.equal(r.code, 0, r)
    path = t.write("stanza.toml", r.out)
    p = Process(t, [program, "-c", path, "config", "dump"], subprocess.DEVNULL, None, {}, (), False)
    t.processes.append(p)
    r = p.wait(30)
    t.equal(r.code, 0, r)
    at = r.out.index("containerd.runtimes.lcow]")
    runtime = r.out[at:at + 3000].split("[plugins", 1)[0]
    for pattern in (r"runtime_type = ['\"]io\.containerd\.lcow\.v2['\"]",
                    "privileged_without_host_devices = true",
                    r"pod_annotations = \[['\"]io\.lcow\.cpus['\"],"):
        t.match(pattern, runtime, runtime)
    t.match(f"ConfigPath = ['\"]{t.config_path}['\"]", r.out[at:])

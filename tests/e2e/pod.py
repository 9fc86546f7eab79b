"""What the tests of pods are written with: a pod and its containers through the CRI, as the kubelet
makes them.

    @pod_test("a pod runs a container", smoke=True)
    def runs(t):
        pod = t.pod("p1")
        c = pod.run("c1", "echo", "hi")
        c.await_exit(0)
        t.equal(c.out, "hi\\n")

Each is run with a pause container (sandboxer podsandbox) on every containerd, and on 2.1 also with
the shim's own Sandbox service (sandboxer shim). t is e2e.Test with the calls of Pods beside it.
"""

import functools
import os
import re
import subprocess
import time

import archives
import cni
import cri
import criconf
import e2e
import harness
import packages
from harness import Failure

SECONDS = 120
FOREVER = ("sleep", "100000")
NAMESPACE = "k8s.io"  # of everything that the CRI makes
SHIM_VERSIONS = ("2.1",)
IMAGES = ("busybox",)


def pod_test(name, sandboxers=("podsandbox", "shim"), versions=None, both=False, **how):
    """Declares one test per sandboxer; with the shim's sandbox only the smoke set, and what says
    that both count, is in a run that is not full."""
    def declare(body):
        for sandboxer in sandboxers:
            shim = sandboxer == "shim"
            handler = "lcow-shim" if shim else "lcow"
            own = {"prepare": prepare, **how}
            if shim:
                own.update(runc=False, full=own.get("full", False) or not (both or
                                                                          own.get("smoke")))

            @functools.wraps(body)
            def run(t, handler=handler):
                body(Pods(t, "runc" if t.is_runc else handler))
            allowed = versions or tuple(packages.SUITES)
            e2e.test(f"{'sandbox' if shim else 'pod'}: {name}", images=(),
                     versions=tuple(v for v in allowed if not shim or v in SHIM_VERSIONS),
                     **own)(run)
        return body
    return declare


def prepare(t, network=None):
    """Before containerd is made."""
    network = network or cni.Network(os.path.join(t.work, "net"))
    t.at_end(network.remove)
    return {"more": criconf.text(t.version, network, "runc" if t.is_runc else "lcow"),
            "enable": criconf.PLUGINS}


class Exec:
    def __init__(self, answer):
        self.code = answer.exit_code
        self.out, self.err = (b.decode(errors="replace") for b in (answer.stdout, answer.stderr))

    def __str__(self):
        return f"exit code {self.code}\nstdout: {self.out[-2000:]}\nstderr: {self.err[-2000:]}"


class Container:
    def __init__(self, pod, name, config):
        self.t, self.pod, self.name = pod.t, pod, name
        self.log_path = os.path.join(pod.log_directory, config["log_path"])
        self.id = self.t.cri.CreateContainer(pod_sandbox_id=pod.id, config=config,
                                             sandbox_config=pod.config).container_id

    def start(self, seconds=SECONDS):
        self.t.cri.StartContainer(container_id=self.id, seconds=seconds)
        return self

    def status(self):
        return self.t.cri.ContainerStatus(container_id=self.id).status

    @property
    def state(self):
        return self.status().state

    def await_exit(self, code=None, seconds=SECONDS):
        self.t.until(lambda: self.state == cri.EXITED, f"{self.name} has exited", seconds)
        status = self.status()
        if code is not None:
            self.t.equal(status.exit_code, code, f"{status}\nlog: {self.out[-2000:]}{self.err}")
        return status

    def exec(self, *command, timeout=0, seconds=SECONDS):
        return Exec(self.t.cri.ExecSync(container_id=self.id, cmd=command, timeout=timeout,
                                        seconds=seconds))

    def sh(self, script, **how):
        """The output of a script that must succeed."""
        r = self.exec("sh", "-c", script, **how)
        self.t.equal(r.code, 0, f"{script}: {r}")
        return r.out

    def lines(self):
        """The log as the CRI writes it: (time, stream, tag, text)."""
        try:
            with open(self.log_path, errors="replace", newline="\n") as f:
                return [tuple(line.rstrip("\n").split(" ", 3)) for line in f]
        except FileNotFoundError:
            return []

    def _stream(self, stream):
        """P marks a partial line, F the end of a line."""
        return "".join(text + ("\n" if tag == "F" else "") for _, s, tag, text in self.lines()
                       if s == stream)

    @property
    def out(self):
        return self._stream("stdout")

    @property
    def err(self):
        return self._stream("stderr")

    def await_log(self, pattern, seconds=SECONDS):
        return self.t.until(lambda: re.search(pattern, self.out + self.err),
                            f"the log of {self.name} shows {pattern}", seconds)

    def stop(self, timeout=0):
        self.t.cri.StopContainer(container_id=self.id, timeout=timeout)

    def remove(self):
        self.t.cri.RemoveContainer(container_id=self.id)

    def stats(self):
        return self.t.cri.ContainerStats(container_id=self.id).stats


class Pod:
    def __init__(self, t, name, config, handler, seconds=SECONDS):
        self.t, self.name, self.config = t, name, config
        self.log_directory = config["log_directory"]
        self.id = t.cri.RunPodSandbox(config=config, runtime_handler=handler,
                                      seconds=seconds).pod_sandbox_id

    def create(self, name, *command, image=None, linux=None, **config):
        """A container that is not started. linux: LinuxContainerConfig; the rest: of its config."""
        whole = {"metadata": {"name": name}, "command": command,
                 "image": {"image": archives.name(image or "busybox")}, "log_path": f"{name}.log",
                 "linux": {"security_context": {}, **(linux or {})}, **config}
        context = whole["linux"]["security_context"]
        pid = self.config["linux"]["security_context"]["namespace_options"].get("pid", cri.POD)
        context.setdefault("namespace_options", {}).setdefault("pid", pid)
        return Container(self, name, whole)

    def run(self, name, *command, **config):
        return self.create(name, *command, **config).start()

    def status(self, verbose=False):
        return self.t.cri.PodSandboxStatus(pod_sandbox_id=self.id, verbose=verbose).status

    @property
    def state(self):
        return self.status().state

    @property
    def ip(self):
        return self.status().network.ip

    @property
    def ip6(self):
        return next(a.ip for a in self.status().network.additional_ips if ":" in a.ip)

    def stop(self):
        self.t.cri.StopPodSandbox(pod_sandbox_id=self.id)

    def remove(self):
        self.t.cri.RemovePodSandbox(pod_sandbox_id=self.id)

    def stats(self):
        return self.t.cri.PodSandboxStats(pod_sandbox_id=self.id).stats


class Pods:
    """An e2e.Test (whose attributes are ours, too) with a CRI."""

    def __init__(self, t, handler):
        self._t, self.handler = t, handler
        self.is_shim = handler == "lcow-shim"
        self.cri = cri.Client(t.containerd.address)
        self._parents = []
        t.at_end(self.end)
        t.until(self.serves, "the CRI serves", 60)
        for image in ("pause",) + IMAGES:
            self.load(image)

    def __getattr__(self, name):
        return getattr(self._t, name)

    def settings(self, **keys):
        """Of lcow's configuration, which config() of the base is for."""
        self._t.config(**keys)

    def serves(self):
        try:
            return all(c.status for c in self.cri.Status(seconds=10).status.conditions)
        except cri.Error:
            return False

    def load(self, image):
        r = self.start_tool("-n", NAMESPACE, "images", "import", archives.path(image)).wait(SECONDS)
        self.equal(r.code, 0, f"import of {image}: {r}")
        self.until(lambda: self.cri.ImageStatus(image={"image": archives.name(image)}).image.id,
                   f"the CRI knows {image}", 30)

    def start_tool(self, *args):
        """ctr in a namespace of its own choice."""
        argv = [packages.program(self.version, "ctr"), "-a", self.containerd.address, *args]
        p = harness.Process(self._t, argv, subprocess.DEVNULL, None, {}, (), False)
        self.processes.append(p)
        return p

    def config(self, name, linux=None, security=None, namespaces=None, **config):
        """A PodSandboxConfig; the cgroup of the pod is made here, as the kubelet does."""
        logs = os.path.join(self.work, "logs", name)
        os.makedirs(logs, exist_ok=True)
        parent = f"/{self.tag}/{name}"
        self.make_parent(parent)
        context = {"namespace_options": {"pid": cri.CONTAINER, **(namespaces or {})},
                   **(security or {})}
        return {"metadata": {"name": name, "uid": f"uid-{name}", "namespace": "tests"},
                "log_directory": logs,
                "linux": {"cgroup_parent": parent, "security_context": context, **(linux or {})},
                **config}

    def pod(self, name, handler=None, **config):
        return Pod(self, name, self.config(name, **config), handler or self.handler)

    def make_parent(self, parent):
        for root in e2e.cgroup_roots():
            path = root + parent
            os.makedirs(path, exist_ok=True)
            if path not in self._parents:
                self._parents.append(path)
            for where in (os.path.dirname(path), path):
                if e2e.CGROUP_V2:
                    _enable(os.path.dirname(where))
                elif "cpuset" in root:
                    for key in ("cpuset.cpus", "cpuset.mems"):
                        _copy(f"{root}/{key}", f"{where}/{key}")

    def fails(self, call, pattern, *codes):
        """call() must be refused, in these words."""
        try:
            call()
        except cri.Error as e:
            self.words(pattern, e.message)
            self.check(not codes or e.code in codes, f"refused as {e.code}", str(e))
            return e
        raise Failure(f"not refused, though it should have said: {pattern}")

    # ------------------------------------------------------------ the end

    def remove_pods(self):
        """Every pod there is, stopped and removed as the kubelet does; sentences of what failed."""
        trouble = []
        for sandbox in self.cri.ListPodSandbox().items:
            deadline = time.monotonic() + 20
            while True:  # CRI may need a moment to see that something has died
                try:
                    self.cri.StopPodSandbox(pod_sandbox_id=sandbox.id)
                    self.cri.RemovePodSandbox(pod_sandbox_id=sandbox.id)
                    break
                except cri.Error as e:
                    if time.monotonic() > deadline:
                        trouble.append(f"pod {sandbox.metadata.name}: {e}")
                        break
                    time.sleep(0.5)
        return trouble

    def end(self):
        if self.containerd.popen.poll() is not None:
            self.containerd.start()
            self.until(self.serves, "the CRI serves", 60)
        trouble = self.remove_pods()
        self.until_no_shim(trouble)
        for path in reversed(self._parents):
            try:
                os.rmdir(path)
            except OSError as e:
                trouble.append(f"{path}: {e.strerror}, holds {os.listdir(path)}"[:300])
        for image in ("pause",) + IMAGES:
            self.start_tool("-n", NAMESPACE, "images", "rm", archives.name(image)).wait(30)
        if trouble:
            raise Failure("\n".join(trouble))


def _enable(path):
    """All controllers, for what is below."""
    with open(f"{path}/cgroup.controllers") as f:
        names = f.read().split()
    with open(f"{path}/cgroup.subtree_control", "w") as f:
        f.write(" ".join("+" + name for name in names))


def _copy(source, target):
    with open(source) as f:
        value = f.read().strip()
    with open(target, "r+") as f:
        if not f.read().strip():
            f.write(value)

"""Containers of one pod, through the shim's Task service alone: no client between the test and the
bytes.

    shim = members.pod(t)
    document = shim.document()
    code, out = members.Member(shim, "c1", document).run()
"""

import json
import os
import re
import select
import shutil
import threading

import shimcall
from harness import Failure
from shimcall import number, text

GROUP, KIND = "io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.container-type"
PROCESS = "types.containerd.io/opencontainers/runtime-spec/1/Process"


class Member:
    """A container of a pod whose shim is called by hand."""

    def __init__(self, shim, name, document, rootfs=None):
        """rootfs: containerd's mount list, encoded; without one it is the shim's own."""
        self.shim, self.name, self.execs = shim, name, 0
        self.rootfs = rootfs or shim.rootfs()
        self.capabilities = document.get("process", {}).get("capabilities")
        self.bundle = os.path.join(shim.t.work, "bundles", name)
        self.fifo = os.path.join(self.bundle, "out")
        document["annotations"] = {GROUP: shim.name, KIND: "container"}
        document["linux"]["cgroupsPath"] = f"/{shim.t.tag}/{name}"
        os.makedirs(os.path.join(self.bundle, "rootfs"))
        with open(os.path.join(self.bundle, "config.json"), "w") as f:
            f.write(json.dumps(document))
        os.mkfifo(self.fifo)

    def call(self, method, *parts):
        return self.shim.call(method, text(1, self.name), *parts)

    def create(self, *more):
        return self.call("Create", text(2, self.bundle), self.rootfs, *more)

    def start(self):
        """Keeps running, without output."""
        self.create()
        self.call("Start")
        return self

    def end(self):
        self.call("Kill", number(3, 9))
        self.call("Wait")
        self.call("Delete")

    def run(self):
        """To its end; what it wrote and its exit code."""
        out = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        collector = Collector(out)
        try:
            self.create(text(6, self.fifo))
            self.call("Start")
            collector.start()
            code = self.call("Wait").get(1, 0)
            data = collector.end()
        finally:
            os.close(out)
        self.call("Delete")
        return code, data

    def exec(self, *args):
        """Runs a program in it to its end; exit code and output."""
        self.execs += 1
        e, path = text(2, f"e{self.execs}"), os.path.join(self.bundle, f"e{self.execs}")
        process = {"cwd": "/", "args": args, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0},
                   **({"capabilities": self.capabilities} if self.capabilities else {})}
        os.mkfifo(path)
        out = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        collector = Collector(out)
        try:
            self.call("Exec", e, text(5, path),
                      shimcall.wrapped(7, PROCESS, json.dumps(process).encode()))
            self.call("Start", e)
            collector.start()
            code = self.call("Wait", e).get(1, 0)
            data = collector.end()
            self.call("Delete", e)
        finally:
            os.close(out)
            os.unlink(path)
        return code, data

    def wipe(self):
        """As containerd removes a bundle."""
        shutil.rmtree(self.bundle)


class Collector:
    """Reads a FIFO until its writer has closed it."""

    def __init__(self, fd):
        self.fd, self.parts = fd, []
        self.thread = threading.Thread(target=self._read, daemon=True)

    def start(self):
        self.thread.start()

    def _read(self):
        while True:
            select.select([self.fd], [], [], 60)
            try:
                part = os.read(self.fd, 1 << 20)
            except BlockingIOError:
                continue
            if not part:
                return
            self.parts.append(part)

    def end(self):
        self.thread.join(30)
        if self.thread.is_alive():
            raise Failure("the output's writer did not close it after the exit")
        return b"".join(self.parts)


def pod(t, name="p1"):
    """A shim with its pod's first container, running."""
    shim = shimcall.Shim(t, name)
    document = shim.document()
    document["annotations"] = {GROUP: name, KIND: "sandbox"}
    shim.spec(document)
    shim.start()
    shim.create()
    shim.call("Start", text(1, name))
    return shim


def own_kib(pid):
    """Heap, stacks, written data. (PSS grows when another shim ends that shared the program.)"""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return int(re.search(r"^Anonymous:\s+(\d+)", f.read(), re.M).group(1))


def told(line):
    """Progress, while a test runs: a comment in the TAP output."""
    os.write(1, f"# {line}\n".encode())

"""A private containerd: own root, state, sockets and configuration; started, killed, started again
by its pid."""

import os
import signal
import subprocess
import time

import packages
from harness import Failure

START_SECONDS = 60

# What a test does not need and what would look outside its directory.
DISABLED = {
    2: ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
        "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
        "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
        "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"],
    3: ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
        "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
        "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
        "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
        "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"],
}

CONFIG = """version = {format}
root = "{dir}/root"
state = "{dir}/state"
temp = "{dir}/temp"
oom_score = 0
disabled_plugins = [{disabled}]
[grpc]
address = "{dir}/c.sock"
[ttrpc]
address = "{dir}/c.sock.ttrpc"
[debug]
level = "{level}"
"""
LEVEL = "debug"  # of its log, and so of the shims'


class Containerd:
    def __init__(self, version, directory, env, more="", enable=()):
        """more: lines for its configuration; enable: plugins that are off for the other tests."""
        self.version, self.dir, self.popen = version, directory, None
        self.address = os.path.join(directory, "c.sock")
        self.config_path = os.path.join(directory, "config.toml")
        self.log_path = os.path.join(directory, "containerd.log")
        self.env = {**env, "PATH": packages.search_path(version)}
        os.mkdir(directory)
        number = 3 if version.startswith("2") else 2
        with open(self.config_path, "w") as f:
            f.write(CONFIG.format(format=number, dir=directory, level=LEVEL, disabled=", ".join(
                f'"{p}"' for p in DISABLED[number] if p not in enable)) + more)

    def bundle(self, namespace, container=""):
        return os.path.join(self.dir, "state/io.containerd.runtime.v2.task", namespace, container)

    @property
    def log(self):
        try:
            with open(self.log_path, errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def start(self):
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(
                [packages.program(self.version, "containerd"), "-c", self.config_path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, cwd=self.dir,
                start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"containerd {self.version} does not come up:\n{self.log[-3000:]}")
            time.sleep(0.05)

    def _answers(self):
        return subprocess.run([packages.program(self.version, "ctr"), "-a", self.address,
                               "--connect-timeout", "1s", "version"], env=self.env,
                              capture_output=True, timeout=20).returncode == 0

    def kill(self):
        """As a crash would end it; its sockets stay."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def restart(self):
        self.kill()
        self.start()

    def stop(self):
        if self.popen and self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

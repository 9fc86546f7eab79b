"""A private dockerd on the test's containerd, and the docker command.

    @docker.test("docker run prints what the program writes")
    def output(t, d):
        t.equal(d("run", "--rm", IMAGE, "echo", "hi"), "hi")

Its data, sockets and state are in the test's directory, its bridge and its iptables rules in the
worker's network namespace, its containers below a cgroup of the test's name.
"""

import glob
import json
import os
import re
import signal
import subprocess
import time

import archives
import cell
import e2e
import harness
import packages
import terminal
from harness import Failure

START_SECONDS = 60
DEADLINE = 600
TABLES = packages.folder("iptables")
LIBRARIES = os.path.join(TABLES, "usr/lib/x86_64-linux-gnu")


class Docker:
    def __init__(self, t):
        self.t, self.popen = t, None
        self.dir = os.path.join(t.work, "docker")
        self.socket = os.path.join(self.dir, "d.sock")
        self.log_path = os.path.join(t.work, "c/dockerd.log")  # kept with containerd's
        self.cgroup = f"/{t.tag}-docker"
        os.mkdir(self.dir)
        bins = os.path.join(self.dir, "bin")
        os.mkdir(bins)
        for name in ("iptables", "ip6tables"):
            os.symlink(os.path.join(TABLES, "usr/sbin/xtables-nft-multi"), os.path.join(bins, name))
        where = [os.path.join(packages.folder(p), at) for p, at in (
            ("docker", "usr/bin"), ("docker", "usr/sbin"), ("runc", "usr/sbin"))]
        self.env = {**t.env, "HOME": self.dir, "DOCKER_CONFIG": self.dir,
                    "DOCKER_HOST": f"unix://{self.socket}",
                    "PATH": ":".join([bins, *where, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])}

    def program(self, where):
        return os.path.join(packages.folder("docker"), "usr", where)

    @property
    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def start(self):
        argv = [self.program("sbin/dockerd"), "--config-file", self.dir + "/daemon.json",
                "--data-root", self.dir + "/data", "--exec-root", self.dir + "/exec",
                "--pidfile", self.dir + "/pid", "--host", f"unix://{self.socket}",
                "--containerd", self.t.containerd.address, "--containerd-namespace", self.t.tag,
                "--containerd-plugins-namespace", self.t.tag + "-plugins",
                "--storage-driver", "overlay2", "--cgroup-parent", self.cgroup,
                "--default-runtime", self.t.runtime, "--userland-proxy=false"]
        with open(self.dir + "/daemon.json", "w") as f:
            json.dump({"live-restore": True}, f)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env={**self.env, "LD_LIBRARY_PATH": LIBRARIES,
                                               "XTABLES_LIBDIR": LIBRARIES + "/xtables"},
                                          cwd=self.dir, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while self.command("version").code != 0:
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"dockerd does not come up:\n{self.log[-3000:]}")
            time.sleep(0.1)

    def restart(self):
        """With live-restore: its containers run on."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()
        os.remove(self.dir + "/pid")
        self.start()

    # ------------------------------------------------------------ docker

    def start_command(self, *args, stdin=subprocess.DEVNULL, stdout=None):
        p = harness.Process(self.t, [self.program("bin/docker"), *args], stdin, stdout, self.env,
                            (), False)
        self.t.processes.append(p)
        return p

    def command(self, *args, seconds=e2e.SECONDS, **how):
        return self.start_command(*args, **how).wait(seconds)

    def __call__(self, *args, **how):
        """docker, which must succeed; its output without the last line's end."""
        r = self.command(*args, **how)
        self.t.equal(r.code, 0, f"docker {' '.join(args)[:300]}: {r}")
        return r.out.rstrip("\n")

    def fails(self, *args, pattern="", **how):
        r = self.command(*args, **how)
        self.t.check(r.code != 0, f"docker {' '.join(args)[:300]} did not fail", r)
        self.t.words(pattern, r.err + r.out, r)
        return r

    def terminal(self, *args):
        """docker on a pseudo-terminal."""
        return terminal.Terminal(self.t, f"DOCKER_HOST={self.env['DOCKER_HOST']}",
                                 f"DOCKER_CONFIG={self.dir}", self.program("bin/docker"), *args,
                                 program="/usr/bin/env")

    def load(self, image):
        self("load", "-i", archives.path(image))

    def inspect(self, what, template):
        return self("inspect", "--format", template, what)

    # ------------------------------------------------------------ the end

    def stop(self):
        """Removes what the test did not, then stops dockerd and takes away what that never does."""
        trouble = []
        if self.popen and self.popen.poll() is None:
            for kind, ls, rm in (("container", ("ps", "-aq"), ("rm", "-fv")),
                                 ("volume", ("volume", "ls", "-q"), ("volume", "rm")),
                                 ("network", ("network", "ls", "-q", "--filter", "type=custom"),
                                  ("network", "rm"))):
                for one in self.command(*ls).out.split():
                    r = self.command(*rm, one)
                    if r.code != 0:
                        trouble.append(f"{kind} {one} cannot be removed: {r}")
            self.popen.terminate()
            try:
                self.popen.wait(30)
            except subprocess.TimeoutExpired:
                self.popen.send_signal(signal.SIGKILL)
                self.popen.wait()
                trouble.append("dockerd did not stop")
        self.clear()
        if trouble:
            raise Failure("\n".join(trouble))

    def clear(self):
        """dockerd leaves its bridges, rules and mounts for the next one."""
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        links = subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout
        for name in [link["ifname"] for link in json.loads(links)]:
            if re.match(r"docker\d|br-", name):
                subprocess.run(["ip", "link", "del", name], check=True)
        with open("/proc/self/mounts") as f:
            below = [line.split()[1] for line in f if line.split()[1].startswith(self.dir + "/")]
        for path in reversed(below):
            cell.umount(path)
        for path in glob.glob(f"/sys/fs/cgroup/*{self.cgroup}") + ["/sys/fs/cgroup" + self.cgroup]:
            if os.path.isdir(path):
                os.rmdir(path)  # only if nothing is in it
        for path in ("/run/docker/plugins", "/run/docker"):  # whatever its settings are
            if os.path.isdir(path):
                os.rmdir(path)


def test(name, images=("static",), **how):
    """As e2e.test, on the containerd that Docker's suite has; the body gets a Docker, too."""
    def declare(body):
        def with_docker(t):
            d = Docker(t)
            t.at_end(d.stop)
            d.start()
            for image in images:
                d.load(image)
            body(t, d)
        with_docker.__module__ = body.__module__
        e2e.test(name, images=(), versions=("2.1",), deadline=how.pop("deadline", DEADLINE),
                 **how)(with_docker)
        return body
    return declare

"""containerd's own Tasks service, one call at a time: what ctr does in one go, taken apart.

    tasks = taskapi.Tasks(t)
    tasks.create("c1", out=fifo)      # the container was made by ctr containers create
    tasks.start("c1")
    tasks.wait("c1")                  # its exit status
"""

import functools

import grpcwire
import shimcall
from grpcwire import Error  # noqa: F401
from shimcall import number, text

SECONDS = 120
PROCESS = "types.containerd.io/opencontainers/runtime-spec/1/Process"
CREATED, RUNNING, STOPPED, PAUSED = 1, 2, 3, 4  # containerd.v1.types.Status


class Tasks:
    def __init__(self, t):
        self.t = t

    def call(self, method, *parts, service="tasks.v1.Tasks", seconds=SECONDS):
        return grpcwire.unary(self.t.containerd.address,
                              f"/containerd.services.{service}/{method}", b"".join(parts), seconds,
                              metadata=(("containerd-namespace", self.t.tag),))

    def fields(self, method, *parts, **how):
        return shimcall.fields(self.call(method, *parts, **how))

    @functools.lru_cache
    def rootfs(self, container):
        """The mount that its snapshot is, as Create wants it: the message is the same."""
        answer = self.call("Mounts", text(1, "overlayfs"), text(2, container),
                           service="snapshots.v1.Snapshots")
        return text(3, shimcall.fields(answer)[1])

    def container(self, name, like, runtime, options_url, options):
        """A container with runtime options that no ctr can say; its spec and its snapshot are those
        of another, which ctr made."""
        found = shimcall.fields(self.fields("Get", text(1, like),
                                            service="containers.v1.Containers")[1])
        self.call("Create", text(1, b"".join((
            text(1, name), text(3, found[3]),
            text(4, text(1, runtime) + shimcall.wrapped(2, options_url, options)),
            text(5, found[5]), text(6, found[6]), text(7, found[7])))),
            service="containers.v1.Containers")

    def create(self, container, out="", rootfs_of="", **how):
        return self.fields("Create", text(1, container), self.rootfs(rootfs_of or container),
                           text(5, out), **how)[2]

    def start(self, container, exec_id="", **how):
        return self.fields("Start", text(1, container), text(2, exec_id), **how).get(1, 0)

    def exec(self, container, exec_id, spec, out="", **how):
        self.call("Exec", text(1, container), text(3, out), shimcall.wrapped(6, PROCESS, spec),
                  text(7, exec_id), **how)

    def status(self, container, exec_id=""):
        answer = self.fields("Get", text(1, container), text(2, exec_id))
        return shimcall.fields(answer[1]).get(4, 0)

    def wait(self, container, exec_id="", **how):
        return self.fields("Wait", text(1, container), text(2, exec_id), **how).get(1, 0)

    def kill(self, container, signo, exec_id="", **how):
        self.call("Kill", text(1, container), text(2, exec_id), number(3, signo), **how)

    def pause(self, container):
        self.call("Pause", text(1, container))

    def resume(self, container):
        self.call("Resume", text(1, container))

    def delete(self, container, exec_id="", **how):
        """The exit status of its answer."""
        if exec_id:
            answer = self.fields("DeleteProcess", text(1, container), text(2, exec_id), **how)
        else:
            answer = self.fields("Delete", text(1, container), **how)
        return answer.get(3, 0)

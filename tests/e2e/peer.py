"""containerd 2.2 and later, as far as a shim sees it: Debian has no such version. The words are those
of its sources (core/runtime/v2, pkg/shim, plugins/sandbox, plugins/snapshots/erofs, internal/cri/io,
core/transfer/streaming of v2.2.7 and main).

    peer = Peer(t, "s1", "2.3")
    peer.start()                                  # -info, then start with BootstrapParams
    task = peer.task("c1", document, mounts)      # a connection of its own, as containerd's
    task.create(); task.start(); task.wait()
"""

import json
import os
import socket
import struct
import subprocess
import threading

import packages
import shimcall
from harness import Failure
from shimcall import number, text, wrapped

REQUEST, RESPONSE, DATA = 1, 2, 3
CLOSED, OPEN, NO_DATA = 1, 2, 4
ALLOWED = "containerd.io/runtime-allow-mounts"
TASK = "containerd.task.v{}.Task"
SANDBOX = "containerd.runtime.sandbox.v1.Sandbox"
STREAMING = "containerd.services.streaming.v1.Streaming"
TRANSFER = "containerd.types.transfer."
WINDOW = 65536


def erofs_mounts(writable, layers, verified=True):
    """An active snapshot of the erofs snapshotter in block mode; layers topmost first."""
    n = len(layers)
    lower = "{{ mount 1 }}" if n == 1 else f"{{{{ overlay 1 {n} }}}}"
    return [("mkfs/ext4", writable, "X-containerd.mkfs.fs=ext4",
             "X-containerd.mkfs.size=67108864", "rw", "loop"),
            *(("erofs", layer, "ro", "loop",
               *([f"X-containerd.dmverity={layer}.dmverity"] if verified else []))
              for layer in layers),
            ("format/mkdir/overlay", "overlay",
             "X-containerd.mkdir.path={{ mount 0 }}/upper:0755",
             "X-containerd.mkdir.path={{ mount 0 }}/work:0755",
             "workdir={{ mount 0 }}/work", "upperdir={{ mount 0 }}/upper", f"lowerdir={lower}")]


class Connection:
    """As a ttrpc client: requests may be under way side by side."""

    def __init__(self, path, namespace):
        self.namespace, self._next, self._answers = namespace, 1, {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(shimcall.TIMEOUT)
        self._socket.connect(path)

    def close(self):
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader
        except OSError:
            pass
        self._socket.close()

    def frame(self, stream, kind, flags, body=b""):
        self._socket.sendall(struct.pack(">IIBB", len(body), stream, kind, flags) + body)

    def read(self):
        """(stream, type, flags, body); None at the end."""
        try:
            size, stream, kind, flags = struct.unpack(
                ">IIBB", shimcall.read_exactly(self._socket, 10))
        except (Failure, OSError):
            return None
        return stream, kind, flags, shimcall.read_exactly(self._socket, size)

    def request(self, service, method, payload, flags=0):
        stream, self._next = self._next, self._next + 2
        pair = text(1, "containerd-namespace-ttrpc") + text(2, self.namespace)
        self.frame(stream, REQUEST, flags, text(1, service) + text(2, method) + text(3, payload) +
                   text(5, pair))
        return stream

    def answer(self, stream):
        while stream not in self._answers:
            got = self.read()
            if not got:
                raise Failure("the shim closed the connection instead of an answer")
            self._answers[got[0]] = got[3]
        answer = shimcall.fields(self._answers.pop(stream))
        status = shimcall.fields(answer.get(1, b""))
        if status.get(1):
            raise shimcall.Status(status[1], status.get(2, b"").decode(errors="replace"))
        return answer.get(2, b"")

    def call(self, service, method, *parts):
        return shimcall.fields(self.answer(self.request(service, method, b"".join(parts))))


class Stream:
    """One stream of stdio, opened as containerd's CRI does; it reads in a thread of its own."""

    def __init__(self, peer, stream_id, reads=True):
        self._c = Connection(peer.address, peer.t.tag)
        self._id = self._c.request(STREAMING, "Stream", b"", OPEN)
        self.data, self.granted, self.ended, self._window = b"", 0, False, threading.Semaphore(0)
        self._send("containerd.services.streaming.v1.StreamInit", text(1, stream_id))
        got = self._c.read()
        if not got or got[1:3] != (DATA, 0):
            raise Failure(f"{stream_id}: {got} instead of an acknowledgement")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        if reads:
            self.grant()

    def _send(self, url, value):
        self._c.frame(self._id, DATA, 0, text(1, url) + text(2, value))

    def grant(self, size=WINDOW):
        self._send(TRANSFER + "WindowUpdate", number(1, size))
        self.granted += size

    def _read(self):
        while (got := self._c.read()) and not got[2] & CLOSED and got[1] == DATA:
            any_ = shimcall.fields(got[3])
            value = shimcall.fields(any_.get(2, b""))
            if any_[1] == (TRANSFER + "WindowUpdate").encode():
                for _ in range(value[1]):
                    self._window.release()
                continue
            self.data += value.get(1, b"")
            if len(self.data) > self.granted:
                raise Failure("more than was granted")
            if self.granted - len(self.data) < WINDOW:
                self.grant()
        self.ended = bool(got and got[1] == DATA)
        self.close()

    def write(self, data):
        for at in range(0, len(data), 1024):
            part = data[at:at + 1024]
            for _ in part:
                self._window.acquire(timeout=shimcall.TIMEOUT)
            self._send(TRANSFER + "Data", text(1, part))

    def close(self):
        """The end of what we send, then of the connection, as in main; 2.1 keeps the connection."""
        try:
            self._c.frame(self._id, DATA, CLOSED | NO_DATA)
        except OSError:
            pass  # closed by then
        self._c.close()

    def wait(self, seconds=shimcall.TIMEOUT):
        self._thread.join(seconds)
        if not self.ended:
            raise Failure(f"a stream has not ended: {self.data[-200:]!r}")
        return self.data


class Task:
    def __init__(self, peer, name, document, rootfs, bundle=None):
        self.peer, self.name, self.document = peer, name, document
        self.rootfs = peer.left_to_runtime(rootfs)
        self.bundle = bundle or os.path.join(peer.t.work, "bundles", name)
        os.makedirs(os.path.join(self.bundle, "rootfs"), exist_ok=True)
        with open(os.path.join(self.bundle, "config.json"), "w") as f:
            json.dump(document, f)
        self._c = Connection(peer.address, peer.t.tag)
        self.waiting = None

    def call(self, method, *parts):
        return self._c.call(self.peer.service, method, text(1, self.name), *parts)

    def uri(self, stream):
        return f"ttrpc+unix://{self.peer.address}?streaming_id={stream}"

    def create(self):
        """With stdout as a stream, which is opened first."""
        self.out = Stream(self.peer, f"{self.name}-stdout")
        mounts = b"".join(
            text(3, text(1, kind) + text(2, source) + b"".join(text(4, o) for o in options))
            for kind, source, *options in self.rootfs)
        self.call("Create", text(2, self.bundle), mounts, text(6, self.uri(f"{self.name}-stdout")))
        self.pid = self.call("Connect")[2]

    def start(self):
        self.waiting = self._c.request(self.peer.service, "Wait", text(1, self.name))
        self.call("Start")
        self.peer.t.equal(self.call("State")[3], self.pid)

    def wait(self):
        """Exit code and output."""
        code = shimcall.fields(self._c.answer(self.waiting)).get(1, 0)
        return code, self.out.wait()

    def exec(self, name, *args, stdin=None, reads=True):
        """A process with streams; returns it for end()."""
        process = {"cwd": "/", "args": args, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}}
        out = Stream(self.peer, f"{name}-stdout", reads)
        into = Stream(self.peer, f"{name}-stdin", False) if stdin is not None else None
        self.call("Exec", text(2, name), text(4, self.uri(f"{name}-stdin") if into else ""),
                  text(5, self.uri(f"{name}-stdout")),
                  wrapped(7, "types.containerd.io/opencontainers/runtime-spec/1/Process",
                          json.dumps(process).encode()))
        waiting = self._c.request(self.peer.service, "Wait", text(1, self.name) + text(2, name))
        self.call("Start", text(2, name))
        if into:
            into.write(stdin)
            into.close()
            self.call("CloseIO", text(2, name), number(3, 1))
        return name, waiting, out

    def end(self, process):
        name, waiting, out = process
        code = shimcall.fields(self._c.answer(waiting)).get(1, 0)
        data = out.wait()
        self.call("Delete", text(2, name))
        return code, data

    def run(self, name, *args, **how):
        return self.end(self.exec(name, *args, **how))

    def delete(self):
        """Shutdown follows, and the end of its connection."""
        self.call("Delete")
        self.call("Shutdown")
        self._c.close()


class Peer(shimcall.Shim):
    """version: "2.2" (old bootstrap, bare address, the v2 service) or "2.3" (BootstrapParams, v3)."""

    def __init__(self, t, name, version):
        super().__init__(t, name)
        self.generation = version
        self.allowed = self.info()

    def info(self):
        """The mount types that the runtime takes as they are."""
        r = subprocess.run([*self.program(), "-info"], input=b"", capture_output=True,
                           timeout=shimcall.TIMEOUT)
        self.t.equal(r.returncode, 0, r)
        said = [shimcall.fields(value) for field, value in shimcall.pairs(r.stdout) if field == 5]
        return {p[1].decode(): p[2].decode() for p in said}[ALLOWED].split(",")

    def left_to_runtime(self, mounts):
        """As the mount manager's Activate: nothing may be left for containerd to mount."""
        for kind, *_ in mounts:
            *words, last = kind.split("/")
            for word in words:
                self.t.check(f"{word}/*" in self.allowed or kind in self.allowed,
                             f"containerd would transform {kind} itself")
            if last in ("erofs", "loop"):  # it has handlers for these
                self.t.check(last in self.allowed, f"containerd would mount {last} itself")
        return mounts

    def start(self, socket_dir=""):
        address = self.t.containerd.address
        old = self.generation == "2.2"
        params = b"" if old else b"".join((
            text(1, self.name), text(2, self.t.tag), number(3, -4), text(4, "v2.3.4"),
            text(5, address + ".ttrpc"), text(6, address),
            text(7, packages.program(self.t.version, "containerd")),
            text(8, wrapped(1, "containerd.runc.v1.Options", b"")), text(9, socket_dir)))
        r = self.binary("-debug", "start", stdin=params)
        self.t.equal((r.returncode, r.stderr), (0, b""), r)
        if old:
            self.service = TASK.format(2)
            self.found(r.stdout)
            return
        result = shimcall.fields(r.stdout)
        self.t.equal((result[1], result[3]), (3, b"ttrpc"))
        self.service = TASK.format(3)
        self.found(result[2])
        if socket_dir:
            self.t.equal(os.path.dirname(self.address), socket_dir)

    def task(self, name, document, rootfs, **how):
        return Task(self, name, document, rootfs, **how)

    def sandbox(self, method, *parts):
        return self.call(method, text(1, self.name), *parts, service=SANDBOX)

"""A shim without containerd: its binary started as containerd would, its Task service called by
hand. For what no client of containerd can be made to send.

    shim = Shim(t, "c1")
    shim.start()
    shim.call("Create", text(1, "c1"), text(2, shim.bundle))     # fields, or Status is raised
"""

import json
import os
import shutil
import socket
import struct
import subprocess
import threading

import archives
import packages
from harness import Failure

TIMEOUT = 120
REQUEST, RESPONSE = 1, 2
NOT_FOUND, EXISTS, PRECONDITION, INVALID, UNIMPLEMENTED = 5, 6, 9, 3, 12


class Status(Exception):
    """An answer that is an error."""

    def __init__(self, code, message, reason=""):
        super().__init__(f"code {code}: {message} ({reason})")
        self.code, self.message, self.reason = code, message, reason


# ---------------------------------------------------------------- protobuf, as little as is needed

def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n) if n else b""


def text(field, value):
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data if data else b""


def wrapped(field, url, value):
    return text(field, text(1, url) + text(2, value))


def pairs(data):
    """Each field and its value."""
    at = 0

    def read():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
    while at < len(data):
        key = read()
        if key & 7 == 0:
            yield key >> 3, read()
        elif key & 7 == 2:
            size = read()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise Failure(f"wire type {key & 7} in {data!r}")


def fields(data):
    """field -> value of the last one; enough for flat answers."""
    return dict(pairs(data))


# ---------------------------------------------------------------- the shim

class Shim:
    def __init__(self, t, name):
        self.t, self.name = t, name
        self.bundle = os.path.join(t.work, "bundles", name)
        os.makedirs(os.path.join(self.bundle, "rootfs"))
        os.mkfifo(os.path.join(self.bundle, "log"))
        self._log = os.open(os.path.join(self.bundle, "log"), os.O_RDWR)
        self._log_thread = None
        self.address = None
        # runc's shim of 2.x knows only the new name of the service.
        self.service = f"containerd.task.{'v3' if t.is_runc and t.version == '2.1' else 'v2'}.Task"
        self.spec(self.document())
        t.at_end(self.close)

    def document(self):
        """A small, good spec."""
        kinds = ("pid", "ipc", "uts", "mount", "network")
        return {"ociVersion": "1.0.2",
                "process": {"cwd": "/", "args": ["sleep", "100000"], "env": ["PATH=/bin"],
                            "user": {"uid": 0, "gid": 0}, "noNewPrivileges": True},
                "root": {"path": "rootfs"},
                "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                           {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                            "options": ["nosuid", "mode=755"]}],
                "linux": {"cgroupsPath": f"/{self.t.tag}/{self.name}",
                          "namespaces": [{"type": kind} for kind in kinds]}}

    def spec(self, document):
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        with open(os.path.join(self.bundle, "config.json"), "wb") as f:
            f.write(data)

    def program(self):
        return [packages.program(self.t.version, "containerd-shim-runc-v2") if self.t.is_runc
                else packages.SHIM]

    def binary(self, *args, stdin=b""):
        address = self.t.containerd.address
        return subprocess.run(
            [*self.program(), "-namespace", self.t.tag, "-address", address, "-publish-binary",
             packages.program(self.t.version, "containerd"), "-id", self.name, *args],
            input=stdin, cwd=self.bundle, capture_output=True, timeout=TIMEOUT,
            env={**self.t.containerd.env, "TTRPC_ADDRESS": address + ".ttrpc",
                 "GRPC_ADDRESS": address, "NAMESPACE": self.t.tag, "MAX_SHIM_VERSION": "2"})

    def start(self):
        r = self.binary("start")
        self.t.equal(r.returncode, 0, r)
        self.found(r.stdout)

    def found(self, printed):
        """What start printed."""
        out = printed.decode().strip()
        if out.startswith("{"):
            out = json.loads(out)["address"]
        self.t.match("^unix://", out)
        self.address = out.removeprefix("unix://")
        self._log_thread = threading.Thread(target=self._drain_log, daemon=True)
        self._log_thread.start()

    def _drain_log(self):
        """Into a file beside containerd's log."""
        with open(os.path.join(self.t.work, "c", f"{self.name}.log"), "ab", buffering=0) as out:
            while part := os.read(self._log, 65536):
                out.write(part.rstrip(b"\0"))
                if part.endswith(b"\0"):  # close() wrote it; the last lines may come with it
                    return

    def delete(self):
        return self.binary("-bundle", self.bundle, "delete")

    def rootfs(self):
        """A directory with busybox; as a mount of containerd's list."""
        tree = os.path.join(self.t.work, "tree")
        if not os.path.isdir(tree):
            os.makedirs(os.path.join(tree, "bin"))
            os.mkdir(os.path.join(tree, "proc"))
            os.mkdir(os.path.join(tree, "dev"))
            shutil.copy(archives.STATIC, os.path.join(tree, "bin/busybox"))
            for applet in ("sh", "sleep", "echo", "true", "cat"):
                os.link(os.path.join(tree, "bin/busybox"), os.path.join(tree, "bin", applet))
        return text(3, text(1, "bind") + text(2, tree) + text(4, "rbind") + text(4, "rw"))

    # ------------------------------------------------------------ calls

    def connect(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(TIMEOUT)
        s.connect(self.address)
        return s

    def call(self, method, *parts, service=None):
        """One request on a connection of its own."""
        with self.connect() as s:
            send(s, 1, service or self.service, method, b"".join(parts), self.t.tag)
            return receive(s)

    def create(self, *more, name=None):
        return self.call("Create", text(1, name or self.name), text(2, self.bundle),
                         self.rootfs(), *more)

    def code(self, method, *parts):
        """The code of the answer: 0 if it is none of an error."""
        try:
            self.call(method, *parts)
            return 0
        except Status as e:
            self.t.note(f"{method}: {e}"[:300])
            return e.code

    def close(self):
        """Once: a test may do so, or forget it, before its end."""
        if self._log < 0:
            return
        try:
            if self.address and os.path.exists(self.address):
                for method, more in (("Kill", number(3, 9) + number(4, 1)), ("Wait", b""),
                                     ("Delete", b""), ("Shutdown", b"")):
                    try:
                        self.call(method, text(1, self.name), more)
                    except (Status, OSError, Failure):
                        pass  # what there is to end is ended; the audit sees the rest
            self.delete()
        finally:
            self.forget()

    def forget(self):
        """Whatever it does: nobody reads its log any more."""
        if self._log < 0:
            return
        if self._log_thread:
            os.write(self._log, b"\0")
            self._log_thread.join(5)
        os.close(self._log)
        self._log = -1


def send(s, stream, service, method, payload, namespace):
    pair = text(1, "containerd-namespace-ttrpc") + text(2, namespace)
    body = text(1, service) + text(2, method) + text(3, payload) + text(5, pair)
    s.sendall(struct.pack(">IIBB", len(body), stream, REQUEST, 0) + body)


def read_exactly(s, size):
    data = b""
    while len(data) < size:
        part = s.recv(size - len(data))
        if not part:
            raise Failure("the shim closed the connection instead of an answer")
        data += part
    return data


def receive(s):
    size, _, kind, _ = struct.unpack(">IIBB", read_exactly(s, 10))
    answer = fields(read_exactly(s, size))
    if kind != RESPONSE:
        raise Failure(f"frame of type {kind} instead of an answer")
    status = fields(answer.get(1, b""))
    if status.get(1):
        raise Status(status[1], status.get(2, b"").decode(errors="replace"),
                     answer.get(1000, b"").decode())  # decision 0034
    return fields(answer.get(2, b""))

"""A VM without lcow around it: QEMU by hand, and the host's end of the bridge in Python, frame by
frame. For tests of the agent alone; what the shim does with it is tested elsewhere.

    with BridgeVM(t, disks=[Disk(path)], shares={"1": directory}) as vm:
        vm.create(...)

Everything lives in the worker's cell: the tap is in its network namespace, files below t.work.
"""

import fcntl
import json
import os
import queue
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

from harness import IMAGE, PATIENCE, TOP, Failure, has_kvm

NULL_ID = "00000000-0000-0000-0000-000000000000"
SECONDS = 60 * PATIENCE
ACCEL = ("-accel", "kvm", "-cpu", "host") if has_kvm() else (
    "-accel", "tcg,tb-size=64", "-cpu", "max,-la57,-erms,-fsrm")

TYPES = {"Create": 0x10100101, "Start": 0x10100201, "ShutdownGraceful": 0x10100301,
         "ShutdownForced": 0x10100401, "ExecuteProcess": 0x10100501, "WaitForProcess": 0x10100601,
         "SignalProcess": 0x10100701, "ResizeConsole": 0x10100801, "GetProperties": 0x10100901,
         "ModifySettings": 0x10100a01, "NegotiateProtocol": 0x10100b01, "DumpStacks": 0x10100c01,
         "DeleteContainerState": 0x10100d01}
NOTIFICATION = 0x30100101

HOST, TCP_PORT = "169.254.64.1", 1
ENTROPY, LOG, BRIDGE, FIRST_STDIO = 1, 109, 0x40000000, 0x40000001

KERNEL_WORDS = ("console=ttyS0 panic=-1 random.trust_cpu=on no_timer_check noreplace-smp "
                "mitigations=off nokaslr cryptomgr.notests tsc=unstable rdinit=/init "
                "lcow.host=tcp lcow.loglevel=debug")


def hresult(code):
    """As it is on the wire: signed."""
    return code - (1 << 32) if code >> 31 else code


class Refused(Failure):
    def __init__(self, name, answer):
        self.code = answer["Result"] & 0xffffffff
        self.text = answer.get("ErrorMessage", "")
        self.reason = answer.get("Reason", "")
        super().__init__(f"{name}: 0x{self.code:08x}: {self.text}")


class Disk:
    def __init__(self, path, lun=0, read_only=False):
        self.path, self.lun, self.read_only = path, lun, read_only


class Stdio:
    """The host's ends of one process's streams."""

    def __init__(self, vm, ports):
        self.vm, self.ports, self.sockets = vm, ports, {}

    def connect(self):
        for name, port in self.ports.items():
            self.sockets[name] = self.vm.accepted(port)

    def read_all(self, name="out", seconds=SECONDS):
        """To the end, then closes: the guest waits for that."""
        s, data = self.sockets[name], b""
        s.settimeout(seconds)
        while part := s.recv(65536):
            data += part
        s.close()
        return data

    def read_until(self, text, name="out", seconds=SECONDS):
        s, data, deadline = self.sockets[name], b"", time.monotonic() + seconds
        while text not in data:
            s.settimeout(max(0.01, deadline - time.monotonic()))
            part = s.recv(65536)
            if not part:
                raise Failure(f"end of {name} before {text!r}: {data!r}")
            data += part
        return data

    def write(self, data):
        self.sockets["in"].sendall(data)

    def close_in(self):
        self.sockets["in"].shutdown(socket.SHUT_WR)

    def close(self):
        for s in self.sockets.values():
            s.close()


class BridgeVM:
    def __init__(self, t, disks=(), shares=None, memory="256M"):
        self.t, self.disks, self.memory = t, disks, memory
        self.shares = os.path.join(t.work, "shares")
        os.makedirs(self.shares, exist_ok=True)
        self.token, self.log, self.console = os.urandom(32), [], os.path.join(t.work, "console")
        self.notifications, self._answers, self._ports = [], {}, {}
        self._lock, self._next_id, self._next_port = threading.Lock(), 0, FIRST_STDIO
        self._bridge, self._connections, self._threads = queue.Queue(), [], []
        for name, source in (shares or {}).items():
            target = os.path.join(self.shares, name)
            shutil.copytree(source, target, symlinks=True)

    # ------------------------------------------------------------ life

    def __enter__(self):
        try:
            self._make_link()
            self._spawn()
            self.stream = self._wait(self._bridge, "the agent dials the bridge")
            self._thread(self._read_bridge)
            answer = self.call("NegotiateProtocol", "", MinimumVersion=4, MaximumVersion=4)
            self.t.equal(answer["Version"], 4)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *unused):
        if hasattr(self, "qemu"):
            self.qemu.kill()
            self.qemu.wait()
        os.close(self.tap)
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed by the test
        for thread in self._threads:
            thread.join(5)
        for connection in self._connections:
            connection.close()
        if sys.exc_info()[0] and os.environ.get("BRIDGE_VM_LOG"):
            print("\n".join(self.log[-80:]), file=sys.stderr)
            with open(self.console, errors="replace") as f:
                print(f.read()[-3000:], file=sys.stderr)

    def _make_link(self):
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(self.tap, 0x400454ca, struct.pack("16sH22x", b"lcow0", 0x1002 | 0x4000))
        for words in ("link set lcow0 address 02:6c:63:6f:77:01", "link set lcow0 up",
                      "addr add 169.254.64.1/30 dev lcow0",
                      "neigh replace 169.254.64.2 lladdr 02:6c:63:6f:77:02 dev lcow0"):
            subprocess.run(["ip", *words.split()], check=True)
        self.listener = socket.create_server((HOST, TCP_PORT))
        self._thread(self._accept)

    def _spawn(self):
        boot = os.path.join(self.t.work, "boot")
        with open(boot, "wb") as f:
            f.write((b"LCWB" + struct.pack("<IQ", 1, time.time_ns()) + self.token +
                     os.urandom(64)).ljust(128, b"\0"))
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display",
                "none", "-machine", "q35,sata=off,smbus=off,vmport=off,usb=off", *ACCEL, "-m", self.memory, "-kernel",
                f"{IMAGE}/vmlinux", "-initrd", f"{IMAGE}/initrd.cpio", "-append", KERNEL_WORDS,
                "-fw_cfg", f"name=opt/lcow/boot,file={boot}", "-serial", f"file:{self.console}",
                "-netdev", f"tap,id=link,fd={self.tap}", "-device",
                "virtio-net-pci,netdev=link,mac=02:6c:63:6f:77:02,romfile=",
                "-device", "virtio-scsi-pci,id=scsi0", "-fsdev",
                f"local,id=shares,path={self.shares},security_model=none,multidevs=remap",
                "-device", "virtio-9p-pci,fsdev=shares,mount_tag=lcow", "-qmp",
                f"unix:{self.t.work}/qmp,server=on,wait=off"]
        for disk in self.disks:
            mode = ",readonly=on" if disk.read_only else ""
            argv += ["-drive", f"if=none,id=d{disk.lun},format=raw,file={disk.path}{mode}",
                     "-device", f"scsi-hd,bus=scsi0.0,channel=0,scsi-id=0,lun={disk.lun},"
                     f"drive=d{disk.lun}"]
        with open(os.path.join(self.t.work, "qemu.err"), "wb") as err:
            self.qemu = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                         pass_fds=[self.tap])

    # ------------------------------------------------------------ hot-plug

    def qmp(self, *commands):
        """Each (name, arguments); the answers."""
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"{self.t.work}/qmp")
            s.settimeout(30)
            with s.makefile("rw", encoding="utf-8") as stream:
                stream.readline()
                answers = []
                for name, arguments in (("qmp_capabilities", {}), *commands):
                    stream.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
                    stream.flush()
                    while "event" in (answer := json.loads(stream.readline())):
                        pass
                    if "error" in answer:
                        raise Failure(f"QMP {name}: {answer['error']}")
                    answers.append(answer["return"])
        return answers[1:]

    def attach(self, disk):
        ident = f"h{disk.lun}"
        self.qmp(("blockdev-add", {"driver": "raw", "node-name": ident, "file": {
            "driver": "file", "filename": disk.path}}),
            ("device_add", {"driver": "scsi-hd", "id": ident, "bus": "scsi0.0", "channel": 0,
                            "scsi-id": 0, "lun": disk.lun, "drive": ident}))

    def detach(self, disk):
        def gone():
            try:
                return self.qmp(("blockdev-del", {"node-name": f"h{disk.lun}"}))
            except Failure:
                return None  # until the device has released it
        self.qmp(("device_del", {"id": f"h{disk.lun}"}))
        self.t.until(gone, "the disk is detached", 10)

    def _thread(self, target, *args):
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _wait(self, q, what, seconds=SECONDS):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return q.get(timeout=0.2)
            except queue.Empty:
                if self.qemu.poll() is not None:
                    with open(self.console, errors="replace") as f:
                        raise Failure(f"QEMU ended: {f.read()[-2000:]}") from None
        raise Failure(f"not within {seconds} s: {what}\n" + "\n".join(self.log[-30:]))

    # ------------------------------------------------------------ connections

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._thread(self._greet, connection)

    def _greet(self, connection):
        preface = b""
        while len(preface) < 40:
            part = connection.recv(40 - len(preface))
            if not part:
                return
            preface += part
        if preface[:36] != b"LCW1" + self.token:
            connection.close()
            return
        port = struct.unpack("<I", preface[36:])[0]
        if port == ENTROPY:
            connection.sendall(os.urandom(512))
            connection.close()
        elif port == LOG:
            with connection.makefile(errors="replace") as lines:
                for line in lines:
                    self.log.append(line.rstrip())
        elif port == BRIDGE:
            self._bridge.put(connection)
        else:
            self._port(port).put(connection)

    def _port(self, port):
        with self._lock:
            return self._ports.setdefault(port, queue.Queue())

    def accepted(self, port):
        return self._wait(self._port(port), f"the guest dials port {port}", 30)

    # ------------------------------------------------------------ messages

    def _read_exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.stream.recv(n - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def _read_bridge(self):
        try:
            while True:
                kind, size, ident = struct.unpack("<IIQ", self._read_exactly(16))
                body = json.loads(self._read_exactly(size - 16))
                if kind == NOTIFICATION:
                    self.notifications.append(body)
                    with self._lock:
                        self._answers.setdefault("order", []).append(("notification", body["ContainerId"]))
                else:
                    with self._lock:
                        self._answers.setdefault("order", []).append(("answer", ident))
                    self._answers[ident].put(body)
        except (EOFError, OSError):
            pass

    def order(self):
        """What came over the bridge so far: ("answer", id) and ("notification", container)."""
        with self._lock:
            return list(self._answers.get("order", []))

    def send(self, name, container, **keys):
        """Without waiting for the answer; gives the request's id."""
        body = {"ContainerId": container, "ActivityId": NULL_ID, **keys}
        data = json.dumps(body).encode() + b"\n"
        with self._lock:
            ident, self._next_id = self._next_id, self._next_id + 1
            self._answers[ident] = queue.Queue()
            self.stream.sendall(struct.pack("<IIQ", TYPES[name], 16 + len(data), ident) + data)
        return ident

    def answer(self, ident, seconds=SECONDS):
        return self._wait(self._answers[ident], f"answer {ident}", seconds)

    def has_answer(self, ident):
        return not self._answers[ident].empty()

    def call(self, name, container=NULL_ID, seconds=SECONDS, **keys):
        answer = self.answer(self.send(name, container, **keys), seconds)
        if answer["Result"] != 0:
            raise Refused(name, answer)
        return answer

    def refused(self, name, container=NULL_ID, **keys):
        """It must be; gives the Refused."""
        try:
            answer = self.call(name, container, **keys)
        except Refused as r:
            return r
        raise Failure(f"{name} was not refused: {answer}")

    # ------------------------------------------------------------ requests

    def modify(self, resource, action="Add", container=NULL_ID, **settings):
        return self.call("ModifySettings", container, Request={
            "RequestType": action, "ResourceType": resource, "Settings": settings})

    def modify_refused(self, resource, action="Add", container=NULL_ID, **settings):
        return self.refused("ModifySettings", container, Request={
            "RequestType": action, "ResourceType": resource, "Settings": settings})

    def _create_keys(self, spec, bundle, scratch, **more):
        return {"ContainerConfig": json.dumps({
            "SchemaVersion": {"Major": 2, "Minor": 1}, "OciBundlePath": bundle,
            "OciSpecification": spec, "ScratchDirPath": scratch, **more})}

    def create(self, container, spec, bundle, scratch="", **more):
        return self.call("Create", container, **self._create_keys(spec, bundle, scratch, **more))

    def create_refused(self, container, spec, bundle, scratch="", **more):
        return self.refused("Create", container, **self._create_keys(spec, bundle, scratch, **more))

    def _stdio(self, names):
        ports = {}
        for name in names:
            ports[name], self._next_port = self._next_port, self._next_port + 1
        keys = {"in": "StdIn", "out": "StdOut", "err": "StdErr"}
        wanted = {f"Create{keys[n]}Pipe": True for n in names}
        return Stdio(self, ports), wanted, {keys[n]: p for n, p in ports.items()}

    def execute_keys(self, names, **parameters):
        stdio, wanted, ports = self._stdio(names)
        return stdio, {"Settings": {"ProcessParameters": json.dumps({**wanted, **parameters}),
                                    "VsockStdioRelaySettings": ports}}

    def execute(self, container=NULL_ID, names=("out", "err"), **parameters):
        """pid and the connected streams."""
        stdio, keys = self.execute_keys(names, **parameters)
        pid = self.call("ExecuteProcess", container, **keys)["ProcessId"]
        stdio.connect()
        return pid, stdio

    def exec(self, container, *args, names=("out", "err"), **process):
        return self.execute(container, names, OciProcess=make_process(*args, **process))

    def exec_refused(self, container, *args, **process):
        _, keys = self.execute_keys(("out",), OciProcess=make_process(*args, **process))
        return self.refused("ExecuteProcess", container, **keys)

    def send_wait(self, container, pid, timeout_ms=0xffffffff):
        return self.send("WaitForProcess", container, ProcessId=pid, TimeoutInMs=timeout_ms)

    def wait(self, container, pid, seconds=SECONDS):
        return self.call("WaitForProcess", container, seconds, ProcessId=pid,
                         TimeoutInMs=0xffffffff)["ExitCode"]

    def run(self, container, *args, data=None, **process):
        """exec to its end: code, output, errors."""
        names = ("out", "err") if data is None else ("in", "out", "err")
        pid, io = self.exec(container, *args, names=names, **process)
        if data is not None:
            io.write(data)
            io.close_in()
        out, err = io.read_all("out"), io.read_all("err")
        return self.wait(container, pid), out, err

    def shell(self, script):
        """In the VM, outside containers."""
        pid, io = self.execute(names=("out", "err"), CommandArgs=["sh", "-c", script],
                               Environment={"PATH": "/sbin:/bin"}, WorkingDirectory="/")
        out, err = io.read_all("out"), io.read_all("err")
        code = self.wait(NULL_ID, pid)
        if code != 0:
            raise Failure(f"{script}: {code}: {err.decode()}")
        return out.decode()

    def properties(self, container, *types, seconds=SECONDS):
        answer = self.call("GetProperties", container, seconds,
                           Query=json.dumps({"PropertyTypes": types}))
        return json.loads(answer["Properties"])

    def signal(self, container, pid, signo):
        return self.call("SignalProcess", container, ProcessId=pid, Options={"Signal": signo})

    def delete(self, container):
        return self.call("DeleteContainerState", container)


# ---------------------------------------------------------------- documents

def make_process(*args, terminal=False, cwd="/", env=("PATH=/bin:/sbin",), **more):
    return {"terminal": terminal, "user": {"uid": 0, "gid": 0}, "args": list(args),
            "env": list(env), "cwd": cwd, **more}


def make_spec(root, *args, annotations=None, namespaces=("pid", "ipc", "uts", "mount", "network"),
              resources=None, mounts=(), linux=None, hostname="", root_more=None, **process):
    spec = {
        "ociVersion": "1.0.2", "process": make_process(*args, **process),
        "root": {"path": root, **(root_more or {})},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                    "options": ["nosuid", "mode=755"]},
                   {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
                    "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]},
                   {"destination": "/sys", "type": "sysfs", "source": "sysfs",
                    "options": ["nosuid", "noexec", "nodev", "ro"]}, *mounts],
        "linux": {"resources": resources or {}, "namespaces": [{"type": n} for n in namespaces],
                  **(linux or {})},
        "annotations": annotations or {},
        "windows": {"network": {"networkNamespace": NULL_ID}}}
    if hostname:
        spec["hostname"] = hostname
    return spec


# ---------------------------------------------------------------- files

def busybox_tree(t):
    """A root file system of busybox and little else."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(TOP, "image"))
    import inputs  # pylint: disable=import-outside-toplevel
    tree = os.path.join(t.work, "rootfs")
    unpacked = os.path.join(t.work, "busybox")
    inputs.unpack(inputs.fetch("busybox-static"), unpacked)
    for path in ("bin", "sbin", "etc", "proc", "sys", "dev", "tmp", "root", "home/app"):
        os.makedirs(os.path.join(tree, path))
    os.chmod(os.path.join(tree, "tmp"), 0o1777)
    program = os.path.join(tree, "bin/busybox")
    shutil.copy(os.path.join(unpacked, "bin/busybox"), program)
    for name in subprocess.run([program, "--list"], check=True, capture_output=True,
                               text=True).stdout.split():
        if name != "busybox":
            os.symlink("busybox", os.path.join(tree, "bin", name))
    with open(os.path.join(tree, "etc/passwd"), "w") as f:
        f.write("root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n")
    with open(os.path.join(tree, "etc/group"), "w") as f:
        f.write("root:x:0:\napp:x:1001:\nextra:x:2000:app\n")
    with open(os.path.join(tree, "etc/marker"), "w") as f:
        f.write("from the image\n")
    shutil.rmtree(unpacked)
    return tree


def ext4_image(t, name, size="64M", tree=None):
    path = os.path.join(t.work, name)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", *(["-d", tree] if tree else []), path, size],
                   check=True, stdout=subprocess.DEVNULL)
    return path

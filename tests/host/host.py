"""An emulated host: a VM whose processor has SVM, so that lcow's own VMs run by KVM in it, on a
machine that has none. What is written to its disk ends with it.

    with host.Host("kvm", share="build/host/share") as h:
        h.run("lcow doctor")                # its output; raises if it fails
"""
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import root

HERE = os.path.dirname(os.path.realpath(__file__))
MEMORY_MIB = 6144
BOOT_SECONDS = 900  # ceilings for a busy machine: a quiet one needs 20 s
RUN_SECONDS = 1200
KERNEL_OPTIONS = ("root=/dev/vda console=ttyS0 loglevel=5 panic=-1 mitigations=off no_timer_check tsc=reliable "
                  "nokaslr cryptomgr.notests random.trust_cpu=on systemd.show_status=0 intel_iommu=on iommu=pt")
# With two processors one VM start in 25 died of the emulated SVM (QEMU 10.0); with one, none did.
CPUS = 1
PRIORITY = -10  # of its process and its session
# What the host's kernel says when the emulated SVM has mixed up its registers with a guest's.
FAULTS = re.compile(r"scheduling while atomic|BUG:|Oops|general protection|WARNING: CPU|soft lockup|"
                    r"rcu.*stall|unexpected vmexit|kvm.*(KVM_BUG|unhandled)")
NVME_MIB = 64


class Failure(Exception):
    pass


class Host:
    def __init__(self, name, share, logs, slower=1):
        """share: a directory that the host sees, read-only, as /share. logs: where consoles go.
        slower: its clocks run so many times slower than ours. seconds here are the host's."""
        self.variant, self.share, self.logs, self.slower = root.VARIANTS[name], share, logs, slower
        self.console = os.path.join(logs, "console.log")
        self.qemu = self.port = None
        self.lost = False  # it ended, or an answer is outstanding

    def __enter__(self):
        files = root.make(self.variant)
        os.makedirs(self.logs, exist_ok=True)
        self.work = tempfile.mkdtemp(prefix="lcow-host.")
        path = os.path.join(self.work, "commands")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        self.nvme = os.path.join(self.work, "nvme.img")
        with open(self.nvme, "wb") as f:
            f.truncate(NVME_MIB << 20)
        with open(os.path.join(self.logs, "qemu.log"), "wb") as log:
            self.qemu = subprocess.Popen(self.command(files, path), stdin=subprocess.DEVNULL, stdout=log,
                                         stderr=log, preexec_fn=prepare_child,
                                         env={**os.environ, **self.clock(), "TMPDIR": self.logs})
        try:
            listener.settimeout(60)
            self.port = listener.accept()[0]
            if self.message(self.deadline(BOOT_SECONDS)) != b"ready":
                raise Failure("the host's agent speaks out of turn")
            self.run("mkdir -p /share && modprobe 9pnet_virtio && "
                     "mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=1048576 share /share")
        except (Failure, OSError) as e:
            self.__exit__()
            raise Failure(f"the emulated host did not start: {e}\n{self.tail()}") from e
        finally:
            listener.close()
        return self

    def __exit__(self, *_):
        if self.port:
            self.port.close()
        self.qemu.kill()
        self.qemu.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    def command(self, files, path):
        drive = "format=raw,cache=unsafe,aio=threads,snapshot=on"
        return ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                "-machine", "q35,sata=off,smbus=off,vmport=off,usb=off",
                "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max", "-smp", str(CPUS),
                "-m", str(MEMORY_MIB), "-kernel", os.path.join(files, "vmlinuz"),
                "-initrd", os.path.join(files, "initrd.cpio"),
                "-append", f"{KERNEL_OPTIONS} {self.variant.options}",
                # Before all other devices: those behind it are at 00:10.0, 00:11.0 and 00:12.0.
                # (QEMU's amd-iommu loses interrupts.)
                "-device", "intel-iommu,intremap=on,caching-mode=on",
                "-drive", f"file={self.nvme},if=none,id=nv,format=raw,cache=unsafe",
                "-device", "nvme,drive=nv,serial=lcow,addr=0x10", "-device", "edu,addr=0x11",
                "-netdev", "user,id=n,restrict=on", "-device", "e1000e,netdev=n,addr=0x12,romfile=",
                # Two functions in one IOMMU group. (Linux holds those of an e1000e to be isolated.)
                "-device", "edu,addr=0x13.0,multifunction=on", "-device", "e1000,addr=0x13.1,romfile=",
                "-serial", f"file:{self.console}",
                "-drive", f"file={os.path.join(files, 'disk.img')},if=none,id=d,{drive}",
                "-device", "virtio-blk-pci,drive=d", "-device", "virtio-rng-pci",
                "-device", "virtio-serial-pci", "-chardev", f"socket,id=c,path={path}",
                "-device", "virtserialport,chardev=c,name=commands",
                "-fsdev", f"local,id=s,path={self.share},security_model=none,readonly=on,multidevs=remap",
                "-device", "virtio-9p-pci,fsdev=s,mount_tag=share"]

    def clock(self):
        """QEMU's environment."""
        if self.slower == 1:
            return {}
        library = os.path.join(self.work, "slow_clock.so")
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library,
                        os.path.join(HERE, "slow_clock.c")], check=True)
        return {"LD_PRELOAD": library, "LCOW_SLOWER": str(self.slower)}

    # ------------------------------------------------------------ commands

    def deadline(self, seconds):
        return time.monotonic() + seconds * self.slower

    def run(self, script, code=0, seconds=RUN_SECONDS, show=None):
        """What a shell script printed, both streams; code None: whatever its exit code is. show is
        called with each part of it as it comes."""
        deadline, parts, data = self.deadline(seconds + 60), [], f"{seconds}\n{script}".encode()
        self.port.sendall(b"%d\n" % len(data) + data)
        while part := self.message(deadline):
            parts.append(part)
            if show:
                show(part)
        got = int(self.message(deadline))
        text = b"".join(parts).decode(errors="replace")
        if code is not None and got != code:
            raise Failure(f"{script}: exit code {got}, not {code}:\n{text[-16000:]}")
        return text

    def message(self, deadline):
        length = b""
        while not length.endswith(b"\n"):
            length += self.receive(1, deadline)
        return self.receive(int(length), deadline)

    def receive(self, count, deadline):
        data = b""
        while len(data) < count:
            ready = select.select([self.port], [], [], max(0, deadline - time.monotonic()))[0]
            part = self.port.recv(count - len(data)) if ready else None
            if not part:
                self.lost = True
            if part is None:
                raise Failure("the host did not answer in time")
            if not part:
                raise Failure("the host has ended")
            data += part
        return data

    # ------------------------------------------------------------ what it said

    def mark(self):
        """Where its console ends now, for faults()."""
        return os.path.getsize(self.console)

    def faults(self, mark):
        """Lines of the console since then that tell of a fault of the host's kernel."""
        with open(self.console, "rb") as f:
            f.seek(mark)
            lines = f.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if FAULTS.search(line))

    def alive(self):
        return self.qemu.poll() is None and not self.lost

    def state(self):
        """What lcow's VMs and containerd have to say, for a failing case."""
        try:
            if not self.alive():
                return "(the host has ended)"
            return self.run("sh /share/tree/tests/host/state", code=None, seconds=120)
        except Failure as e:
            return str(e)

    def tail(self, lines=60):
        """The end of the host's console, for a failing case."""
        try:
            with open(self.console, errors="replace") as f:
                return "".join(f.readlines()[-lines:])
        except FileNotFoundError:
            return "(no console)"


def prepare_child():
    """It dies with us. Its time limits are real time and its processor is one of ours, so it comes before
    other tests that run beside it; it has a session of its own because Linux weighs sessions, then processes."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setsid()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        with open("/proc/self/autogroup", "w", encoding="ascii") as f:
            f.write(str(PRIORITY))
    except OSError:
        pass  # no right to, or no such groups: it only takes longer

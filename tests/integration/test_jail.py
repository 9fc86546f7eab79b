"""From inside QEMU's jail: what the running process can see and do."""

import errno
import os
import re
import stat
import subprocess

import cell
import leaks
from harness import Failure, test

DEVICES = {os.makedev(1, 3), os.makedev(1, 9), os.makedev(10, 200), os.makedev(10, 232)}  # null, urandom, tun, kvm
CAPS = 0x1B  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")
SYSTEM_DIRS = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/lib", "/lib32", "/lib64",
               "/libx32", "/usr/share/qemu", "/usr/share/seabios", "/usr/share/qemu-firmware",
               "/usr/share/ipxe", "/usr/share/edk2")
HOST_FILES = ("/etc/shadow", "/etc/passwd", "/etc/hostname", "/root", "/home", "/run", "/var",
              "/tmp", "/proc/1", "/proc/self/mem", "/sys", "/work", "/opt", "/srv", "/mnt", "/usr/bin/env",
              "/usr/sbin", "/bin/sh", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/net/tun")


def running(t):
    p = t.start_boot("sleep", "1000", progress=True)
    p.await_stage("negotiated")
    return p, p.await_vmm()


def status(pid):
    with open(f"/proc/{pid}/status") as f:
        return dict(re.findall(r"^(\w+):[ \t]*(.*)$", f.read(), re.MULTILINE))


def inside(pid, look, namespaces=("mnt", "net", "ipc", "uts")):
    """Runs look() in a child that has joined the namespaces of pid, and returns its lines."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fds = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in namespaces]
            for fd in fds:
                cell.join_namespace(fd)
            text = "\n".join(look())
        except BaseException as e:
            text = f"probe failed: {e!r}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, errors="replace") as f:
        text = f.read()
    os.waitpid(child, 0)
    if text.startswith("probe failed"):
        raise Failure(text)
    return text.splitlines()


@test("QEMU runs under a user id of its own with four capabilities and no way to more")
def credentials(t):
    _, vmm = running(t)
    s = status(vmm)
    uids, gids = set(s["Uid"].split()), set(s["Gid"].split())
    t.equal(len(uids), 1)
    t.check(int(uids.pop()) in t.scope.uids, f"user id {s['Uid']} is not in the configured range")
    t.equal(gids, set(s["Uid"].split()))
    t.equal(s["Groups"].strip(), "")
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh"):
        t.equal((kind, int(s[kind], 16)), (kind, CAPS))
    t.equal(s["NoNewPrivs"], "1")
    t.equal(s["Seccomp"], "2")
    for thread in os.listdir(f"/proc/{vmm}/task"):
        s = status(f"{vmm}/task/{thread}")
        t.equal((s["Seccomp"], s["NoNewPrivs"], int(s["CapEff"], 16)), ("2", "1", CAPS))


@test("QEMU has namespaces of its own and is alone in them")
def namespaces(t):
    p, vmm = running(t)
    for name in NAMESPACES:
        own, its = (os.readlink(f"/proc/{pid}/ns/{name}") for pid in (p.pid, vmm))
        t.check(own != its, f"the {name} namespace is lcow's")
    space = os.readlink(f"/proc/{vmm}/ns/pid")
    visible = []
    for pid in leaks.parents():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == space:
                visible.append(pid)
        except OSError:
            pass
    t.equal(visible, [vmm])
    t.equal(status(vmm)["NSpid"].split()[-1], "1")


@test("no file of the host but system libraries, firmware, kernel and initrd is in the jail")
def files(t):
    _, vmm = running(t)
    with open(f"/proc/{vmm}/mountinfo") as f:
        mounts = [line.split() for line in f]
    for fields in mounts:
        point, flags = fields[4], fields[5].split(",")
        if point.startswith("/dev/"):
            t.check("noexec" in flags and "nosuid" in flags, f"{point} is {flags}")
            continue
        t.check(point == "/" or point in SYSTEM_DIRS or point.startswith("/boot/") or
                point == "/usr/bin/qemu-system-x86_64" or
                point in ("/shares", "/proc/self/fd"),
                f"{point} is mounted in the jail", " ".join(fields))
        t.check("ro" in flags and "nosuid" in flags and "nodev" in flags, f"{point} is {flags}")

    def tree():
        """Everything on the jail's own file system, without what is mounted there."""
        device = os.lstat("/").st_dev
        for top, dirs, names in os.walk("/"):
            dirs[:] = [d for d in dirs if os.lstat(os.path.join(top, d)).st_dev == device]
            for name in dirs + names:
                path = os.path.join(top, name)
                st = os.lstat(path)
                if st.st_dev == device:
                    kind = {stat.S_IFDIR: "dir", stat.S_IFLNK: "link", stat.S_IFREG: "file"}
                    yield f"{kind.get(stat.S_IFMT(st.st_mode), 'other')} {path}"
    found = inside(vmm, tree)
    t.check(found, "the jail is empty: the test looks at the wrong place")
    for line in found:
        kind, path = line.split(" ", 1)
        # overcommit_memory is a text of ours that QEMU asks for, not the host's setting.
        t.check(kind in ("dir", "link") or path.startswith("/boot/") or
                path == "/proc/sys/vm/overcommit_memory", f"a strange thing: {line}")
        if kind == "dir":
            known = [*SYSTEM_DIRS, "/boot", "/dev", "/shares", "/usr/bin",
                     "/proc/self/fd", "/proc/sys/vm"]
            t.check(any(k == path or k.startswith(path + "/") for k in known), f"strange: {line}")


@test("what an attacker would look for first is not in the jail, and nothing can be written")
def attack(t):
    _, vmm = running(t)

    def look():
        for path in HOST_FILES:
            try:
                os.stat(path)
                yield f"there is {path}"
            except FileNotFoundError:
                pass
        for top in ("/", "/boot", "/dev", "/shares", "/usr", "/usr/lib"):
            try:
                os.close(os.open(os.path.join(top, "new"), os.O_CREAT | os.O_WRONLY))
                yield f"{top} can be written"
            except OSError:
                pass
        try:
            for name in os.listdir("/dev"):
                if name not in ("null", "zero", "urandom", "random", "kvm"):
                    yield f"there is /dev/{name}"
        except FileNotFoundError:
            pass
    t.equal(inside(vmm, look), [])


@test("QEMU's network namespace has no way out")
def network(t):
    p, vmm = running(t)
    out = subprocess.run(["nsenter", "-t", str(vmm), "-n", "ip", "-o", "addr"],
                         capture_output=True, text=True, check=True).stdout
    links = subprocess.run(["nsenter", "-t", str(vmm), "-n", "ip", "-o", "link"],
                           capture_output=True, text=True, check=True).stdout
    t.equal(re.findall(r"^\d+: ([^:@]+)", links, re.MULTILINE), ["lo"], links)
    t.equal(out.strip(), "", "lo has addresses")
    routes = subprocess.run(["nsenter", "-t", str(vmm), "-n", "ip", "route", "show", "table", "all"],
                            capture_output=True, text=True, check=True).stdout
    t.equal(routes.strip(), "")


@test("the guest reaches the link's listener and nothing else of the host")
def guest_network(t):
    r = t.boot("sh", "-c",
               "ls /sys/class/net | tr '\\n' ' '; ip route | tr '\\n' ' ';"
               "for port in 22 80 2024 5001; do nc -w 1 169.254.64.1 $port </dev/null && echo open; "
               "done; nc -w 1 8.8.8.8 53 </dev/null && echo out; true")
    t.equal(r.code, 0, r)
    t.check("open" not in r.out and "out" not in r.out, "the guest reached something", r)
    t.check("default" not in r.out, "the guest has a default route", r)


def change_mode(path, st):
    """To the one it has: nothing changes where that is possible. QEMU has CAP_FOWNER, as we do."""
    try:
        os.chmod(path, stat.S_IMODE(st.st_mode))
        return "changed"
    except OSError as e:
        return errno.errorcode[e.errno]


@test("QEMU holds no file descriptor but sockets, the tap, memory and the image's files")
def descriptors(t):
    p, vmm = running(t)
    for name in os.listdir(f"/proc/{vmm}/fd"):
        path = f"/proc/{vmm}/fd/{name}"
        target = os.readlink(path)
        st = os.stat(path)
        if stat.S_ISCHR(st.st_mode):
            good = st.st_rdev in DEVICES
            t.equal(change_mode(path, st), "EROFS", f"the mode of device {target}, fd {name}")
        else:
            good = re.match(r"socket:|pipe:|anon_inode:|/memfd:|/boot/|/shares$", target)
        t.check(good, f"fd {name} is {target}")


@test("no secret is on QEMU's command line or in its environment")
def secrets(t):
    p, vmm = running(t)
    with open(f"/proc/{vmm}/root/boot/lcow", "rb") as f:
        block = f.read()
    t.equal((len(block), block[:4]), (128, b"LCWB"))
    token, seed = block[16:48], block[48:112]
    t.check(any(token) and any(seed), "there is no token or no seed: nothing is shown")
    for name in ("cmdline", "environ"):
        for pid in (vmm, p.pid):
            with open(f"/proc/{pid}/{name}", "rb") as f:
                text = f.read()
            for secret in (token, seed):
                for form in (secret, secret.hex().encode(), secret.hex().upper().encode()):
                    t.check(form[:16] not in text, f"a secret is in {name} of {pid}")
    with open(f"/proc/{vmm}/environ", "rb") as f:
        names = {word.split(b"=")[0].decode() for word in f.read().split(b"\0") if word}
    t.check(names <= {"PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "MALLOC_ARENA_MAX"} and
            not {"LCOW_CONFIG", "TERM"} & names, f"QEMU's environment has {sorted(names)}")
    st = os.stat(f"/proc/{vmm}/root/boot/lcow")
    t.equal(stat.S_IMODE(st.st_mode) & 0o077, 0)


@test("what lcow keeps in run_root is for root alone")
def modes(t):
    running(t)
    seen = 0
    for top, dirs, names in os.walk(t.run_root):
        for name in dirs + names:
            path = os.path.join(top, name)
            st = os.lstat(path)
            seen += 1
            if name == "accel":
                continue  # no secret: whether KVM works
            if stat.S_ISSOCK(st.st_mode) or stat.S_ISREG(st.st_mode):
                t.equal((path, stat.S_IMODE(st.st_mode) & 0o077, st.st_uid), (path, 0, 0))
    t.check(seen > 0, "there is nothing in run_root")
    home = os.path.join(t.run_root, "boot")
    for name in os.listdir(home):
        t.equal(stat.S_IMODE(os.stat(os.path.join(home, name)).st_mode), 0o700)


@test("two VMs at once have different user ids")
def different_users(t):
    (_, a), (_, b) = running(t), running(t)
    t.check(status(a)["Uid"] != status(b)["Uid"], "they share one")
    for name in NAMESPACES:
        t.check(os.readlink(f"/proc/{a}/ns/{name}") != os.readlink(f"/proc/{b}/ns/{name}"),
                f"they share their {name} namespace")


@test("when all user ids are taken, the next VM is refused and the setting named")
def no_user_left(t):
    t.config(vm_uid_count=1)
    running(t)
    t.boot_fails("vm_uid_count", seconds=10)


@test("QEMU cannot leave a core with the guest's memory")
def no_core(t):
    _, vmm = running(t)
    with open(f"/proc/{vmm}/limits") as f:
        t.match(r"Max core file size\s+0\s+0", f.read())


@test("QEMU dies with lcow even if lcow has no chance to say so")
def dies_with_parent(t):
    p, vmm = running(t)
    with open(f"/proc/{vmm}/stat") as f:
        t.equal(int(f.read().rpartition(")")[2].split()[1]), p.pid)
    p.signal(9)
    p.popen.wait(5)
    t.until(lambda: leaks.reap_orphans(p.popen) or vmm not in leaks.parents(), "QEMU is gone", 1)
    t.equal(t.lcow("gc").code, 0)

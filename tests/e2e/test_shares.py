"""Host directories in a VM whose root means no good: `lcow exec --vm` is root in there, beside all
containers, and has the one 9p device of the VM mounted below RAW."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time

import cell
import deadfs
import members
from e2e import test
from shimcall import number, text

HERE = os.path.dirname(os.path.realpath(__file__))
RAW = "/run/mounts/9p"  # of the guest, storage.c
FOREVER = ("sleep", "100000")
REFUSED = {"EROFS", "EPERM", "EACCES", "EOPNOTSUPP", "ENXIO"}


# ---------------------------------------------------------------- places

def probe(t):
    """share_probe in a directory of its own, to be shared."""
    folder = os.path.join(t.work, "tools")
    if not os.path.isdir(folder):
        os.mkdir(folder)
        subprocess.run(["gcc", "-static", "-Os", "-Wall", "-Wextra", "-Werror", "-o",
                        f"{folder}/share_probe", f"{HERE}/share_probe.c"], check=True)
    return folder


def folder(t, name, **files):
    path = os.path.join(t.work, name)
    os.makedirs(f"{path}/d")
    for file, content in {"f": f"{name}\n", **files}.items():
        with open(os.path.join(path, file), "w") as f:
            f.write(content)
    os.symlink("f", f"{path}/l")
    try:
        os.setxattr(f"{path}/f", "user.mark", b"here")
    except OSError:
        pass  # a tmpfs of an older kernel has none
    return path


def facts(path):
    """All that a guest could have changed."""
    found = {}
    for where, dirs, files in os.walk(path):
        for name in [".", *dirs, *files]:
            full = os.path.join(where, name)
            st = os.lstat(full)
            content = open(full, "rb").read() if stat.S_ISREG(st.st_mode) else b""
            found[os.path.relpath(full, path)] = (
                st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_nlink,
                content, tuple(os.listxattr(full, follow_symlinks=False)))
    return found


def bind(source, target, how):
    return f"--mount=type=bind,src={source},dst={target},options=rbind:{how}"


def vm(t, container, *command, **how):
    return t.lcow("exec", "--vm", container, "--", *command, **how)


def shares(t, container):
    """host path -> what inspect says of it"""
    return {s["host_path"]: s for s in json.loads(t.lcow("inspect", container).out)["vm"]["shares"]}


def run_probe(t, container, *args):
    r = vm(t, container, "/mnt/tools/share_probe", *args)
    t.equal(r.code, 0, r)
    return dict(line.split() for line in r.out.splitlines())


def is_refused(operation, result):
    """9p has no exchange at all."""
    return result in REFUSED or (operation, result) == ("exchange", "EINVAL")


def start(t, name, *options):
    """A container, and the probe in its VM."""
    t.detach(*options, name, *FOREVER)
    r = t.lcow("share", name, probe(t), "/mnt/tools")
    t.equal(r.code, 0, r)


# ---------------------------------------------------------------- reading only

@test("nothing that root in the VM does changes a share that is read-only", runc=False)
def read_only(t):
    path = folder(t, "precious")
    before = facts(path)
    start(t, "c1", bind(path, "/s", "ro"), bind(probe(t), "/tools", "ro"))
    share = shares(t, "c1")[path]
    t.equal((share["read_only"], share["state"], share["holders"]), (True, "Added", 1))
    raw = f"{RAW}/{share['name']}"
    t.equal(vm(t, "c1", "cat", f"{raw}/f").out, "precious\n")
    # Its own locks are off: what refuses now is the host's kernel.
    vm(t, "c1", "mount", "-o", "remount,rw", RAW)
    vm(t, "c1", "mount", "-o", "remount,rw,bind", share["path"])
    for where in (raw, share["path"]):
        for operation, result in run_probe(t, "c1", "write", where).items():
            t.check(is_refused(operation, result), f"{operation} in {where}: {result}")
    r = t.exec("c1", "/tools/share_probe", "write", "/s")
    t.equal(r.code, 0, r)
    for operation, result in (line.split() for line in r.out.splitlines()):
        t.check(is_refused(operation, result), f"{operation} in the container: {result}")
    t.equal(facts(path), before, "what the host has")


# ---------------------------------------------------------------- mounts below a share

def mount_below(t, path, name):
    """A tmpfs with a file, a directory and a link in it, until the test or unmount() ends it."""
    cell.mount(name, path, "tmpfs")
    t.at_end(lambda: os.path.ismount(path) and cell.umount(path))
    os.mkdir(f"{path}/d")
    os.symlink("f", f"{path}/l")
    with open(f"{path}/f", "w") as f:
        f.write(f"{name}\n")


def unmount(path):
    """As umount(8) does it: EBUSY if somebody keeps it."""
    cell._call("umount2", path.encode(), 0)


@test("what the host mounts below a volume later shows if it follows (rslave), read-only where the "
      "share is, and leaves it; ro is for the top mount and rro for all", runc=False)
def follows(t):
    vol = folder(t, "vol")
    os.mkdir(f"{vol}/old")
    mount_below(t, f"{vol}/old", "old")
    t.detach(*(bind(vol, f"/{d}", how) for d, how in (
        ("rw", "rslave"), ("ro", "rslave:ro"), ("none", "rprivate"), ("top", "ro"), ("all", "rro"))),
        bind(probe(t), "/tools", "ro"), "c1", *FOREVER)
    t.equal(t.lcow("share", "c1", probe(t), "/mnt/tools").code, 0)

    def sh(script):
        return t.exec("c1", "sh", "-c", f"{script} 2>&1").out

    def reads(path, text):
        t.until(lambda: sh(f"cat {path}") == text, f"{path} is {text!r}", 60)
    can = {"rw": "00", "ro": "11", "none": "00", "top": "10", "all": "11"}
    for d, codes in can.items():
        t.equal(sh(f"touch /{d}/{d} >/dev/null; printf $?; touch /{d}/old/{d} >/dev/null; printf $?"),
                codes, f"of /{d} and /{d}/old")
    t.match("Read-only file system", sh("touch /top/x"))
    t.equal(set(os.listdir(f"{vol}/old")), {"d", "f", "l", "rw", "none", "top"})

    mount_below(t, f"{vol}/d", "later")
    reads("/rw/d/f", "later\n")
    reads("/ro/d/f", "later\n")
    mount_below(t, f"{vol}/d/d", "nested")
    reads("/ro/d/d/f", "nested\n")
    reads("/rw/d/d/f", "nested\n")
    for d in ("none", "top", "all"):
        t.equal(sh(f"ls /{d}/d"), "", f"/{d} does not follow")
    t.equal(sh("echo mine >/rw/d/mine; cat /ro/d/mine"), "mine\n")
    t.equal(open(f"{vol}/d/mine").read(), "mine\n")
    t.match("Read-only file system", sh("touch /ro/d/x"))
    before = facts(f"{vol}/d")
    read_only = [s["name"] for s in json.loads(t.lcow("inspect", "c1").out)["vm"]["shares"]
                 if s["host_path"] == vol and s["read_only"]]
    t.equal(len(read_only), 2, "/ro and /all")
    vm(t, "c1", "mount", "-o", "remount,rw", RAW)
    for below in ("d", "d/d"):
        for operation, result in run_probe(t, "c1", "write", f"{RAW}/{read_only[0]}/{below}").items():
            t.check(is_refused(operation, result) or result == "EXDEV",  # d/d is another mount
                    f"raw {operation} in {below}: {result}")
    t.equal(facts(f"{vol}/d"), before, "what the host has")

    holder = t.start_ctr(*t.exec_args("c1", "/tools/share_probe", "hold", "/rw/d/f"),
                         stdin=subprocess.PIPE)
    holder.await_output("held")
    unmount(f"{vol}/d/d")
    unmount(f"{vol}/d")  # though a process in the VM has a file open
    for d in ("rw", "ro"):
        t.until(lambda d=d: sh(f"ls /{d}/d") == "", f"/{d}/d is empty again", 60)
    holder.popen.stdin.close()
    t.match("held\nlater", holder.wait().out)
    mount_below(t, f"{vol}/d", "again")
    mount_below(t, f"{vol}/d", "above")
    reads("/ro/d/f", "above\n")
    unmount(f"{vol}/d")
    reads("/ro/d/f", "again\n")  # which stays until the container and the test end

    # One in a file system that has died: the shim answers, and others come all the same.
    fs = deadfs.Stalling(t, {"file": b""}, f"{vol}/dead", valid=0)
    fs.serve_only(threading.get_native_id())
    cell.mount(t.write("plain", "x"), fs.file("file"), None, cell.MS_BIND)
    t.at_end(lambda: cell.umount(fs.file("file")))
    t.until(lambda: fs.waiting(deadfs.LOOKUP) > 0, "a lookup waits", 60)
    began = time.monotonic()
    t.equal(t.status("c1"), "RUNNING")
    t.check(time.monotonic() - began < 4, "State had to wait")
    os.mkdir(f"{vol}/next")
    mount_below(t, f"{vol}/next", "next")
    reads("/rw/next/f", "next\n")
    fs.answer()


# ---------------------------------------------------------------- ways out

def swap(path, other, stop):
    """path is a directory and a link to other, in turns."""
    away = f"{path}.away"
    while not stop.is_set():
        os.rename(path, away)
        os.symlink(other, path)
        os.unlink(path)
        os.rename(away, path)


@test("links, .., renames and nodes lead out of no share", runc=False)
def ways_out(t):
    secret, kept, open_ = folder(t, "secret"), folder(t, "kept"), folder(t, "open")
    os.symlink(f"{secret}/f", f"{open_}/absolute")
    os.symlink("../secret/f", f"{open_}/relative")
    os.mkdir(f"{open_}/swap")
    t.write("open/swap/f", "inside\n")
    os.mknod(f"{open_}/zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    start(t, "c1", bind(open_, "/s", "rw"), bind(kept, "/k", "ro"))
    known = shares(t, "c1")
    a, b = (f"{RAW}/{known[p]['name']}" for p in (kept, open_))
    before = facts(kept)

    # Links are resolved where they are read, and there is nothing there.
    for name in ("absolute", "relative"):
        t.check(vm(t, "c1", "cat", f"{b}/{name}").code != 0, f"{name} was followed")
        t.check(t.exec("c1", "cat", f"/s/{name}").code != 0, f"{name} was followed")
    vm(t, "c1", "ln", "-s", f"{secret}/f", f"{b}/mine")
    t.equal(os.readlink(f"{open_}/mine"), f"{secret}/f")
    t.check(vm(t, "c1", "cat", f"{b}/mine").code != 0, "its own link was followed")
    # Above a share are the shares of this VM, and above them is the VM.
    names = set(vm(t, "c1", "ls", f"{b}/..").out.split())
    t.equal(names, {s["name"] for s in known.values()} | {shares(t, "c1")[probe(t)]["name"]})
    # Two shares are two mounts, even of one file system.
    for operation, result in run_probe(t, "c1", "cross", a, b).items():
        t.check(result == "EXDEV" or is_refused(operation, result),
                f"{operation} from one share to another: {result}")
    t.equal(facts(kept), before, "what is read-only")
    # A device node of the host cannot be opened, and a set-uid file in the VM itself has no effect.
    r = t.exec("c1", "head", "-c", "1", "/s/zero")
    t.check(r.code != 0, "a device on a share was opened", r)
    t.match("nodev", t.exec("c1", "grep", " /s ", "/proc/mounts").out)
    t.match("nosuid,nodev", vm(t, "c1", "grep", f" {known[open_]['path']} ", "/proc/mounts").out)
    # A directory that becomes a link while it is read.
    stop = threading.Event()
    swapper = threading.Thread(target=swap, args=(f"{open_}/swap", secret, stop))
    swapper.start()
    try:
        r = vm(t, "c1", "/mnt/tools/share_probe", "race", f"{b}/swap/f", "400")
    finally:
        stop.set()
        swapper.join(30)
    t.equal(r.code, 0, r)
    t.check(r.out.split()[1:] in ([], ["inside"]), f"it saw something else: {r.out}")
    t.check(int(r.out.split()[0]) < 400, "nothing was swapped")


# ---------------------------------------------------------------- changes on the host

@test("a share's directory is removed, replaced by a link, or unmounted under its VM", runc=False)
def under_the_vm(t):
    gone, moved, secret = folder(t, "gone"), folder(t, "moved"), folder(t, "secret")
    fs = os.path.join(t.work, "fs")
    os.mkdir(fs)
    subprocess.run(["mount", "-n", "-t", "tmpfs", "none", fs], check=True)
    mounted = [True]
    t.at_end(lambda: mounted[0] and subprocess.run(["umount", "-n", "-l", fs]))
    t.write("fs/f", "on a file system\n")
    start(t, "c1", bind(gone, "/gone", "rw"), bind(moved, "/moved", "rw"), bind(fs, "/fs", "rw"))
    t.equal(t.exec("c1", "cat", "/gone/f", "/moved/f", "/fs/f").out,
            "gone\nmoved\non a file system\n")

    subprocess.run(["rm", "-r", gone], check=True)
    t.check(t.exec("c1", "cat", "/gone/f").code != 0, "a file that is gone")
    t.check(t.exec("c1", "touch", "/gone/new").code != 0, "a directory that is gone")
    os.rename(moved, f"{moved}.away")
    os.symlink(secret, moved)
    t.equal(t.exec("c1", "cat", "/moved/f").out, "moved\n")
    t.equal(t.exec("c1", "sh", "-c", "echo new > /moved/n; cat /moved/n").out, "new\n")
    t.check(not os.path.exists(f"{secret}/n") and os.path.exists(f"{moved}.away/n"), "where it went")
    subprocess.run(["umount", "-n", fs], check=True)  # the share is a mount of its own
    mounted[0] = False
    t.equal(t.exec("c1", "cat", "/fs/f").out, "on a file system\n")

    before = facts(secret)
    t.must("tasks", "rm", "-f", "c1")
    t.equal(facts(secret), before, "what the link leads to")
    t.check(os.path.exists(f"{moved}.away/f"), "what was shared")


# ---------------------------------------------------------------- single files, and their end

def member(shim, name, *mounts):
    document = shim.document()
    document["mounts"] += [{"destination": to, "type": "bind", "source": source,
                            "options": ["bind", how]} for source, to, how in mounts]
    m = members.Member(shim, name, document)
    m.call("Create", text(2, m.bundle), shim.rootfs())
    m.call("Start")
    return m


def end(m):
    m.call("Kill", number(3, signal.SIGKILL), number(4, 1))
    m.call("Wait")
    m.call("Delete")


@test("two files of one directory: each container sees its own; a share that is held is detached, "
      "and that is reported", images=(), runc=False, deadline=400)
def files(t):
    path = folder(t, "both", one="first\n", two="second\n")
    shim = members.pod(t)
    c1 = member(shim, "c1", (f"{path}/one", "/file", "ro"), (path, "/d", "ro"))
    c2 = member(shim, "c2", (f"{path}/two", "/file", "rw"), (path, "/d", "ro"))
    r = t.lcow("share", "p1", probe(t), "/mnt/tools")
    t.equal(r.code, 0, r)
    t.equal(c1.exec("cat", "/file"), (0, b"first\n"))
    t.equal(c2.exec("cat", "/file"), (0, b"second\n"))
    known = shares(t, "p1")
    t.equal(known[path]["holders"], 2, "one directory, two holders")
    doc = json.loads(t.lcow("inspect", "p1").out)
    t.equal([c["id"] for c in doc["containers"] if known[path]["name"] in c["shares"]],
            ["c1", "c2"])
    for name in ("one", "two"):
        at = f"{RAW}/{known[f'{path}/{name}']['name']}"
        t.equal(vm(t, "p1", "ls", "-A", at).out, f"{name}\n")
        t.check(vm(t, "p1", "cat", f"{at}/f").code != 0, "another file of the directory")
    t.equal(c2.exec("sh", "-c", "echo changed > /file")[0], 0)
    t.equal(open(f"{path}/two").read(), "changed\n")
    t.check(c1.exec("sh", "-c", "echo changed > /file")[0] != 0, "it is read-only")

    # Somebody in the VM keeps the file open: it is taken away all the same, and told.
    number_ = known[f"{path}/two"]["name"]
    holder = t.start("exec", "--vm", "p1", "--", "/mnt/tools/share_probe", "hold",
                          f"{RAW}/{number_}/two", stdin=subprocess.PIPE)
    holder.await_output("held")
    end(c2)
    left = shares(t, "p1")
    t.check(f"{path}/two" not in left, "its share is gone")
    t.equal(left[path]["holders"], 1, "the other container's")
    t.check(vm(t, "p1", "ls", f"{RAW}/{number_}").code != 0, "its name is gone")
    log = open(os.path.join(t.work, "c", "p1.log"), errors="replace").read
    reported = re.compile(rf"level=warn.* share={number_}\b")
    t.until(lambda: reported.search(log()) or reported.search(t.containerd.log), "it is reported", 30)
    t.equal(c1.exec("cat", "/file", "/d/two"), (0, b"first\nchanged\n"))
    holder.popen.stdin.close()
    t.match("held\nchanged", holder.wait().out)
    # Names are never used again.
    c3 = member(shim, "c3", (f"{path}/two", "/file", "ro"))
    t.check(int(shares(t, "p1")[f"{path}/two"]["name"]) > int(number_), "a new name")
    end(c3)
    end(c1)


# ---------------------------------------------------------------- what it cannot do

@test("limits of virtio-9p are as the manual says: fifos and sockets end at the VM, no nodes, "
      "unlinked files", runc=False)
def limits(t):
    path = folder(t, "open")
    start(t, "c1", bind(path, "/s", "rw"), bind(probe(t), "/tools", "ro"))
    r = t.exec("c1", "/tools/share_probe", "limits", "/s")
    t.equal(r.code, 0, r)
    works = ("fifo", "fifo-open", "fifo-use", "fifo-chmod", "socket", "socket-listen",
             "socket-connect")
    t.equal(dict(line.split() for line in r.out.splitlines()),
            {**{name: "done" for name in works}, "device": "EPERM", "truncate-unlinked": "ENOENT",
             "chmod-unlinked": "ENOENT"})
    t.check(not os.path.lexists(f"{path}/null"), "a node was made")
    with socket.socket(socket.AF_UNIX) as s:  # a name, and nobody behind it
        try:
            s.connect(f"{path}/socket")
            t.check(False, "the host reached into the VM")
        except ConnectionRefusedError:
            pass
    docs = " ".join(open(os.path.join(HERE, "../../docs/limits.md")).read().split())
    t.match("a socket or FIFO in one connects processes of the same VM only.* ENOENT", docs)

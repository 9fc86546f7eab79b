"""Every kind of mount and device: seen inside, its rules hold, gone afterwards."""

import contextlib
import os
import re
import stat
import subprocess

import cell
import cri
import members
import pod as pods
from e2e import test
from harness import Skip
from pod import FOREVER, pod_test

MIB = 1 << 20
MS_RDONLY, MS_SHARED = 1, 1 << 20


def image(t, name, size=8 * MIB, **files):
    """An ext4 image with these files."""
    folder = os.path.join(t.work, f"{name}.d")
    os.makedirs(folder)
    for file, text in files.items():
        t.write(f"{name}.d/{file}", text)
    path = t.write(name, b"")
    os.truncate(path, size)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", folder, path], check=True)
    return path


def of_image(path, name):
    r = subprocess.run(["debugfs", "-R", f"cat /{name}", path], capture_output=True, check=True)
    return r.stdout.decode()


def loop(t, path):
    """A block device of the host with that file behind it."""
    r = subprocess.run(["losetup", "--find", "--show", path], capture_output=True)
    if r.returncode != 0:
        raise Skip(f"no loop devices here: {r.stderr.decode().strip()}")
    device = r.stdout.decode().strip()
    t.at_end(lambda: subprocess.run(["losetup", "--detach", device], check=True))
    return device


@contextlib.contextmanager
def mounted(*how):
    cell.mount(*how)
    try:
        yield
    finally:
        cell.umount(how[1])


def mount_for(t, source, target, *how, **more):
    """Until the test ends. (mount(8) leaves a directory in /run.)"""
    cell.mount(source, target, *how, **more)
    t.at_end(lambda: cell.umount(target))


def empty_dir(t, name, mode=0o777, uid="uid"):
    """As the kubelet makes it."""
    path = os.path.join(t.work, f"pods/{uid}/volumes/kubernetes.io~empty-dir/{name}")
    os.makedirs(path)
    os.chmod(path, mode)
    return path


def mount(host_path, container_path, **how):
    return {"host_path": host_path, "container_path": container_path, **how}


# ---------------------------------------------------------------- disks

@test("virtual-disk: an image is mounted, written to, and itself again afterwards", runc=False,
      smoke="one")
def virtual_disk(t):
    path, other = image(t, "disk.img", there="from the image\n"), image(t, "ro.img", a="kept\n")
    r = t.run("--rm", f"--mount=type=virtual-disk,src={path},dst=/disk",
              f"--mount=type=virtual-disk,src={other},dst=/ro,options=ro", "c1", "sh", "-c",
              "cat /disk/there /ro/a && echo back >/disk/new && grep ' /disk ' /proc/mounts; "
              "echo x >/ro/a; echo $?; mount -o remount,rw /ro; echo $?")
    t.match(r"from the image\nkept\n\S+ /disk ext4 rw", r.out, r)
    t.match(r"\n1\n\d+\n$", r.out, r)
    t.equal((of_image(path, "new"), of_image(other, "a")), ("back\n", "kept\n"))
    subprocess.run(["e2fsck", "-fn", path], check=True, capture_output=True)


@test("virtual-disk as a device: read and written raw",
      runc=False)
def raw_disk(t):
    path = t.write("raw.img", b"head" + bytes(MIB - 4))
    r = t.run("--rm", f"--mount=type=virtual-disk,src={path},dst=blockdev:///dev/xvda", "c1", "sh",
              "-c", "test -b /dev/xvda && head -c4 /dev/xvda && echo && "
              "printf tail | dd of=/dev/xvda bs=1 seek=1048572 conv=fsync,notrunc 2>/dev/null && "
              "wc -c </dev/xvda")
    t.equal((r.code, r.out), (0, f"head\n{MIB}\n"), r)
    with open(path, "rb") as f:
        t.equal(f.read()[-4:], b"tail")


@test("physical-disk: a block device of the host; one that the host uses is refused", runc=False)
def physical_disk(t):
    device = loop(t, image(t, "disk.img", there="on the device\n"))
    option = f"--mount=type=physical-disk,src={device},dst=/disk"
    r = t.run("--rm", option, "c1", "cat", "/disk/there")
    t.equal((r.code, r.out), (0, "on the device\n"), r)
    folder = os.path.join(t.work, "mnt")
    os.mkdir(folder)
    with mounted(device, folder, "ext4", MS_RDONLY):
        r = t.run("--rm", option, "c2", "true")
    t.check(r.code != 0, "a device that is mounted on the host was given to a VM")
    t.words(rf"mount {device} on /disk: {device} is in use on the host: unmount it", r.err, r)
    t.explains("c2", "DISK_IN_USE")


@test("mounts that cannot be are refused by their names, with the remedy", runc=False)
def refused(t):
    plain, folder = t.write("plain", "x" * 1024), os.path.join(t.work, "folder")
    os.mkdir(folder)
    os.mkfifo(os.path.join(folder, "fifo"))
    wrong = (
        (f"type=virtual-disk,src={folder},dst=/d", r"mount \S+ on /d: \S+ is not a regular file.*"
         "physical-disk", "MOUNT_SOURCE_INVALID"),
        (f"type=physical-disk,src={plain},dst=/d", r"is not a block device.*virtual-disk",
         "MOUNT_SOURCE_INVALID"),
        (f"type=virtual-disk,src={folder}/none,dst=/d", r"mount \S+none on /d: .*[Nn]o such file",
         "MOUNT_SOURCE_MISSING"),
        (f"type=virtual-disk,src={plain},dst=/d", r"mount \S+plain: .*file system",
         "DISK_NO_FILESYSTEM"),
        ("type=nfs,src=server:/x,dst=/d", r'mount on /d: .*"nfs".*use a bind mount',
         "MOUNT_UNSUPPORTED"),
        (f"type=bind,src={folder}/none,dst=/d,options=rbind", r"mount \S+none on /d: ",
         "MOUNT_SOURCE_MISSING"),
        (f"type=bind,src={folder}/fifo,dst=/d,options=rbind", r"fifo.*cannot be shared",
         "MOUNT_SOURCE_INVALID"),
        (f"type=bind,src={folder},dst=/d,options=rbind:rshared", r"mount on /d: rshared",
         "MOUNT_PROPAGATION"),
    )
    for number, (text, words, reason) in enumerate(wrong):
        r = t.run("--rm", f"--mount={text}", f"c{number}", "true")
        t.check(r.code != 0, f"{text} was not refused", r)
        t.words(words, r.err, r)
        t.explains(f"c{number}", reason)
    t.equal(t.run("--rm", "good", "echo", "well").out, "well\n")


# ---------------------------------------------------------------- of the VM

@test("tmpfs with a size, mqueue, proc, sysfs; recursive read-only; propagation of what is there",
      runc=False)
def in_the_guest(t):
    folder = os.path.join(t.work, "tree")
    os.makedirs(os.path.join(folder, "below"))
    mount_for(t, "t", os.path.join(folder, "below"), "tmpfs")
    t.write("tree/below/file", "deep\n")
    r = t.run("--rm", "--mount=type=tmpfs,src=tmpfs,dst=/t,options=size=1m:nosuid",
              f"--mount=type=bind,src={folder},dst=/rro,options=rbind:rro",
              f"--mount=type=bind,src={folder},dst=/slave,options=rbind:rslave:ro", "c1", "sh",
              "-c", "df -k /t | tail -1 | awk '{print $2}'; grep -c ' /dev/mqueue mqueue ' "
              "/proc/mounts; cat /rro/below/file /slave/below/file; "
              "for f in /rro/x /rro/below/x; do touch $f 2>/dev/null; echo $?; done; "
              "head -c 2000000 /dev/zero >/t/much 2>/dev/null; echo $?")
    t.equal((r.code, r.out), (0, "1024\n1\ndeep\ndeep\n1\n1\n1\n"), r)


@test("a container's limit of processes holds", images=(), runc=False)
def pids(t):
    shim = members.pod(t)
    document = shim.document()
    document["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup",
                               "source": "cgroup", "options": ["ro"]})
    document["linux"]["resources"] = {"pids": {"limit": 20}}
    document["process"]["args"] = [
        "sh", "-c", "cat /sys/fs/cgroup/pids.max; i=0; while [ $i -lt 60 ]; do sleep 100 & "
        "i=$((i + 1)); done; echo all of them"]
    code, out = members.Member(shim, "c1", document).run()
    t.match(r"^20\n", out.decode())
    t.check(code != 0 and b"all of them" not in out, f"60 processes, the limit is 20: {out}")


# ---------------------------------------------------------------- propagation

@pod_test("a volume with HostToContainer shows what the host mounts below it later", runc=True,
          smoke="one")
def host_to_container(t):
    volume = os.path.join(t.work, "volume")
    os.makedirs(volume)
    mount_for(t, "volume", volume, "tmpfs")
    cell.mount(None, volume, None, MS_SHARED)  # the CRI insists
    os.mkdir(f"{volume}/disk")
    pod = t.pod("p1")
    how = {"propagation": cri.PROPAGATION_HOST_TO_CONTAINER}
    c = pod.run("c1", *FOREVER, mounts=[mount(volume, "/v", **how), mount(volume, "/p"),
                                        mount(volume, "/r", readonly=True, **how)])
    cell.mount("disk", f"{volume}/disk", "tmpfs")
    t.write("volume/disk/file", "later\n")
    for path in ("/v", "/r"):
        t.until(lambda p=path: c.exec("cat", f"{p}/disk/file").out == "later\n",
                f"{path} shows it", 60)
    t.equal(c.sh("ls /p/disk; echo x >/v/disk/x; cat /r/disk/x"), "x\n")
    if not t.is_runc:  # there the later mount is writable
        t.match("Read-only file system", c.exec("touch", "/r/disk/y").err)
    cell.umount(f"{volume}/disk")
    t.until(lambda: c.sh("ls /v/disk /r/disk") == "/r/disk:\n\n/v/disk:\n", "both are empty", 60)


# ---------------------------------------------------------------- emptyDir

@pod_test("emptyDir lives in the VM: socket and fifo between two containers, owner, mode and "
          "fsGroup, nothing on the host", smoke="one", runc=False)
def sockets(t):
    t.load("network")
    t.at_end(lambda: t.start_tool("-n", pods.NAMESPACE, "images", "rm",
                                  pods.archives.name("network")).wait(30))
    folder = empty_dir(t, "run", 0o2775)
    os.chown(folder, 0, 4321)
    pod = t.pod("p1")
    mounts = [mount(folder, "/run/shared")]
    a = pod.run("a", "netecho", "serve", "/run/shared/socket", "-", mounts=mounts, image="network")
    b = pod.run("b", *FOREVER, mounts=mounts, image="network")
    a.await_log("up")
    t.equal(b.sh("netecho tcp /run/shared/socket - 100000"), "same\n")
    t.equal(b.sh("stat -c '%u %g %a' /run/shared; touch /run/shared/f; stat -c %g /run/shared/f"),
            "0 4321 2775\n4321\n")
    b.sh("mkfifo /run/shared/fifo")
    t.equal(a.exec("sh", "-c", "(sleep 0; echo through) >/run/shared/fifo & cat /run/shared/fifo").out,
            "through\n")
    t.equal(os.listdir(folder), [], "on the host")
    a.stop()
    a.remove()
    c = pod.run("c", *FOREVER, mounts=mounts)
    t.match("fifo", c.sh("ls /run/shared"))  # of the pod, not of a container
    t.match(r"(?m)^\S+ /run/shared ext4 ", c.sh("cat /proc/mounts"))


@pod_test("emptyDir with medium Memory is a tmpfs of its size; two volumes of one name differ",
          runc=False)
def memory(t):
    folder, other = empty_dir(t, "cache"), empty_dir(t, "cache", uid="other")
    mount_for(t, "tmpfs", folder, "tmpfs", data="size=2m,mode=0777")
    pod = t.pod("p1")
    mounts = [mount(folder, "/cache"), mount(other, "/other")]
    a, b = (pod.run(n, *FOREVER, mounts=mounts) for n in "ab")
    t.match(r"(?m)^\S+ /cache tmpfs .*size=2048k", a.sh("cat /proc/mounts"))
    a.sh("echo x >/cache/x; echo y >/other/y")
    t.equal(b.sh("cat /cache/x /other/y; ls /cache /other"), "x\ny\n/cache:\nx\n\n/other:\ny\n")
    t.equal(a.exec("sh", "-c", "head -c 3000000 /dev/zero >/cache/much").code, 1)
    t.equal(os.listdir(folder), [])


@pod_test("emptyDir: subPath directories of the kubelet, read-only mounts, and files that were "
          "there", runc=False)
def sub_paths(t):
    folder, full = empty_dir(t, "data"), empty_dir(t, "full")
    os.makedirs(os.path.join(folder, "logs"))
    os.chmod(os.path.join(folder, "logs"), 0o750)
    os.chown(os.path.join(folder, "logs"), 1000, 2000)
    bound = os.path.join(t.work, "pods/uid/volume-subpaths/data/a/0")
    os.makedirs(bound)
    mount_for(t, os.path.join(folder, "logs"), bound, "", cell.MS_BIND)
    with open(os.path.join(full, "file"), "w") as f:
        f.write("of the host\n")
    pod = t.pod("p1")
    a = pod.run("a", *FOREVER, mounts=[mount(bound, "/logs"), mount(full, "/full")])
    b = pod.run("b", *FOREVER, mounts=[mount(folder, "/data"), mount(folder, "/ro", readonly=True)])
    t.equal(a.sh("stat -c '%u %g %a' /logs; echo line >/logs/l; cat /full/file"),
            "1000 2000 750\nof the host\n")
    t.equal(b.sh("cat /data/logs/l; ls /data"), "line\nlogs\n")
    t.equal(b.exec("sh", "-c", "echo x >/ro/x").code, 1, "a read-only mount was written to")
    t.equal(os.listdir(os.path.join(folder, "logs")), [], "on the host")
    a.sh("echo back >/full/new")  # one with files is the host's
    t.equal(sorted(os.listdir(full)), ["file", "new"])


DEEP = ("p=d; i=1; while [ $i -lt 1000 ]; do p=$p/d; i=$((i + 1)); done; "
        "for top in /tmp/deep /data; do mkdir -p $top; cd $top; "
        "for n in 1 2 3 4 5; do mkdir -p $p && cd -P $p || exit 1; done 2>/dev/null; done")


@pod_test("5,000 directories within each other, in a root and in an emptyDir: the container and "
          "its pod are deleted", runc=False)
def deep_tree(t):
    folder = empty_dir(t, "data")
    pod = t.pod("p1")
    a = pod.run("a", *FOREVER, mounts=[mount(folder, "/data")])
    a.sh(DEEP, seconds=120)
    a.stop()
    a.remove()
    b = pod.run("b", *FOREVER, mounts=[mount(folder, "/data")])
    t.equal(b.sh("ls /data"), "d\n")  # of the pod, not of a container
    pod.stop()
    pod.remove()
    t.equal(os.listdir(f"{t.run_root}/.journal"), [], "something failed")


@pod_test("emptyDir of the host, if an annotation or the configuration wants it", runc=False)
def shared_empty_dir(t):
    folder = empty_dir(t, "data")
    t.pod("p0", annotations={"io.lcow.empty_dir": "often"})  # not allowed: nobody looks at it
    t.settings(allow_annotations="io.lcow.empty_dir")
    pod = t.pod("p1", annotations={"io.lcow.empty_dir": "shared"})
    c = pod.run("c1", *FOREVER, mounts=[mount(folder, "/data")])
    c.sh("echo x >/data/x")
    t.equal(os.listdir(folder), ["x"])
    t.fails(lambda: t.pod("p2", annotations={"io.lcow.empty_dir": "often"}),
            "io.lcow.empty_dir.*guest or shared")


@pod_test("a pod's /dev/shm has a size, and is one for all its containers", runc=False)
def shm(t):
    pod = t.pod("p1")
    a, b = (pod.run(n, *FOREVER) for n in "ab")
    t.match(r"(?m)^\S+ /dev/shm tmpfs .*size=65536k", a.sh("cat /proc/mounts"))
    a.sh("echo x >/dev/shm/x")
    t.equal(b.sh("cat /dev/shm/x"), "x\n")
    t.equal(a.exec("sh", "-c", "head -c 70000000 /dev/zero >/dev/shm/much").code, 1)


# ---------------------------------------------------------------- devices

@pod_test("a raw block volume is a disk of the VM under the path that was asked for, with its "
          "owner; read-only means it", runc=False)
def block_volume(t):
    path = t.write("volume.img", b"first" + bytes(2 * MIB - 5))
    device = loop(t, path)
    pod = t.pod("p1")

    def devices(permissions):
        return [{"host_path": device, "container_path": "/dev/xvdb", "permissions": permissions}]
    c = pod.run("c1", *FOREVER, devices=devices("rwm"))
    t.equal(c.sh("test -b /dev/xvdb && head -c5 /dev/xvdb; wc -c </dev/xvdb"), f"first{2 * MIB}\n")
    c.sh("printf later | dd of=/dev/xvdb conv=fsync,notrunc 2>/dev/null")
    c.stop()
    c.remove()
    with open(device, "rb") as f:
        t.equal(f.read(5), b"later")
    c = pod.run("c2", *FOREVER, devices=devices("rm"))
    t.equal(c.sh("head -c5 /dev/xvdb"), "later")
    t.check(c.exec("sh", "-c", "printf x >/dev/xvdb").code != 0, "it was written to")


@pod_test("devices: those of the VM are there, others are refused, none of the host by accident",
          runc=False)
def char_devices(t):
    pod = t.pod("p1")

    def device(path):
        return {"host_path": path, "container_path": path, "permissions": "rwm"}
    c = pod.run("c1", *FOREVER, devices=[device("/dev/kmsg"), device("/dev/full")])
    t.equal(c.sh("test -c /dev/kmsg && test -c /dev/full && echo well"), "well\n")
    loops = [n for n in os.listdir("/dev") if re.fullmatch(r"loop\d+", n)
             and stat.S_ISBLK(os.stat(f"/dev/{n}").st_mode)]
    t.check(not set(c.sh("ls /dev").split()) & set(loops), "disks of the host")
    if os.path.exists("/dev/vhost-net"):
        t.fails(lambda: pod.run("c2", *FOREVER, devices=[device("/dev/vhost-net")]),
                "device /dev/vhost-net does not exist in the VM")

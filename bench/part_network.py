"""TCP between the host and a pod on CNI's bridge, both ways, and requests of one byte; beside runc on the
same kind of bridge, in turns, and beside a VM of plain QEMU on a bridge, without lcow around it.
Alone: bench/run --only network"""

import multiprocessing
import os
import socket
import subprocess
import threading
import time

import cells
import archives
import cni
import pod
import storage
from shims import take_turns
from stats import summary

QEMU = "qemu-system-x86_64"
PORT = 5000
SECONDS = 0.5      # of a stream out
BYTES = 32 << 20   # of a stream in
CALLS = 200
TURNS, WITHIN_TURNS, QUICK_TURNS = 20, 8, 3
BLOCK = 256 << 10
RAW_ADDRESS, RAW_GATEWAY = "10.88.78.2", "10.88.78.1"
RAW_WORK = f"""modprobe virtio_net
i=0; while [ ! -e /sys/class/net/eth0 ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
ip link set lo up; ip addr add {RAW_ADDRESS}/24 dev eth0; ip link set eth0 up
/netecho rate 0.0.0.0 {PORT} &
# Until the measurement leaves the file.
while [ ! -e /mnt/end ]; do sleep 0.2; done"""

KEYS = (("net_out_mb_s", "TCP out of {}", "MB/s", False), ("net_in_mb_s", "TCP into {}", "MB/s", False),
        ("net_call_us", "TCP request/response, {}", "us", True))
VHOST = "/dev/vhost-net"
ROWS = tuple((prefix + key, what.format(of), unit, less) for prefix, of in (("", "the pod"), ("vhost_", "the pod, vhost-net"))
             for key, what, unit, less in KEYS)
VM_ROWS = tuple((f"raw_{key}", what.format("a VM of plain QEMU"), unit) for key, what, unit, _ in KEYS)


def dial(address, what):
    s = socket.create_connection((address, PORT), 60)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(what)
    return s


def out_of(address):
    """MB/s. The first block is not counted: the connection has to find its speed."""
    buffer, total = bytearray(BLOCK), 0
    with dial(address, b"o") as s:
        s.recv_into(buffer)
        begin = time.perf_counter()
        while (seconds := time.perf_counter() - begin) < SECONDS:
            total += s.recv_into(buffer)
    return total / seconds / 1e6


def into(address):
    """MB/s, until the other end has read all of it."""
    block = bytes(BLOCK)
    with dial(address, b"i") as s:
        begin = time.perf_counter()
        for _ in range(BYTES // BLOCK):
            s.sendall(block)
        s.shutdown(socket.SHUT_WR)
        s.recv(1)
        return BYTES / (time.perf_counter() - begin) / 1e6


def call_us(address):
    """Microseconds of a byte there and back, one connection: the mean of many."""
    with dial(address, b"r") as s:
        begin = time.perf_counter()
        for _ in range(CALLS):
            s.sendall(b"x")
            s.recv(1)
        return (time.perf_counter() - begin) / CALLS * 1e6


def once(address, found):
    for (key, *_), look in zip(KEYS, (out_of, into, call_us)):
        found.setdefault(key, []).append(look(address))


def network(t, turns, turn, others):
    pods = pod.Pods(t, "runc" if t.is_runc else "lcow")
    pods.load("network")
    p = pods.pod("p1")
    p.run("server", "netecho", "rate", "0.0.0.0", str(PORT), image="network").await_log("up")
    found = {}
    take_turns(turns, lambda: once(p.ip, found), turn, others)
    return {key: summary(values) for key, values in found.items()}


def await_port(address):
    for _ in range(300):
        try:
            socket.create_connection((address, PORT), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("the VM of plain QEMU did not answer")


def plain(t, turns, image, qemu):
    """One bridge, one tap, QEMU's virtio-net; the same kernel as in pods."""
    directory = os.path.join(t.work, "raw")
    os.mkdir(directory)
    for command in ("link add raw0 type bridge", "tuntap add raw1 mode tap vnet_hdr", "link set raw1 master raw0",
                    "link set raw1 up", f"addr add {RAW_GATEWAY}/24 dev raw0", "link set raw0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    t.at_end(lambda: cni.ip("link del raw1", "link del raw0"))
    said, found = [], {}
    more = ["-netdev", "tap,id=n,ifname=raw1,script=no,downscript=no", "-device",
            "virtio-net-pci,netdev=n,romfile="]
    vm = threading.Thread(target=lambda: said.append(storage.raw_vm(
        t.work, image, qemu, RAW_WORK, directory, programs=[os.path.join(archives.FOLDER, "netecho")], more=more)))
    vm.start()
    try:
        await_port(RAW_ADDRESS)
        for _ in range(turns):
            once(RAW_ADDRESS, found)
    finally:
        with open(os.path.join(directory, "end"), "wb"):
            pass
        vm.join()
    return {f"raw_{key}": summary(values) for key, values in found.items()}


for each in (network, plain):
    each.prepare, each.images = pod.prepare, ()


def with_vhost(found):
    """Beside the same runc, so its rows are lcow's only."""
    return {f"vhost_{key}": value for key, value in found.items()} if isinstance(found, dict) else found


def measure(run, vm):
    peer, keys = run.as_pods_start(vm)
    turns = QUICK_TURNS if run.facts["quick"] else WITHIN_TURNS if run.within else TURNS
    first, second = multiprocessing.Semaphore(1), multiprocessing.Semaphore(0)
    both = {"runc": cells.begin("runc", "2.1", network, turns, first, second),
            peer: cells.begin("lcow", "2.1", network, turns, second, first, **keys)}
    for name, begun in both.items():
        run.keep(name, cells.finish(begun))
    if os.path.exists(VHOST):
        run.say("the same with vhost-net")
        alone = multiprocessing.Semaphore(1)
        run.keep(peer, with_vhost(cells.run("lcow", "2.1", network, turns, alone, alone, vhost_net="auto", **keys)))
    run.say("plain QEMU on a tap")
    run.keep("vm", cells.run("runc", "2.1", plain, turns, vm.image, QEMU))

"""The network of `ctr run`: CNI by ctr itself (--cni), which comes between a task's Create and its
Start; without it; and what is refused."""

import json
import os
import re
import subprocess

import cell
import cni
from e2e import kill, test

HOST, POD = "10.77.1.1", "10.77.1.2"  # where there is a network of two
LEASES = "/run/leases"


def sh(*commands):
    for c in commands:
        subprocess.run(c.split(), check=True, capture_output=True)


def bridge(t):
    return {"type": "bridge", "bridge": "lcow0", "isGateway": True, "isDefaultGateway": True,
            "hairpinMode": True, "mtu": 1400,
            "ipam": {"type": "host-local", "dataDir": LEASES,
                     "ranges": [[{"subnet": cni.SUBNET}], [{"subnet": cni.SUBNET6}]]}}


def ptp(t):
    return {"type": "ptp", "mtu": 1450,
            "ipam": {"type": "host-local", "dataDir": LEASES, "subnet": "10.77.1.0/24",
                     "gateway": HOST, "routes": [{"dst": "0.0.0.0/0"}]}}


def macvlan(t):
    sh("ip link add parent0 type veth peer name host0", "ip link set parent0 up",
       f"ip addr add {HOST}/24 dev host0", "ip link set host0 up")
    t.at_end(lambda: sh("ip link del parent0"))
    return {"type": "macvlan", "master": "parent0", "mode": "bridge",
            "ipam": {"type": "host-local", "dataDir": LEASES, "subnet": "10.77.1.0/24",
                     "rangeStart": POD, "rangeEnd": POD}}


def give_ctr(t, plugin):
    """ctr looks in /opt/cni/bin and /etc/cni/net.d, whatever its settings are."""
    for top in ("/opt", "/etc", "/var/lib"):
        place = os.path.join(t.work, "over" + top.replace("/", "-"))
        for name in ("upper", "work"):
            os.makedirs(os.path.join(place, name))
        cell.mount("overlay", top, "overlay", 0,
                   f"lowerdir={top},upperdir={place}/upper,workdir={place}/work")
        t.at_end(lambda top=top: cell.umount(top))
    os.makedirs("/opt/cni", exist_ok=True)
    os.makedirs("/etc/cni/net.d", exist_ok=True)
    if os.path.lexists("/opt/cni/bin"):
        os.rename("/opt/cni/bin", "/opt/cni/bin.old")
    os.symlink(cni.Network.bin_dir, "/opt/cni/bin")
    with open("/etc/cni/net.d/00-test.conflist", "w") as f:
        json.dump({"cniVersion": "0.4.0", "name": "test", "plugins": [plugin(t)]}, f)
    t.at_end(lambda: subprocess.run(["ip", "link", "del", "lcow0"], capture_output=True))
    t.at_end(lambda: subprocess.run(["rm", "-rf", LEASES]))


@test("run --cni on a bridge: name, addresses, MTU, routes; the gateway answers", smoke="one")
def on_a_bridge(t):
    give_ctr(t, bridge)
    r = t.run("--rm", "--cni", "c1", "sh", "-c",
              f"ip addr; ip route; ip -6 route; ping -c 1 -W 10 {cni.GATEWAY} && "
              f"ping -c 1 -W 10 {cni.GATEWAY6}")
    t.equal(r.code, 0, r)
    t.match(r"eth0.*mtu 1400", r.out)
    t.match(r"inet 10\.88\.77\.\d+/24", r.out)
    t.match(r"inet6 fd00:88:77::[0-9a-f]+/64", r.out)
    t.match(rf"default via {re.escape(cni.GATEWAY)}", r.out)
    t.match(rf"default via {re.escape(cni.GATEWAY6)}", r.out)
    t.match(r"lo: <LOOPBACK,UP", r.out)


@test("two containers on one bridge reach each other; one goes, the other stays")
def two_on_a_bridge(t):
    give_ctr(t, bridge)
    t.detach("--cni", "c1", "sleep", "1000")
    address = re.search(r"inet (10\.88\.77\.\d+)/24", t.exec("c1", "ip", "addr").out).group(1)
    r = t.run("--rm", "--cni", "c2", "ping", "-c", "1", "-W", "10", address)
    t.equal(r.code, 0, r)
    r = t.exec("c1", "ping", "-c", "1", "-W", "10", cni.GATEWAY)
    t.equal(r.code, 0, r)


@test("run --cni with ptp: only the gateway is on the link, as the plugin left it")
def point_to_point(t):
    give_ctr(t, ptp)
    r = t.run("--rm", "--cni", "c1", "sh", "-c", f"ip route; ping -c 1 -W 10 {HOST}")
    t.equal(r.code, 0, r)
    t.match(rf"10\.77\.1\.0/24 via {re.escape(HOST)} dev eth0", r.out)
    t.match(rf"{re.escape(HOST)} dev eth0", r.out)
    t.check("10.77.1.0/24 dev eth0" not in r.out, "the whole net is on the link", r)


@test("run --cni with macvlan: the other end of the parent answers")
def on_macvlan(t):
    give_ctr(t, macvlan)
    r = t.run("--rm", "--cni", "c1", "sh", "-c", f"ip addr; ping -c 1 -W 10 {HOST}")
    t.equal(r.code, 0, r)
    t.match(rf"inet {re.escape(POD)}/24", r.out)


@test("without --cni there is loopback, up, and nothing else", smoke="one")
def loopback_only(t):
    r = t.run("--rm", "c1", "sh", "-c",
              "ip -o link; ping -c 1 -W 5 127.0.0.1 >/dev/null && echo alive")
    t.equal(r.code, 0, r)
    t.match(r"alive", r.out)
    t.check("eth" not in r.out, "there is an interface", r)
    if not t.is_runc:
        t.equal(r.out.count("\n"), 2, r)


@test("run --net-host and namespaces of the host are refused, and the message says why",
      smoke="one", runc=False)
def net_host(t):
    t.fails(*t.run_args("--rm", "--net-host", "c1", "true"), pattern="--net-host")
    t.explains("c1", "HOST_NAMESPACE")
    for kind in ("pid", "ipc"):
        t.fails(*t.run_args("--rm", f"--with-ns={kind}:/proc/1/ns/{kind}", f"c-{kind}", "true"),
                pattern=f"{kind} namespace /proc/1/ns/{kind} cannot be joined")
        t.explains(f"c-{kind}", "FOREIGN_NAMESPACE")
    t.equal(t.qemu_pids(), [])
    t.equal(t.tasks(), {})


@test("a container with a network whose shim is killed leaves nothing of it", runc=False)
def shim_killed(t):
    give_ctr(t, bridge)
    t.detach("--cni", "c1", "sleep", "1000")
    kill(t.shim_pid())
    t.until(lambda: "c1" not in t.tasks(), "the task is gone", 60)

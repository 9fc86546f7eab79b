"""Pods on the CNI bridge."""

import os
import re
import socket

import cni
from pod import FOREVER, pod_test, prepare


@pod_test("the interface in the pod is CNI's: addresses, MAC, MTU, default routes", smoke="one")
def interface(t):
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER)
    text = c.sh("ip addr show dev eth0")
    t.match(rf"inet {re.escape(pod.ip)}/24", text)
    t.match(rf"inet6 {re.escape(pod.ip6)}/64", text)
    t.match(r"mtu 1500", text)
    t.match(r"link/ether [0-9a-f:]{17}", text)
    t.match(rf"default via {re.escape(cni.GATEWAY)}", c.sh("ip route"))
    t.match(rf"default via {re.escape(cni.GATEWAY6)}", c.sh("ip -6 route"))
    t.match(r"LOOPBACK,UP", c.sh("ip link show dev lo"))
    c.sh(f"ping -c 1 -W 10 {cni.GATEWAY}")
    c.sh(f"ping -c 1 -W 10 {cni.GATEWAY6}")


@pod_test("pod to pod, both ways: TCP, UDP, 64 KiB packets, both families", smoke="one")
def pod_to_pod(t):
    t.load("network")
    pods = [t.pod(name) for name in ("p1", "p2")]
    clients = [p.run("client", *FOREVER, image="network") for p in pods]
    for pod in pods:
        pod.run("server", "netecho", "serve", "::", "5000", image="network").await_log("up")
    for client, server in ((clients[0], pods[1]), (clients[1], pods[0])):
        for address in (server.ip, server.ip6):
            t.equal(client.sh(f"netecho tcp {address} 5000 3000000"), "same\n", address)
            client.sh(f"ping -c 2 -W 10 -s 65000 {address}")
            for size in (1, 1472, 1473, 9000, 65000):
                t.equal(client.sh(f"netecho udp {address} 5000 {size}"), "same\n",
                        f"{size} bytes to {address}")


@pod_test("host to pod and back: a server in the pod, one on the host")
def host_to_pod(t):
    t.load("network")
    pod = t.pod("p1")
    pod.run("server", "netecho", "serve", "::", "5000", image="network").await_log("up")
    with socket.create_connection((pod.ip, 5000), 30) as s:
        s.sendall(b"hello")
        t.equal(s.recv(100), b"hello")
    with socket.create_server((cni.GATEWAY, 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        client = pod.run("client", "netecho", "tcp", cni.GATEWAY, str(port), "5", image="network")
        peer, where = server.accept()
        with peer:
            t.equal(where[0], pod.ip)
            while data := peer.recv(100):
                peer.sendall(data)
    client.await_exit(0)
    t.equal(client.out, "same\n")


@pod_test("one pod is removed, another added, a third keeps running")
def comes_and_goes(t):
    a, b = t.pod("p1"), t.pod("p2")
    c = b.run("c1", *FOREVER)
    c.sh(f"ping -c 1 -W 10 {a.ip}")
    a.stop()
    a.remove()
    c.sh(f"ping -c 1 -W 10 {cni.GATEWAY}")
    c.sh(f"ping -c 1 -W 10 {t.pod('p3').ip}")


COMMANDS = {
    "p1": ["ip route add 198.51.100.0/24 nexthop via 10.88.77.1 nexthop via 10.99.77.1"],
    "hole": ["ip route add blackhole 192.0.2.0/24 table 9"],
    "stack": ["ip link add link eth2 name top0 type macvlan", "ip link set top0 up"],
}
CANNOT = "in the pod's network namespace cannot be given to a VM: "


def three_networks(t):
    return prepare(t, cni.Several(os.path.join(t.work, "net"), COMMANDS))


def sent(c, interface):
    return int(c.sh(f"cat /sys/class/net/{interface}/statistics/tx_packets"))


@pod_test("three NICs: bridge, macvlan with sbr, second bridge; MTUs, tables, rules, several next "
          "hops, sysctls; packets take the right one", prepare=three_networks, runc=False,
          deadline=600, smoke="one")
def several_nics(t):
    cni.ip(*(f"addr add 198.51.100.{i}/32 dev lo" for i in range(1, 17)))
    t.at_end(lambda: cni.ip("addr flush dev lo scope global"))
    c = t.pod("p1").run("c1", *FOREVER)
    for name, mtu, parts in (("eth0", 1500, (r"10\.88\.77\.\d+/24", "fd00:88:77::")),
                             ("eth1", 1400, (r"10\.77\.1\.\d+/24", "fd00:77:1::")),
                             ("eth2", 1300, (r"10\.99\.77\.\d+/24",))):
        text = c.sh(f"ip addr show dev {name}")
        for part in (f"mtu {mtu} ",) + parts:
            t.match(part, text)
        t.equal(text.count("inet6 fe80:"), 1, text)
    own = re.search(r"inet (\S+)/24", c.sh("ip addr show dev eth1")).group(1)
    own6 = re.search(r"inet6 (fd\S+)/64", c.sh("ip addr show dev eth1")).group(1)
    for address in (cni.GATEWAY, cni.GATEWAY6, cni.SECOND):
        c.sh(f"ping -c 1 -W 10 {address}")

    # sbr: what is sent from eth1's address leaves there, whatever the main table says.
    t.match(rf"from {re.escape(own)} lookup 100", c.sh("ip rule"))
    t.match(rf"from {re.escape(own6)} lookup 101", c.sh("ip -6 rule"))
    t.match(rf"default via {re.escape(cni.MACVLAN)} dev eth1", c.sh("ip route show table 100"))
    t.match(rf"default via {re.escape(cni.MACVLAN6)} dev eth1", c.sh("ip -6 route"))  # all tables
    t.check("eth1" not in c.sh("ip route"), "the main table has routes of eth1")
    t.match(r"172\.30\.0\.0/16 via 10\.99\.77\.1 dev eth2", c.sh("ip route"))
    for source, to in ((own, "198.51.100.1"), (own6, cni.MACVLAN6)):
        before = sent(c, "eth1")
        c.sh(f"ping -c 3 -W 10 -I {source} {to}")
        t.check(sent(c, "eth1") >= before + 3, f"packets from {source} did not leave by eth1")

    # Several next hops: sixteen destinations take both.
    before = sent(c, "eth0"), sent(c, "eth2")
    c.sh("for i in $(seq 16); do ping -c 1 -W 10 198.51.100.$i || exit 1; done")
    after = sent(c, "eth0"), sent(c, "eth2")
    t.check(all(b > a for a, b in zip(before, after)), f"one way only: {before} {after}")

    for file, value in (("ipv4/conf/eth0/arp_ignore", 3), ("ipv6/conf/eth0/hop_limit", 77),
                        ("ipv4/neigh/eth0/gc_stale_time", 78), ("ipv4/conf/eth1/arp_ignore", 0)):
        t.equal(c.sh(f"cat /proc/sys/net/{file}"), f"{value}\n", file)

    for pod, message in (
            ("hole", f"route to 192.0.2.0/24 (table 9) {CANNOT}its type is not unicast"),
            ("stack", f"interface top0 (macvlan on top of eth2) {CANNOT}only a VLAN may be on top "
                      "of another interface of the pod")):
        t.fails(lambda pod=pod: t.pod(pod), re.escape(message))

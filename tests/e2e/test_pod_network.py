"""Pods on the CNI bridge."""

import re
import socket

import cni
from pod import FOREVER, pod_test


def two_pods(t):
    t.load("network")
    pods = [t.pod(name) for name in ("p1", "p2")]
    return pods, [p.run("c1", *FOREVER, image="network") for p in pods]


@pod_test("the interface in the pod is CNI's: addresses, MAC, MTU, default routes", smoke=True,
          network=True)
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


@pod_test("pod to pod, both ways: TCP, UDP, 64 KiB packets, both families", smoke=True,
          network=True)
def pod_to_pod(t):
    pods, clients = two_pods(t)
    for pod in pods:
        pod.run("tcp", "sh", "-c", "while :; do nc -l -p 5000 -e cat; done")
        pod.run("tcp6", "sh", "-c", "while :; do nc -l -p 5006 -s :: -e cat; done")
        pod.run("udp", "udp", "5001", image="network").await_log("up")
    for client, server in ((clients[0], pods[1]), (clients[1], pods[0])):
        for address, port in ((server.ip, 5000), (server.ip6, 5006)):
            t.until(lambda: client.exec("sh", "-c", f"echo x | nc -w 5 {address} {port}").out ==
                    "x\n", f"TCP to {address}", 60)
            out = client.sh("head -c 3000000 /dev/urandom >/f; (cat /f; sleep 5) | "
                            f"nc {address} {port} | head -c 3000000 | md5sum; md5sum </f")
            t.equal(len(set(out.split("\n")[:2])), 1, f"TCP to {address}: {out}")
            client.sh(f"ping -c 2 -W 10 -s 65000 {address}")
            for size in (1, 1472, 1473, 9000, 65000):
                t.equal(client.sh(f"udp {address} 5001 {size}"), "same\n", f"{size} to {address}")


@pod_test("host to pod: TCP to a server in the pod, from a server on the host", network=True)
def host_to_pod(t):
    pod = t.pod("p1")
    c = pod.run("c1", "sh", "-c", "while :; do nc -l -p 5000 -e echo from the pod; done")

    def ask():
        try:
            with socket.create_connection((pod.ip, 5000), 10) as s:
                return s.recv(100)
        except OSError:
            return b""
    t.until(lambda: ask() == b"from the pod\n", "the pod answers", 60)
    with socket.create_server((cni.GATEWAY, 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(60)
        c.sh(f"(echo hello; sleep 1) | nc {cni.GATEWAY} {port} >/out & sleep 0.1")
        peer, where = server.accept()
        with peer:
            t.equal((peer.recv(100), where[0]), (b"hello\n", pod.ip))


@pod_test("one pod goes, its address goes to the next, the other goes on", network=True)
def comes_and_goes(t):
    a, b = t.pod("p1"), t.pod("p2")
    c = b.run("c1", *FOREVER)
    c.sh(f"ping -c 1 -W 10 {a.ip}")
    a.stop()
    a.remove()
    c.sh(f"ping -c 1 -W 10 {cni.GATEWAY}")
    third = t.pod("p3")
    c.sh(f"ping -c 1 -W 10 {third.ip}")

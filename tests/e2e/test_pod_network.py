"""Pods on the CNI bridge."""

import re
import socket

import cni
from pod import FOREVER, pod_test


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


@pod_test("one pod goes, another comes, a third goes on")
def comes_and_goes(t):
    a, b = t.pod("p1"), t.pod("p2")
    c = b.run("c1", *FOREVER)
    c.sh(f"ping -c 1 -W 10 {a.ip}")
    a.stop()
    a.remove()
    c.sh(f"ping -c 1 -W 10 {cni.GATEWAY}")
    c.sh(f"ping -c 1 -W 10 {t.pod('p3').ip}")

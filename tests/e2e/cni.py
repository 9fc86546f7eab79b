"""The network of the pods of one test: Debian's CNI plugins, a bridge in the worker's own network
namespace, addresses of both families.

    network = cni.Network(directory, "lcow0")   # writes the configuration, touches nothing else
    network.bin_dir, network.conf_dir           # for containerd's configuration
    network.remove()                            # the bridge, which no plugin ever removes
"""

import json
import os
import subprocess

import cell
import packages

SUBNET, SUBNET6 = "10.88.77.0/24", "fd00:88:77::/64"
GATEWAY, GATEWAY6 = "10.88.77.1", "fd00:88:77::1"
PRIVATE = "/var/lib"  # libcni keeps its results in /var/lib/cni, whatever its settings are


class Network:
    bin_dir = os.path.join(packages.folder("containernetworking-plugins"), "usr/lib/cni")

    def __init__(self, directory, bridge="lcow0", mtu=1500):
        self.bridge, self.conf_dir = bridge, os.path.join(directory, "cni")
        os.makedirs(self.conf_dir)
        plugin = {"type": "bridge", "bridge": bridge, "isGateway": True, "isDefaultGateway": True,
                  "hairpinMode": True, "mtu": mtu,
                  "ipam": {"type": "host-local", "dataDir": os.path.join(directory, "leases"),
                           "ranges": [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]]}}
        with open(os.path.join(self.conf_dir, "10-test.conflist"), "w") as f:
            json.dump({"cniVersion": "0.4.0", "name": "test", "plugins": [plugin]}, f)
        for name in ("upper", "work"):
            os.makedirs(os.path.join(directory, "var", name))
        cell.mount("overlay", PRIVATE, "overlay", 0, f"lowerdir={PRIVATE},upperdir="
                   f"{directory}/var/upper,workdir={directory}/var/work")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def remove(self):
        """Only when no pod is left."""
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        cell.umount(PRIVATE)


MACVLAN, MACVLAN6, SECOND = "10.77.1.1", "fd00:77:1::1", "10.99.77.1"  # the other ends
SCRIPT = """#!/usr/bin/env python3
import json, os, re, subprocess, sys
if os.environ["CNI_COMMAND"] == "VERSION":
    print(json.dumps({"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}))
    sys.exit()
conf = json.load(sys.stdin)
if os.environ["CNI_COMMAND"] == "ADD":
    pod = re.search("K8S_POD_NAME=([^;]*)", os.environ["CNI_ARGS"]).group(1)
    for line in conf["commands"].get(pod, []):
        subprocess.run(["nsenter", "--net=" + os.environ["CNI_NETNS"]] + line.split(), check=True,
                       stdout=sys.stderr)
    print(json.dumps(conf["prevResult"]))
"""


class Several(Network):
    """Three networks for each pod: eth0 as ever, tuned; eth1 by macvlan with routes of its own (sbr);
    eth2 on a second bridge. commands: pod's name -> what is run in its namespace at the end."""

    def __init__(self, directory, commands):
        super().__init__(directory)
        bin_dir, self.bin_dir = self.bin_dir, os.path.join(directory, "bin")
        os.makedirs(self.bin_dir)
        for name in os.listdir(bin_dir):
            os.symlink(os.path.join(bin_dir, name), os.path.join(self.bin_dir, name))
        with open(os.path.join(self.bin_dir, "script"), "w") as f:
            f.write(SCRIPT)
        os.chmod(f.name, 0o755)
        ip("link add parent0 type veth peer name host0", "link set parent0 up",
           f"addr add {MACVLAN}/24 dev host0", f"addr add {MACVLAN6}/64 dev host0 nodad",
           "link set host0 up")
        tuning = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_ignore": "3",
                                               "net.ipv6.conf.eth0.hop_limit": "77",
                                               "net.ipv4.neigh.eth0.gc_stale_time": "78"}}
        macvlan = {"type": "macvlan", "master": "parent0", "mode": "bridge", "mtu": 1400,
                   "ipam": self.ipam(directory, "10.77.1.0/24", "fd00:77:1::/64")}
        second = {"type": "bridge", "bridge": "lcow2", "isGateway": True, "mtu": 1300,
                  "ipam": {**self.ipam(directory, "10.99.77.0/24"),
                           "routes": [{"dst": "172.30.0.0/16"}]}}
        self.chain("10-test", "test", None, tuning)
        self.chain("20-macvlan", "macvlan", macvlan, {"type": "sbr"})
        self.chain("30-second", "second", second, {"type": "script", "commands": commands})

    @staticmethod
    def ipam(directory, *subnets):
        return {"type": "host-local", "dataDir": os.path.join(directory, "leases"),
                "ranges": [[{"subnet": s}] for s in subnets]}

    def chain(self, file, name, first, more):
        path = os.path.join(self.conf_dir, file + ".conflist")
        if not first:
            with open(path) as f:
                first = json.load(f)["plugins"][0]
        with open(path, "w") as f:
            json.dump({"cniVersion": "0.4.0", "name": name, "plugins": [first, more]}, f)

    def remove(self):
        for name in ("host0", "lcow2"):
            subprocess.run(["ip", "link", "del", name], capture_output=True)
        super().remove()


def ip(*commands):
    for c in commands:
        subprocess.run(["ip"] + c.split(), check=True)


class Namespace:
    """A network namespace on a bridge, as a CNI client makes it, without one: path, ip, ip6."""

    def __init__(self, t, name, bridge="lcow1"):
        self.name, self.path = name, os.path.join(t.work, f"netns-{name}")
        self.conf = {"cniVersion": "0.4.0", "name": "test", "type": "bridge", "bridge": bridge,
                     "isGateway": True, "isDefaultGateway": True,
                     "ipam": {"type": "host-local", "dataDir": os.path.join(t.work, "leases"),
                              "ranges": [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]]}}
        t.at_end(lambda: subprocess.run(["ip", "link", "del", bridge], capture_output=True))
        with open(self.path, "w"):
            pass
        subprocess.run(["unshare", f"--net={self.path}", "true"], check=True)
        t.at_end(lambda: cell.umount(self.path))
        answer = json.loads(self.plugin("ADD"))
        t.at_end(lambda: self.plugin("DEL"))
        addresses = [a["address"].split("/")[0] for a in answer["ips"]]
        self.ip, self.ip6 = sorted(addresses, key=lambda a: ":" in a)

    def plugin(self, command):
        return subprocess.run(
            [os.path.join(Network.bin_dir, "bridge")], input=json.dumps(self.conf), check=True,
            capture_output=True, text=True, timeout=60,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND": command,
                 "CNI_CONTAINERID": self.name, "CNI_NETNS": self.path, "CNI_IFNAME": "eth0",
                 "CNI_PATH": Network.bin_dir}).stdout

    def links(self):
        """Names of the interfaces in it."""
        out = subprocess.run(["nsenter", f"--net={self.path}", "ip", "-o", "link"], check=True,
                             capture_output=True, text=True).stdout
        return [line.split(": ")[1].split("@")[0] for line in out.splitlines()]

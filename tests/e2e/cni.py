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
PRIVATE = "/var/lib"  # libcni keeps its results in /var/lib/cni, whatever it is told


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

"""PCI devices behind the host's IOMMU, by legacy vfio groups; inside_vfio.py has what happens there."""
from suite import case
from test_pod import inside

HOSTS = ("kvm", "trixie")


@case("an NVMe disk by vfio: annotation, then device node; a wrong driver and a busy group are refused", HOSTS)
def nvme(h, opts):
    return inside(h, "nvme", file="inside_vfio.py")


@case("a vfio device is taken away while the guest uses it, and goes to the next pod", HOSTS, full=True)
def in_use(h, opts):
    return inside(h, "in_use", file="inside_vfio.py")


@case("QEMU killed with a vfio device: the next container has it", HOSTS, full=True)
def killed(h, opts):
    return inside(h, "killed", file="inside_vfio.py")


@case("two functions in one IOMMU group: both or none", HOSTS, full=True)
def functions(h, opts):
    return inside(h, "functions", file="inside_vfio.py")


@case("a clone of a template with a vfio device", HOSTS, full=True)
def clone(h, opts):
    return inside(h, "clone", file="inside_vfio.py")

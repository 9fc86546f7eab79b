#!/usr/bin/python3 -B
"""Boots an image under emulation, with boot_probe.c in place of the agent. TAP on standard output.

Shows that the kernel starts by PVH in 128 MiB, that each module loads in the order the image gives,
that the kernel can load modules itself, and that crun and the shell run.
"""

import os
import re
import subprocess
import sys
import tempfile

from tap import Tap

HERE = os.path.dirname(os.path.realpath(__file__))
BOOT_SECONDS = 120  # a ceiling: a few seconds are usual
NO_HARDWARE = {"hv_vmbus", "hv_sock"}  # refuse to load outside Hyper-V

CMDLINE = "console=ttyS0 quiet panic=-1 no_timer_check nolapic_timer cryptomgr.notests"


def boot(image):
    """Everything the guest writes to its console."""
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-M", "q35,accel=tcg", "-cpu", "max,-la57,-erms,-fsrm", "-m", "128M", "-serial", "stdio",
        "-kernel", os.path.join(image, "vmlinux"), "-initrd", os.path.join(image, "initrd.cpio"),
        "-append", CMDLINE,
        "-device", "virtio-net-pci,romfile=",
    ]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=BOOT_SECONDS)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode(errors="replace") + "\n(no power-off in time)"


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="lcow-boot-") as work:
        probe, image = os.path.join(work, "probe"), os.path.join(work, "image")
        subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", probe,
                        os.path.join(HERE, "boot_probe.c")], check=True)
        made = subprocess.run([os.path.join(HERE, "build"), image, probe], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        tap.require(made.returncode == 0, "an image is built", made.stdout)
        console = boot(image)

    found = re.findall(r"^probe (\S+) (.*?)\r?$", console, re.MULTILINE)
    results = dict(found)
    tail = "\n".join(console.splitlines()[-20:])
    tap.check("release" in results, "the kernel starts and runs /init", tail)
    tap.check(results.get("finished") == "ok", "the guest runs all probes and powers off", tail)
    for name in ("eth0", "autoload", "crun", "shell"):
        tap.check(results.get(name) == "ok", f"{name} works", results.get(name, "no result"))
    loaded = [name.removeprefix("module:") for name in results if name.startswith("module:")]
    bad = [f"{name}: {results['module:' + name]}" for name in loaded
           if results["module:" + name] != "ok" and name not in NO_HARDWARE]
    tap.check(loaded and not bad, f"all {len(loaded)} modules load in their order", "\n".join(bad))
    print(f"# {results.get('release')}: init at {results.get('init-at')} s, "
          f"network driver at {results.get('network-at')} s of guest time")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())

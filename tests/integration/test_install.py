"""make install: what it puts where, and that the default configuration is the code's table."""

import gzip
import os
import re
import stat
import subprocess

from harness import IMAGE, LCOW, TOP, test

PREFIX = "/opt/lcow"


def install(t, prefix=PREFIX):
    """Into a directory of the test, from the build that is tested; what it printed and returned."""
    build, dest = os.path.join(t.work, "build"), os.path.join(t.work, "dest")
    os.makedirs(build, exist_ok=True)
    for name, where in (("bin", os.path.dirname(LCOW)), ("image", IMAGE)):
        if not os.path.lexists(os.path.join(build, name)):
            os.symlink(where, os.path.join(build, name))
    subprocess.run([os.path.join(TOP, "man/pages"), LCOW, build + "/man"],
                   check=True)
    r = subprocess.run([os.path.join(TOP, "scripts/install")], capture_output=True, text=True,
                       env={**os.environ, "LCOW_BUILD": build, "DESTDIR": dest, "PREFIX": prefix})
    return dest, r


def files(dest):
    """path -> mode"""
    return {os.path.join(folder, name).removeprefix(dest):
            oct(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode))
            for folder, _, names in os.walk(dest) for name in names}


def read(path):
    with (gzip.open(path, "rt") if path.endswith(".gz") else open(path)) as f:
        return f.read()


@test("make install puts everything below DESTDIR and PREFIX, and twice the same")
def places(t):
    dest, r = install(t)
    t.equal((r.returncode, r.stdout + r.stderr), (0, ""), "install")
    share = PREFIX + "/share"
    wanted = {PREFIX + "/bin/lcow": "0o755", PREFIX + "/bin/containerd-shim-lcow-v2": "0o755"}
    wanted.update((path, "0o644") for path in (
        *(f"{PREFIX}/lib/lcow/image/{n}" for n in ("vmlinux", "initrd.cpio", "manifest.json")),
        *(f"{share}/man/man{n[-4]}/{n}" for n in ("lcow.1.gz", "lcow.7.gz", "lcow.conf.5.gz",
                                                 "containerd-shim-lcow-v2.8.gz")),
        share + "/bash-completion/completions/lcow", share + "/zsh/vendor-completions/_lcow",
        share + "/fish/vendor_completions.d/lcow.fish", PREFIX + "/lib/sysusers.d/lcow.conf",
        "/etc/lcow/lcow.conf", "/etc/lcow/lcow.conf.d/00-prefix.conf"))
    t.equal(files(dest), wanted)
    t.equal(install(t)[1].returncode, 0)
    t.equal(files(dest), wanted, "the second time")
    t.equal(install(t, "relative")[1].returncode, 2, "a PREFIX that is not an absolute path")


@test("make install: the default configuration, manual pages and VM user are those of the code")
def contents(t):
    dest, _ = install(t)
    env = {"PATH": os.environ["PATH"]}

    def lcow(*args):
        return subprocess.run([dest + PREFIX + "/bin/lcow", *args], env=env, check=True,
                              capture_output=True, text=True).stdout
    conf, page = read(dest + "/etc/lcow/lcow.conf"), read(dest + PREFIX + "/share/man/man5/lcow.conf.5.gz")
    t.equal(re.findall(r"(?m)^\w.*", conf), [], "settings that are not commented out")
    keys = dict(re.findall(r"(?m)^(\w+) = (.*)$", lcow("--config", "/dev/null", "config")))
    t.equal(dict(re.findall(r"(?m)^#(\w+) = (.*)$", conf)), keys)
    for key in keys:
        t.match(rf"(?m)^\\fB{key}\\fR", page, f"lcow.conf(5) has no {key}")
    everything = os.path.join(t.work, "on.conf")  # each default is a value that can be written
    with open(everything, "w") as f:
        f.write(re.sub(r"(?m)^#(?=\w+ = )", "", conf))
    t.equal(dict(re.findall(r"(?m)^(\w+) = (.*)$", lcow("--config", everything, "config"))), keys)
    t.match(f"image_dir = {PREFIX}/lib/lcow/image\n",
            lcow("--config", dest + "/etc/lcow/lcow.conf", "config"))
    commands = re.findall(r"(?m)^  ([a-z]+)  +\S", lcow("--help").split("\noptions\n")[0])
    manual = read(dest + PREFIX + "/share/man/man1/lcow.1.gz")
    t.equal([c for c in commands if f"\n.SS {c}\n" not in manual], [], "not in lcow(1)")
    t.match(rf"(?m)^u lcow-vm {keys['vm_uid_base']} ", read(dest + PREFIX + "/lib/sysusers.d/lcow.conf"))

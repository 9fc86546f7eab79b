"""Picks the guest's kernel modules and what they depend on, in load order.

See README.md, "Modules", for what ends up in the image.
"""

import lzma
import os
import shutil
import subprocess


class ModuleError(Exception):
    """A module is missing, or its dependencies cannot be resolved."""


def read_list(path):
    with open(path, encoding="ascii") as lines:
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def canonical(path):
    """The name as the kernel shows it: kernel/crypto/aesni-intel.ko.xz -> aesni_intel."""
    return os.path.basename(path).split(".ko")[0].replace("-", "_")


class Tree:
    """The modules of an unpacked kernel package: ROOT/lib/modules/RELEASE."""

    def __init__(self, root, release):
        self._directory = os.path.join(root, "lib", "modules", release)
        _run_depmod(root, release)  # the package ships no modules.dep
        self._builtin = {canonical(line) for line in self._lines("modules.builtin")}
        self._aliases = [line for line in self._lines("modules.alias") if line.startswith("alias ")]
        self._paths, self._needs = {}, {}
        for line in self._lines("modules.dep"):
            path, needs = line.split(":")
            name = canonical(path)
            self._paths[name] = path
            # modules.dep lists the nearest first; the kernel wants the farthest first.
            self._needs[name] = [canonical(need) for need in reversed(needs.split())]
        self._soft = self._soft_dependencies()

    def load_order(self, name):
        """The names to load, in order, the module itself last; empty if it is built in."""
        if name in self._builtin:
            return []
        if name not in self._paths:
            raise ModuleError(f"the kernel has no module {name}")
        order = []
        for step in [*self._needs[name], name]:
            for soft in self._soft.get(step, []):
                order += self.load_order(soft)
            order.append(step)
        return list(dict.fromkeys(order))

    def closure(self, roots):
        return sorted({name for root in roots for name in self.load_order(root)})

    def aliases(self, names):
        """Lines "alias PATTERN NAME" for these modules."""
        return sorted(line for line in self._aliases if line.split()[-1] in names)

    def extract(self, name, target):
        """Writes the module uncompressed, without debug and type information and signature."""
        source = os.path.join(self._directory, self._paths[name])
        opener = lzma.open if source.endswith(".xz") else open
        with opener(source, "rb") as packed, open(target, "wb") as plain:
            shutil.copyfileobj(packed, plain)
        subprocess.run(["strip", "--strip-debug", "--remove-section=.BTF", target], check=True)

    def _soft_dependencies(self):
        """What a module looks for at run time, such as ext4 a crypto algorithm: the module fails
        to load without, but no symbol shows it. Named by "softdep NAME pre: WANTED...", where
        WANTED may be an alias with several providers: the generic one runs on every processor."""
        soft = {}
        for line in self._lines("modules.softdep"):
            words = line.split()
            if words[0] != "softdep" or words[2] != "pre:":
                continue
            for wanted in words[3:]:
                providers = [alias.split()[2] for alias in self._aliases
                             if alias.split()[1] == wanted]
                found = [name for name in [canonical(wanted), *providers] if name in self._paths]
                found.sort(key=lambda name: not name.endswith("_generic"))
                soft.setdefault(words[1], []).extend(found[:1])
        return soft

    def _lines(self, name):
        with open(os.path.join(self._directory, name), encoding="ascii") as text:
            return text.read().splitlines()


def make_directory(tree, roots, target):
    """Fills target with what the guest has in /lib/modules/RELEASE; see README.md."""
    names = tree.closure(roots)
    for name in names:
        tree.extract(name, os.path.join(target, name + ".ko"))
    _write_lines(os.path.join(target, "order"),
                 [f"{name}: {' '.join(tree.load_order(name))}" for name in names])

    # For /sbin/modprobe, which the kernel runs to get what it finds missing. modules.dep wants the
    # nearest first.
    _write_lines(os.path.join(target, "modules.dep"), [
        f"{name}.ko:" + "".join(f" {need}.ko" for need in reversed(tree.load_order(name)[:-1]))
        for name in names])
    _write_lines(os.path.join(target, "modules.alias"), tree.aliases(names))


def _write_lines(path, lines):
    with open(path, "w", encoding="ascii") as out:
        out.writelines(line + "\n" for line in lines)


def _run_depmod(root, release):
    # In /sbin, which may not be in PATH.
    subprocess.run(["depmod", "-b", root, release], check=True,
                   env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL": "C"})

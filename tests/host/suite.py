"""What the cases are written with. Each file test_*.py holds some:

    @case("a pod runs a container", variant="kvm")
    def runs(h, opts):
        check("hi" in h.run("…"), "no greeting:", …)

All cases of a variant run in one host. Files run in the order of their ORDER (50 without it), then of
their names; cases in the order of the file. A file may have prepare(share, opts), which puts what its
cases need into the directory that the host sees as /share.
"""
import dataclasses
import glob
import importlib
import os
import re
import typing

import host

HERE = os.path.dirname(os.path.realpath(__file__))
CASES = []
# For what runs in /root/tree: its needs were put there, nothing is to be downloaded.
ENV = "LCOW_CACHE=/root/tree/build/cache LCOW_TEST_PREPARED=1"


@dataclasses.dataclass
class Case:
    text: str
    function: typing.Callable
    variants: tuple
    setup: bool
    full: bool
    needs_kvm: bool


class Skip(Exception):
    """Why a case does not apply."""


def case(text, variant="kvm", setup=False, full=False, needs_kvm=True):
    """variant: a name, or several. setup: runs whatever -k says, and nothing runs if it fails.
    full: only with --full, or if -k names it. needs_kvm: it must fail without KVM's module."""
    def add(function):
        if any(c.text == text for c in CASES):
            raise ValueError(f"two cases are called: {text}")
        CASES.append(Case(text, function, (variant,) if isinstance(variant, str) else tuple(variant),
                          setup, full, needs_kvm))
        return function
    return add


def check(condition, what, *details):
    if not condition:
        raise host.Failure("\n".join([what, *map(str, details)]))


def equal(got, wanted, what):
    check(got == wanted, f"{what}: got {got!r}, not {wanted!r}")


def load():
    """The modules with cases, in their order; CASES is in that order too."""
    modules = [importlib.import_module(os.path.basename(path).removesuffix(".py"))
               for path in sorted(glob.glob(os.path.join(HERE, "test_*.py")))]
    modules.sort(key=lambda m: getattr(m, "ORDER", 50))
    place = {m.__name__: i for i, m in enumerate(modules)}
    CASES.sort(key=lambda c: place[c.function.__module__])
    return modules


def select(variant, opts):
    def wanted(c):
        if opts.case:
            return c.setup or c.text == opts.case
        named = opts.k and re.search(opts.k, f"{c.function.__module__} {c.text}", re.I)
        return c.setup or (named if opts.k else opts.full or not c.full)
    return [c for c in CASES if variant in c.variants and wanted(c)]

"""lcow config: what is in effect and why, everything that is wrong, what containerd needs."""

import json
import os

from harness import flat, test


def write(t, name, text):
    path = os.path.join(t.work, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    return path


@test("config show names the file and line that each value comes from")
def show(t):
    conf = write(t, "l.conf", "[vm]\ncpus = 2\nmemory_mib = 300\n")
    drop = write(t, "l.conf.d/10.conf", "\ncpus = 3\n")
    r = t.lcow("--config", conf, "config", "show", "--origin")
    t.equal(r.code, 0, r)
    t.match(rf"\ncpus = 3 +; {drop}:2\n", r.out, r)
    t.match(rf"\nmemory_mib = 300 +; {conf}:3\n", r.out, r)
    t.match(r"\nlog_level = warn +; default\n", r.out, r)
    r = t.lcow("--config", conf, "config", "show", "--json")
    keys = {k["key"]: k for k in json.loads(r.out)}
    t.equal((keys["cpus"]["value"], keys["cpus"]["origin"]), ("3", f"{drop}:2"), r)
    t.equal(keys["run_root"]["origin"], "default", r)


@test("config check reports every error at once, and what is missing on the machine")
def check(t):
    conf = write(t, "bad.conf", "[vm]\ncpus = 0\nmemry_mib = 1\nwhat\nqemu = /nope\n"
                 "image_dir = /nowhere\n[host]\nrun_root = /etc/hostname/x\n")
    r = t.lcow("config", "check", conf)
    t.equal(r.code, 1, r)
    for pattern in (rf"{conf}:2: cpus = 0: must be 1–64",
                    rf"{conf}:3: unknown key memry_mib; did you mean memory_mib\?",
                    rf"{conf}:4: invalid line", "/nope is not a program", "image in /nowhere",
                    "run_root = /etc/hostname/x: .*[Nn]ot a directory", "6 errors"):
        t.words(pattern, flat(r.out), r)
    r = t.lcow("config", "check", "--syntax", "--json", conf)
    t.equal((r.code, len(json.loads(r.out)["errors"])), (1, 3), r)
    r = t.lcow("config", "check", os.path.join(t.work, "none.conf"), "--syntax")
    t.equal(r.code, 1, r)
    t.match("none.conf: No such file", flat(r.out), r)


@test("config check accepts the configuration that the tests use")
def check_good(t):
    r = t.lcow("config", "check")
    t.equal(r.code, 0, r)
    t.match("0 errors", r.out, r)


def fake_containerd(t, text):
    path = write(t, "containerd", f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)
    return path


@test("config containerd prints the stanza of the containerd that it finds")
def stanza(t):
    old = fake_containerd(t, "echo containerd github.com/containerd/containerd 1.7.24~ds1 abc")
    r = t.lcow("config", "containerd", "--containerd", old)
    t.equal(r.code, 0, r)
    t.match(r'\nversion = 2\n(?s:.*)plugins\."io\.containerd\.grpc\.v1\.cri"', r.out, r)
    new = fake_containerd(t, "echo containerd github.com/containerd/containerd/v2 2.1.4 abc")
    r = t.lcow("config", "containerd", "--containerd", new)
    t.match(r'\nversion = 3\n(?s:.*)plugins\."io\.containerd\.cri\.v1\.runtime"', r.out, r)
    t.match("ConfigPath", r.out, r)
    broken = fake_containerd(t, "exit 3")
    r = t.lcow("config", "containerd", "--containerd", broken)
    t.equal((r.code, r.out), (1, ""), r)
    r = t.lcow("config", "containerd", "--containerd", "/no/such/containerd")
    t.equal(r.code, 1, r)
    t.words("--version X.Y", flat(r.err), r)
    r = t.lcow("config", "containerd", "--version", "1.4")
    t.equal(r.code, 1, r)
    t.words("must be 1.6 or later", flat(r.err), r)
    r = t.lcow("config", "containerd", "--version", "new")
    t.equal(r.code, 2, r)


@test("the configuration reference is up to date")
def reference(t):
    r = t.lcow("config", "reference")
    here = os.path.dirname(os.path.realpath(__file__))
    with open(os.path.join(here, "../../docs/configuration.md")) as f:
        t.equal(f.read(), r.out, "run: lcow config reference > docs/configuration.md")

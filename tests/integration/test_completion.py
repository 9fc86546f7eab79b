"""lcow completion: what bash offers, asked of bash itself."""

import shlex

import harness
from harness import test


def offers(t, *words):
    """What bash completes the last word to."""
    script = (f"source <({shlex.quote(harness.LCOW)} completion bash)\n"
              f"COMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
              f"COMP_CWORD={len(words) - 1}\n_lcow\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
    p = harness.Process(t, ["/bin/bash", "-c", script], harness.subprocess.DEVNULL, None, {}, (),
                        False)
    t.processes.append(p)
    r = p.wait(20)
    t.equal((r.code, r.err), (0, ""), r)
    return r.out.split()


@test("bash completes commands, sub-commands, options, files")
def bash(t):
    t.write("a.conf", "")
    t.equal(offers(t, "lcow", "conf"), ["config"])
    t.equal(offers(t, "lcow", "config", "sh"), ["show"])
    t.equal(offers(t, "lcow", "config", "show", "--or"), ["--origin"])
    t.equal(offers(t, "lcow", "--config", "x", "config", "con"), ["containerd"])
    t.equal(offers(t, "lcow", "completion", "f"), ["fish"])
    t.equal(offers(t, "lcow", "config", "check", t.work + "/a."), [t.work + "/a.conf"])
    t.equal(offers(t, "lcow", "boot", "--", "tr"), [])
    t.check("--allow-emulation" in offers(t, "lcow", "boot", ""), "boot has no options")


@test("a shell without a script is named")
def others(t):
    r = t.lcow("completion", "tcsh")
    t.equal((r.code, r.out), (2, ""), r)
    t.match("bash, zsh or fish", r.err, r)
    t.equal(t.lcow("completion").code, 2)

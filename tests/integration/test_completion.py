"""lcow completion: what bash offers, asked of bash itself."""

import os
import re
import shlex

import harness
from harness import test


def offers(t, *words):
    """What bash completes the last word to."""
    path = os.path.dirname(harness.LCOW) + ":" + os.environ["PATH"]
    script = ("source <(lcow completion bash)\n"
              f"COMP_WORDS=({' '.join(map(shlex.quote, words))})\n"
              f"COMP_CWORD={len(words) - 1}\n_lcow\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
    p = harness.Process(t, ["/bin/bash", "-c", script], harness.subprocess.DEVNULL, None,
                        {"PATH": path}, (), False)
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


@test("every command and option of the help is offered to the shell")
def complete(t):
    """The scripts of all shells ask for these lines."""
    def words(*before):
        r = t.lcow("completion", "words", "--", *before, "")
        t.equal((r.code, r.err), (0, ""), r)
        lines = r.out.splitlines()
        t.check(lines[0] in ("none", "files"), "what else may stand there", lines[0])
        return {line.split("\t")[0] for line in lines[1:]}

    def options(text):
        return set(re.findall(r"^  (?:-\w,|   ) (--[a-z-]+)", text, re.M)) | {"--help"}

    top = t.lcow("--help").out
    commands = set(re.findall(r"^  ([a-z]+)  +\S", top.split("options\n")[0], re.M))
    t.check(len(commands) > 20, "commands of lcow", commands)
    t.equal(words(), commands | options(top))
    for command in sorted(commands):
        text = t.lcow(command, "--help").out
        subs = set(re.findall(rf"^  {command} ([a-z]+)\b", text.partition("commands of lcow")[2],
                              re.M))
        shells = {"bash", "zsh", "fish"} if command == "completion" else set()
        t.equal(words(command), subs | shells | options(text), command)
        for sub in subs:
            t.equal(words(command, sub), options(t.lcow(command, sub, "--help").out), sub)
    t.equal(t.lcow("completion", "words", "--", "boot", "--", "l").out, "command\n")
    t.equal(t.lcow("completion", "words", "--", "boot", "--memory", "").out, "files\n")
    t.equal(t.lcow("completion", "words", "--", "gc", "-n", "").out.splitlines()[0], "none")


@test("a shell without a script is named")
def others(t):
    r = t.lcow("completion", "tcsh")
    t.equal((r.code, r.out), (2, ""), r)
    t.match("bash, zsh or fish", r.err, r)
    t.equal(t.lcow("completion").code, 2)

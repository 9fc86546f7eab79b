#!/usr/bin/python3
"""What the TAP harness makes of tap_specimen's tests: tap_test.py PROGRAM. Prints TAP itself."""
import os
import re
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
# Tests that fail jump out of their frames; what those held is not freed.
ENV = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
EXPECTED = {
    "plain_passes": ("ok", None),
    "plain_fails": ("not ok", r"tap_specimen\.c:\d+: 1 is 1, expected 2 = 2"),
    "plain_is_skipped": ("skip", "no luck here"),
    "abort_is_seen": ("ok", None),
    "abort_is_missed": ("not ok", "lives does not abort"),
    "error_is_shown": ("not ok", r"two\n# lines \(code 9\)"),
    "wrong_code_is_shown": ("not ok", r"code 9, expected ERR_INVALID: reason"),
    "fiber_passes": ("ok", None),
    "fiber_fails_after_a_wait": ("not ok", "reached"),
    "fiber_is_skipped": ("skip", "why"),
    "virtual_deadline_is_ten_seconds": ("ok", None),
    "others_may_finish_a_little_later": ("ok", None),
    "fiber_is_left_behind": ("not ok", r"left when the test ended(.|\n)*straggler.*forever"),
    "body_hangs": ("not ok", r"nothing can wake(.|\n)*test body_hangs.*forever"),
    "another_fiber_fails": ("not ok", '"x" is "x", expected "y"'),
    "failure_with_others_left": ("not ok", "first failure"),
    "passes_after_all_that": ("ok", None),
    "zz_hangs_for_real": ("ok", None),
    "zz_fails_on_a_strange_stack": ("ok", None),
}


def run(*args, **env):
    return subprocess.run([PROGRAM, *args], env={**ENV, **env}, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL, timeout=120)


def outcomes(text):
    """name -> (outcome, the comments before it)."""
    found, comments = {}, []
    for line in text.splitlines():
        m = re.match(r"(ok|not ok) \d+ - (\w+)(?: # SKIP (.*))?$", line)
        if m and m.group(3) is not None:
            found[m.group(2)] = ("skip", m.group(3))
        elif m:
            found[m.group(2)] = (m.group(1), "\n".join(comments))
        if m:
            comments = []
        elif line.startswith("#"):
            comments.append(line)
    return found


def all_outcomes():
    done = run()
    found = outcomes(done.stdout)
    assert done.stdout.startswith(f"1..{len(EXPECTED)}\n"), done.stdout
    assert done.returncode == 1, done.returncode
    assert list(found) == list(EXPECTED), list(found)
    for name, (want, text) in EXPECTED.items():
        got, comments = found[name]
        assert got == want, f"{name} is {got}:\n{comments}"
        assert not text or re.search(text, comments), f"{name} says:\n{comments}"
        assert text or not comments, f"{name} says:\n{comments}"


def a_filter_runs_a_part():
    done = run("passes")
    assert done.returncode == 0 and done.stdout.startswith("1..3\n"), done.stdout
    assert list(outcomes(done.stdout)) == ["plain_passes", "fiber_passes", "passes_after_all_that"]


def a_filter_without_a_match_is_an_error():
    done = run("nothing")
    assert done.returncode == 1 and "nothing" in done.stdout, done.stdout


def the_list_names_all():
    done = run("-l")
    assert done.returncode == 0 and done.stdout.split() == list(EXPECTED), done.stdout


def a_strange_stack_ends_the_program():
    done = run("strange", TAP_SPECIMEN_STRANGE="1")
    assert done.returncode == 1, done.returncode
    assert "not ok 1 - zz_fails_on_a_strange_stack\nBail out!" in done.stdout, done.stdout


def sigterm_names_the_test_that_hangs():
    child = subprocess.Popen([PROGRAM, "zz_hangs"], env={**ENV, "TAP_SPECIMEN_HANG": "1"},
                             stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    try:
        plan = child.stdout.readline()
        status = f"/proc/{child.pid}/syscall"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until it sits in epoll_pwait2
            with open(status) as f:
                if f.read().split()[0] == "441":
                    break
            time.sleep(0.02)
        child.terminate()
        text = plan + child.communicate(timeout=60)[0]
    finally:
        if child.poll() is None:
            child.kill()
    assert child.returncode == 1, child.returncode
    assert re.search(r"# .*test zz_hangs_for_real.*forever", text), text
    assert "not ok 1 - zz_hangs_for_real\nBail out!" in text, text


def main():
    tests = [all_outcomes, a_filter_runs_a_part, a_filter_without_a_match_is_an_error,
             the_list_names_all, a_strange_stack_ends_the_program, sigterm_names_the_test_that_hangs]
    failed = 0
    print(f"1..{len(tests)}")
    for n, test in enumerate(tests, 1):
        try:
            test()
            print(f"ok {n} - {test.__name__}")
        except (AssertionError, subprocess.SubprocessError, OSError) as e:
            failed += 1
            print("".join(f"# {line}\n" for line in str(e).splitlines()), end="")
            print(f"not ok {n} - {test.__name__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3 -B
"""The benchmark's own arithmetic and documents, without measuring anything. TAP."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import xml.dom.minidom

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import cells  # noqa: E402
import compare  # noqa: E402
import lines  # noqa: E402
import page  # noqa: E402
import picture  # noqa: E402
import record  # noqa: E402
import rows  # noqa: E402
import stats  # noqa: E402
import table  # noqa: E402

TESTS = []


def test(body):
    TESTS.append(body)
    return body


def sample(lcow=2.0, runc=4.0, n=20):
    """A result in which every row has a value."""
    def values(middle):
        return stats.summary([middle * (1 + i / 100) for i in range(n)])
    peers = {peer: {r[0]: values(v) for r in rows.ROWS}
             for peer, v in (("lcow", lcow), ("runc", runc), ("runc 1.6", runc))}
    peers["lcow"].update({k: values(lcow) for k in ("parked_kib", "echo_us", "pss_anon_kib",
                                                    "pss_file_kib", "anchor_kib", "pipe_mb_s")})
    peers["vm"] = {r[0]: values(lcow) for r in rows.VM_ROWS if r[0] != "runc_itself_ms"}
    peers["vm"].update(stages_ms={"spawned": values(1), "negotiated": values(2)},
                       clone_stages_ms={"spawned": values(1), "negotiated": values(2)})
    peers["host"] = {"runc_itself_ms": values(runc)}
    peers["lcow clone"] = {key: values(lcow) for key in (
        "run_ms", "cri_pod_ms", "parallel_ms", "parallel_cpu_ms", "pod20_mib", "pod20_qemu_mib", "pod20_own_mib", "pod20_template_mib",
        "pod20_code_mib", "pod20_rest_mib")}
    peers.update({peer: {r[0]: values(lcow) for r in rows.ROOT_ROWS} for peer, _ in rows.ROOTS})
    peers["lcow"].update(pods=10, fit_2gib=50)
    facts = {"made": "2026-11-15T23:00:00", "commit": "0123456789abcdef", "dirty": False,
             "quick": False}
    parts = {"all": {**facts, "seconds": 1, "results": peers, "troubles": ["a thing that failed"]}}
    more = {"machine": {"cpu": "A processor", "cpus": 2, "memory_mib": 1024, "kernel": "6.1",
                        "load": 0.1, "qemu": "10.0", "accel": "tcg", "emulated": True,
                        "guest_kernel": "6.1"}, "versions": {"lcow": "0.1.0"}}
    return record.whole({**facts, **more}, parts)


@test
def summaries_have_their_spread():
    s = stats.summary(range(1, 102))
    assert (s["n"], s["median"], s["p10"], s["p90"], s["min"], s["max"]) == (101, 51, 11, 91, 1, 101)
    assert stats.summary([7])["p90"] == 7


@test
def a_ratios_spread_is_the_worst_of_both():
    a, b = stats.summary([10, 20, 30]), stats.summary([100, 100, 100])
    middle, low, high = stats.ratio(a, b)
    assert middle == 0.2 and low < 0.2 < high
    assert stats.ratio(a, None) is None
    assert stats.ratio(a, stats.summary([0])) is None


@test
def lines_of_code_are_neither_blank_nor_comment():
    text = '''/* one
 * comment */
#define ALL "mkdir/*,x" // a quoted one does not count

char c = '"'; /* "not quoted" */
int code;  // it's
/**/
int last; /* to the end */
'''
    assert lines.code_lines(text, False) == 4, lines.code_lines(text, False)
    assert lines.code_lines('"""What\n\nit is."""\n# so\n\nx = 1  # one\n', True) == 1


@test
def the_table_has_80_columns_and_all_rows():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        table.show(sample())
    shown = out.getvalue().splitlines()
    assert all(len(line) <= 80 for line in shown), [l for l in shown if len(l) > 80]
    for what in [r[1] for r in rows.ROWS + rows.VM_ROWS if r[0] != "runc_itself_ms"]:
        assert len(what) <= 35 and what in out.getvalue(), what


@test
def marks_are_met_and_missed():
    good, bad = sample(lcow=0.1, runc=1000), sample(lcow=5000, runc=1)
    for mark in rows.MARKS:
        if "template" in mark.what or "wake-ups" in mark.what or not mark.most:
            continue  # not proportional to the sample
        assert mark.judge(good["results"])[1] is True, mark.what
        assert mark.judge(bad["results"])[1] is False, mark.what
        why = mark.reason(bad["results"])
        assert (why or not mark.why) and "–" not in why, mark.what
    assert rows.MARKS[0].judge({}) == (None, None)


@test
def the_picture_is_whole_and_has_no_overlaps():
    for lcow, runc in ((0.002, 0.003), (2, 3), (2e6, 3e6), (5, 5), (0, 0), (1, 9e6)):
        svg, troubles = picture.draw(sample(lcow, runc))
        assert not troubles, troubles
        xml.dom.minidom.parseString(svg)
        assert "prefers-color-scheme: dark" in svg
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", svg)  # stands alone


@test
def overlaps_and_texts_outside_are_found():
    p = picture.Picture(100)
    p.text(10, 20, "one")
    p.text(12, 22, "two")
    p.text(picture.WIDTH - 5, 50, "beyond the edge")
    found = " ".join(p.check())
    assert "'two' overlaps 'one'" in found and "outside: beyond the edge" in found


@test
def the_page_has_the_emulated_host_beside_the_run():
    plain = page.write(sample(lcow=4.0, runc=2.0))
    assert "By KVM" not in plain
    text = page.with_kvm(plain, sample(lcow=9.0, runc=3.0))
    row = next(line for line in text.split("## By KVM")[1].splitlines() if line.startswith("| Task.State"))
    assert "| 3.00 (" in row and "| 2.00 (" in row, row
    assert page.with_kvm(text, sample(lcow=9.0, runc=3.0)) == text
    assert page.write(sample(lcow=4.0, runc=2.0), text) == text


@test
def the_page_says_what_and_where():
    text = page.write(sample(lcow=5000, runc=1))
    for part in ("A processor", "0123456789ab", "lcow 0.1.0", "**missed**", "fit into 2 GiB",
                 "Not measured: a thing that failed", "| spawned |", "p99", "| erofs (disk per layer)",
                 "| raw disk, no lcow |"):
        assert part in text, part


@test
def the_comparison_has_a_place_for_its_figures_and_nothing_else_changes():
    with open(os.path.join(HERE, "../docs/comparison.md"), encoding="utf-8") as f:
        text = f.read()
    new = compare.update(text, sample())
    assert compare.update(new, sample()) == new
    assert new.split(compare.BEGIN)[0] == text.split(compare.BEGIN)[0]
    assert new.split(compare.END)[1] == text.split(compare.END)[1]
    for part in ("runc, 1.6", "0123456789ab", "17 MB/s", "what is installed"):
        assert part in new, part


@test
def a_part_measured_again_replaces_what_it_had_and_says_when():
    old, new = sample(), sample()
    old["parts"]["more"] = {**old["parts"]["all"], "results": {"lcow": {"x": 1, "y": 1}}}
    part = {**new["parts"].pop("all"), "made": "2026-11-16T01:02:03", "commit": "fedcba9876543210",
            "quick": True, "results": {"lcow": {"x": 2}}, "troubles": []}
    new["parts"]["more"] = part
    old["machine"]["accel"] = "?"
    both = record.merge(old, new)
    lcow = both["results"]["lcow"]
    assert lcow["x"] == 2 and "y" not in lcow and "pss_kib" in lcow
    assert both["machine"]["accel"] == "tcg" and both["troubles"] == ["a thing that failed"]
    told = "\n".join(record.origins(both))
    assert told == "more: 2026-11-16 01:02 UTC, commit fedcba987654, a quick run", told
    assert record.origins(sample()) == [] and told in page.write(both)


@test
def the_picture_has_the_ratio_of_each_row():
    svg, _ = picture.draw(sample(lcow=4.0, runc=2.0))
    assert svg.count("× 2<") == len(rows.ROWS), svg.count("× 2<")


@test
def a_busy_machine_leaves_the_documents_alone():
    bench = load_run()
    result, written = sample(), []
    bench.rewrite = lambda name, change: written.append(name)
    result["parts"]["all"]["others_cpus"] = bench.QUIET * 2
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert bench.document(result) == 1
    assert not written and "0.3 of a CPU around all" in said.getvalue(), said.getvalue()


@test
def no_measurement_has_a_disk_that_its_template_has_not():
    try:
        cells.begin("lcow", "2.1", sample, template="auto", scratch_mib=2048)
    except ValueError:
        return
    raise AssertionError("it was begun")


def load_run():
    loader = importlib.machinery.SourceFileLoader("bench_run", os.path.join(HERE, "run"))
    bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_run", loader))
    loader.exec_module(bench)
    return bench


@test
def a_part_that_fails_leaves_the_others_alone():
    bench = load_run()
    bench.stats.busy_cpus = lambda seconds: 0
    done = []
    run = bench.Run(argparse.Namespace(within=False, only=["bad", "good", "worse"], quick=True),
                    {"bad": lambda run, vm: 1 / 0, "good": lambda run, vm: done.append(vm),
                     "worse": lambda run, vm: sys.exit("no")})
    with contextlib.redirect_stderr(io.StringIO()):
        for name in run.wanted:
            run.part(name, "vm")
        run.keep("lcow", {"a": 1, "troubles": ["half of it"]})
        run.began -= 60 * bench.MINUTES + 1
        run.part("late", "late")
    assert done == ["vm"], done
    results, troubles = record.gather(run.parts)
    assert results == {"lcow": {"a": 1}} and "half of it" in troubles, (results, troubles)
    told = " ".join(troubles)
    assert "bad: ZeroDivisionError" in told and "worse: SystemExit: no" in told, told
    assert "late: not started within 60 minutes" in told, told


def main():
    print(f"1..{len(TESTS)}")
    failed = 0
    for number, body in enumerate(TESTS, start=1):
        try:
            body()
            print(f"ok {number} - {body.__name__}")
        except Exception as e:  # a failed test, whatever the reason
            failed += 1
            print(f"not ok {number} - {body.__name__}\n# {type(e).__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

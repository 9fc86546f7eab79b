"""Runs a measurement like an end-to-end test: in a separate cell with its own containerd, and cleans
up."""

import multiprocessing
import os
import sys

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, os.path.join(TOP, "tests/e2e"))

import archives  # noqa: E402
import e2e  # noqa: E402
import cell  # noqa: E402
import cri  # noqa: E402
import daemon  # noqa: E402
import harness  # noqa: E402
import packages  # noqa: E402

SECONDS = 400  # time limit of one measurement

daemon.LEVEL = "info"  # as in production: with "debug" each shim logs every call


class Steps(dict):
    """Results of several steps of one measurement: failures are reported, other results are kept."""

    def attempt(self, name, step, *args):
        try:
            self.update(step(*args))
        except Exception as e:  # the other steps continue
            self.setdefault("troubles", []).append(f"{name}: {type(e).__name__}: {e}")


def prepare(versions):
    """What all cells need, before the first. In the emulated host it was put there."""
    if "LCOW_TEST_PREPARED" not in os.environ:
        packages.fetch(versions)
        archives.make()
        cri.compile_proto()


def _work(connection, runtime, version, keys, measure, args):
    cell.enter(keep=harness.keep() + [keys["template_dir"]] if "template_dir" in keys
               else harness.keep())
    case = harness.Case(f"bench {runtime} {version} {measure.__name__}", None, SECONDS, False)
    case.version, case.runtime = version, runtime
    # A measurement with another containerd names it itself.
    case.images = getattr(measure, "images", ("static",))
    case.prepare = getattr(measure, "prepare", lambda t: {})
    t = e2e.Test(case)
    t.keys(log_level="warn", **keys)
    try:
        t.make_dirs()
        connection.send(measure(t, *args))
    except Exception as e:  # the other measurements continue
        connection.send(f"{measure.__name__} of {runtime} under containerd {version}: "
                        f"{type(e).__name__}: {e}")
    finally:
        try:
            t.stop_processes()
            t.undo()
        except harness.Failure as e:
            print(f"bench: warning: {e}", file=sys.stderr)
        t.wipe()


def begin(runtime, version, measure, *args, **keys):
    """Starts measure(t, *args) in a cell; keys are those of lcow's configuration. For finish()."""
    if keys.get("template") == "auto" and "scratch_mib" in keys:
        raise ValueError("a template has its disk's size: with another scratch_mib the first VM is no "
                         "clone, and the shim builds a template beside what is measured")
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(theirs, runtime, version, keys, measure, args))
    process.start()
    theirs.close()
    return process, ours, f"{measure.__name__} of {runtime} under containerd {version}"


def finish(begun):
    """Its result, or an error message as a string."""
    process, ours, what = begun
    try:
        result = ours.recv() if ours.poll(SECONDS) else f"{what}: not finished after {SECONDS} s"
    except EOFError:
        result = f"{what}: the measurement's process exited without a result"
    for i, trouble in enumerate(result.get("troubles", ()) if isinstance(result, dict) else ()):
        result["troubles"][i] = f"{what}, {trouble}"
    process.join(120)
    if process.is_alive():
        process.kill()
        process.join()
    return result


def run(runtime, version, measure, *args, **keys):
    """Runs one measurement and waits for it."""
    return finish(begin(runtime, version, measure, *args, **keys))

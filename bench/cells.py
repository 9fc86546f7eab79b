"""Runs a measurement as an end-to-end test is run: in a cell of its own, with a containerd of its
own, and takes everything back."""

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

SECONDS = 400  # for one measurement, whatever it does

daemon.LEVEL = "info"  # as in use: with "debug" each shim writes lines for every call


class Steps(dict):
    """Results of several steps of one measurement: what fails is told, what was found is kept."""

    def attempt(self, name, step, *args):
        try:
            self.update(step(*args))
        except Exception as e:  # whatever it is, the other steps go on
            self.setdefault("troubles", []).append(f"{name}: {type(e).__name__}: {e}")


def prepare(versions):
    """What all cells need, before the first."""
    packages.fetch(versions)
    archives.make()
    cri.compile_proto()


def _work(connection, runtime, version, keys, measure, args):
    cell.enter(keep=harness.keep() + [keys["template_dir"]] if "template_dir" in keys
               else harness.keep())
    case = harness.Case(f"bench {runtime} {version} {measure.__name__}", None, SECONDS, False)
    case.version, case.runtime = version, runtime
    # A measurement with another containerd than the usual says so itself.
    case.images = getattr(measure, "images", ("static",))
    case.prepare = getattr(measure, "prepare", lambda t: {})
    t = e2e.Test(case)
    t.keys(log_level="warn", **keys)
    try:
        t.make_dirs()
        connection.send(measure(t, *args))
    except Exception as e:  # whatever it is, the other measurements go on
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
    """Its result, or the words of what failed as a string."""
    process, ours, what = begun
    try:
        result = ours.recv() if ours.poll(SECONDS) else f"{what}: not done after {SECONDS} s"
    except EOFError:
        result = f"{what}: the measurement died"
    for i, trouble in enumerate(result.get("troubles", ()) if isinstance(result, dict) else ()):
        result["troubles"][i] = f"{what}, {trouble}"
    process.join(120)
    if process.is_alive():
        process.kill()
        process.join()
    return result


def run(runtime, version, measure, *args, **keys):
    """One after the other."""
    return finish(begin(runtime, version, measure, *args, **keys))

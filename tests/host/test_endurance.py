"""Many starts in a row and at once. Any that fails is counted, shown and never repeated."""
from suite import case, check, equal

# $1: so many; $2: of those, so many at a time; $3: whether they are clones. Prints what failed, and what
# started in another way. The end of each start is on the host's console too, between what its kernel
# says.
STARTS = """starts() {
    case $3 in true) how=;; false) how=--cold;; esac
    seq $1 | xargs -P $2 -I{} sh -c 'out=$(lcow boot --kvm --json '$how' -- true 2>&1); code=$?
        echo "<4>start {} of '$1': exit code $code" >/dev/kmsg
        case "$code $out" in
        "0 "*"\\"clone\\":'$3'"*) ;;
        *) echo "start {}: exit code $code: $(echo "$out" | tail -n 25)" ;;
        esac'
}
"""


def starts(h, count, clones, at_once=1):
    out = h.run(f"{STARTS}\nstarts {count} {at_once} {str(clones).lower()}", seconds=14400)
    check(not out, f"of {count} starts some failed:", out)
    equal(h.run("ps -eo args | grep '[q]emu-system'; ls /run/lcow | grep -v '^[a-z]*$'", code=None), "",
          "left")


@case("cold boots in a row: --cold N", full=True)
def cold(h, opts):
    starts(h, opts.cold, False)
    return f"{opts.cold} cold boots, none failed"


@case("clones in a row: --clones N", full=True)
def clones(h, opts):
    h.run("lcow template build")
    starts(h, opts.clones, True)
    return f"{opts.clones} clones, none failed"


@case("clones at once: --parallel N", full=True)
def parallel(h, opts):
    h.run("lcow template build")
    starts(h, opts.parallel, True, at_once=opts.parallel)
    return f"{opts.parallel} clones at once, none failed"


@case("16 clones share no secret, and their clocks are right", full=True)
def fresh(h, opts):
    return h.run("cd /root/tree && LCOW_TEST_PROGRAM=$(readlink -f $(which lcow)) "
                 "LCOW_TEST_IMAGE=$(readlink -f /usr/lib/lcow/image) "
                 "tests/integration/run -v -k 'share no secret'")

# shellcheck shell=bash
# say.sh - progress and errors of the project's shell scripts. Source it; set $SAY_NAME first.
#
# A phase prints one line: its name and its duration. The output of its commands is written to a log
# file. If the phase fails, the end of the log is shown, and before that its lines with errors, which
# a parallel make prints long before it ends.

# Independent of the caller's umask: QEMU, which is not root, must be able to read what is built here.
umask 022

say() { printf '%s: %s\n' "$SAY_NAME" "$*"; }

# say_fail MESSAGE [WHAT-TO-DO-NEXT]: exits the script.
say_fail() {
    printf '%s: error: %s\n' "$SAY_NAME" "$1" >&2
    [ $# -lt 2 ] || printf '%s: try:   %s\n' "$SAY_NAME" "$2" >&2
    exit 1
}

# say_phase LOG MESSAGE COMMAND...: runs COMMAND with its output appended to LOG.
say_phase() {
    local log=$1 message=$2 start=${EPOCHREALTIME/[.,]/} took
    shift 2
    if ! "$@" 8>&2 >>"$log" 2>&1; then
        printf '%s: %s: failed; the last lines of %s:\n' "$SAY_NAME" "$message" "$log" >&2
        head -n -15 "$log" | grep -iE '\b(error|fatal|failed)\b|\*\*\*' | tail -n 10 | sed 's/^/    /' >&2
        tail -n 15 "$log" | sed 's/^/    /' >&2
        return 1
    fi
    took=$(((${EPOCHREALTIME/[.,]/} - start) / 100000))
    say "$message ($((took / 10)).$((took % 10)) s)"
}

# say_retry COMMAND...: a step that needs the network; within a phase. A mirror that is being updated,
# or that does not answer, is not an error: retries after a pause, and again after a longer one.
SAY_PAUSES=${SAY_PAUSES:-5 30}
say_retry() {
    local pause
    for pause in $SAY_PAUSES; do
        ! "$@" || return 0
        say "failed; retrying in $pause s"
        say "failed; retrying in $pause s" >&8 # where the phase was called from
        sleep "$pause"
    done
    "$@"
}

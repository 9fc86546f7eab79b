# shellcheck shell=bash
# apt.sh - Debian packages through apt, without touching the machine's apt configuration.
#
# A *world* is a directory in $LCOW_CACHE/apt with its own source list, package lists, pins and
# downloads. It uses the machine's mirror: apt prints its URIs, so that both of its configuration
# formats work, and the first URI that Debian's archive key has signed is used. Third-party sources,
# which may be unreachable, are ignored. Proxies and credentials are the machine's. apt verifies
# downloads: the signature of the suite, then the hash of the file.
#
# $LCOW_MIRROR and $LCOW_SECURITY_MIRROR override the mirror.

APT_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

LCOW_CACHE=${LCOW_CACHE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/cache}

# apt_in WORLD TOOL ARGS...: runs apt-get or apt-cache in that world.
apt_in() {
    local dir=$LCOW_CACHE/apt/$1 tool=$2
    shift 2
    LC_ALL=C DEBIAN_FRONTEND=noninteractive "$tool" -q \
        -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences="$dir/pins" -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" \
        -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 \
        "$@"
}

# Prints "BASE SUITE" for each source that the machine's own apt configuration names.
apt_machine_sources() {
    LC_ALL=C apt-get update --print-uris 2>/dev/null |
        sed -nE "s#^'([a-z+]+:[^']*)/dists/([^']+)/InRelease'.*#\1 \2#p" | sort -u
}

# apt_mirrors_of SUITE...: base URIs of the machine's sources for any of these suites.
apt_mirrors_of() {
    apt_machine_sources | awk -v want=" $* " 'index(want, " " $2 " ") && !seen[$1]++ { print $1 }'
}

# apt_update WORLD KIND SUITE...: writes the world's source list (KIND is deb or deb-src) and
# loads its package lists; quick when they are recent. Suites *-security come from the security
# mirror and are left out if the machine has none.
apt_update() {
    local world=$1 kind=$2 dir=$LCOW_CACHE/apt/$1 own security mirrors mirror suite base
    shift 2
    [ -r "$APT_KEYRING" ] || {
        echo "$APT_KEYRING is missing: install debian-archive-keyring" >&2
        return 1
    }
    own=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    mirrors=${LCOW_MIRROR:-$(apt_mirrors_of "$own" stable oldstable)}
    security=${LCOW_SECURITY_MIRROR:-$(apt_mirrors_of "$own-security" stable-security | head -n 1)}
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
    touch "$dir/pins"

    for mirror in $mirrors; do
        for suite in "$@"; do
            base=$mirror
            [[ $suite != *-security ]] || base=$security
            [ -z "$base" ] ||
                printf '%s [signed-by=%s] %s %s main\n' "$kind" "$APT_KEYRING" "$base" "$suite"
        done >"$dir/sources.list"
        # --error-on=any: a list that cannot be loaded or verified is a failure, not a warning.
        rm -f "$dir/updated"
        apt_in "$world" apt-get update --error-on=any && touch "$dir/updated" && return 0
    done
    echo "no usable Debian mirror for $* in this machine's apt configuration" \
        "(tried: ${mirrors:-none}); set LCOW_MIRROR and LCOW_SECURITY_MIRROR to name one" >&2
    return 1
}

# apt_is_recent WORLD: its lists were loaded within the last ten minutes. If a download
# fails anyway, call apt_distrust.
apt_is_recent() { [ -n "$(find "$LCOW_CACHE/apt/$1/updated" -mmin -10 2>/dev/null)" ]; }
apt_distrust() { rm -f "$LCOW_CACHE/apt/$1/updated"; }

# apt_suites SUITE: SUITE and, for a stable release, its updates and security fixes.
apt_suites() {
    case $1 in
    bookworm | trixie) echo "$1 $1-updates $1-security" ;;
    *) echo "$1" ;;
    esac
}

# apt_pin_backports WORLD RELEASE: Debian 12 has QEMU 7.2. Only QEMU and its firmware are taken from
# backports; the world's source list must name them.
apt_pin_backports() {
    cat >"$LCOW_CACHE/apt/$1/pins" <<END
Package: src:qemu src:seabios
Pin: release n=$2-backports
Pin-Priority: 900
END
}

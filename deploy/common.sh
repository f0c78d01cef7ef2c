# Functions of the deploy scripts: find Python and Java, create the virtual environment. This file is sourced, not executed.
# The caller sets $root to the root of the checkout.

venv="$root/.venv"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# reachable HOST: print the address for connections to a server that listens on HOST.
reachable() {
    case "$1" in
        0.0.0.0) echo 127.0.0.1 ;;
        :: | '[::]') echo '[::1]' ;;
        \[*) echo "$1" ;;
        *:*) echo "[$1]" ;;
        *) echo "$1" ;;
    esac
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    say "Installing $* (apt)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || return 1
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Install a package, but neither start nor enable its service, which would occupy a port now and after each boot.
apt_install_stopped() {
    local policy=/usr/sbin/policy-rc.d made= code=0
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=1; }
    apt_install "$1" || code=1
    [ -z "$made" ] || rm -f "$policy"
    ! command -v systemctl >/dev/null || systemctl disable --quiet "$1" 2>/dev/null || true
    return "$code"
}

# Print the path of a Python 3.11 or newer: $PYTHON if it is set, otherwise the first candidate that runs. Candidates that can
# create a virtual environment are preferred. The system Python comes first, because distributions compile it with profile-guided
# optimization. Version managers do not by default, and the same code then takes up to 1.6 times as long. Each candidate is
# executed, because a name on PATH may be a shim for a version that is not installed.
find_python() {
    local needs name names=(/usr/bin/python3 python3.11 python3.12 python3.13 python3.14 python3)
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for needs in 'ensurepip, sys' sys; do
        for name in "${names[@]}"; do
            if "$name" -c "import $needs; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
                command -v "$name"
                return
            fi
        done
    done
    return 1
}

need_python() {
    python="$(find_python)" && return
    if [ -z "${PYTHON:-}" ] && can_apt && apt_install python3 python3-venv && python="$(find_python)"; then return; fi
    [ -z "${PYTHON:-}" ] || fail "PYTHON is $PYTHON, which is not Python 3.11 or newer."
    fail "Python 3.11 or newer is required, but not on PATH. Install it (Debian, Ubuntu: apt install python3.11 python3.11-venv)."
}

# Debian moves a part of venv to a separate package. Without it, `python3 -m venv` fails and leaves an incomplete directory.
make_venv() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    rm -rf "$venv"
    say "Creating ${venv#"$root/"} with $("$python" -V)"
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    rm -rf "$venv"
    local package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    can_apt && apt_install "$package" && "$python" -m venv "$venv" && return
    fail "$python cannot create a virtual environment. Install the package first: apt install $package"
}

# install NAME REQUIREMENT...: install the requirements in the versions of requirements.lock. Skipped if pyproject.toml, the lock
# file and the requirements have not changed since the last successful installation.
install() {
    local stamp="$venv/.installed-$1" lock="$root/deploy/requirements.lock" now
    shift
    now="$(cat "$root/pyproject.toml" "$lock" - <<<"$*" | "$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')"
    [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && return
    say "Installing packages into .venv (Spark is 460 MB; the first time takes a few minutes)"
    (cd "$root" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$lock" "$@") || fail "pip install $* failed"
    # Spark finds format("topics") only in a directory of the module search path, and an editable installation does not add the
    # directory.
    printf '%s\n' "$root/topics/spark/discovery" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/topics-discovery.pth"
    printf '%s\n' "$now" >"$stamp"
}

java() { command "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@"; }

# Print the major version: 17 for 17.0.15, 8 for 1.8.0. Print nothing if there is no Java.
java_version() { java -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1 || true; }

new_enough() { [ "$(java_version)" -ge 17 ] 2>/dev/null; }

need_java() {
    new_enough && return
    # Newer distributions do not have Java 17, but a newer default version. Nothing is installed if JAVA_HOME is set.
    if [ -z "${JAVA_HOME:-}" ] && can_apt; then
        apt_install openjdk-17-jre-headless || apt_install default-jre-headless || true
        new_enough && return
    fi
    local where="${JAVA_HOME:+$JAVA_HOME/bin/java (from JAVA_HOME)}" version
    version="$(java_version)"
    if [ -n "$version" ]; then
        fail "Spark needs Java 17 or newer; ${where:-java on PATH} has version $version. Install it: sudo apt install openjdk-17-jre-headless"
    elif [ -n "$where" ]; then
        fail "Spark needs Java 17 or newer; $where does not run. Unset JAVA_HOME, or set it to a Java 17."
    fi
    fail "Spark needs Java 17 or newer, but there is no java on PATH. Install it: sudo apt install openjdk-17-jre-headless"
}

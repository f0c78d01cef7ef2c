# Shared by deploy/run and deploy/test: find Python and Java, make the virtual environment. Sourced, not run.
# Needs: $root, the checkout's folder.

venv="$root/.venv"

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# reachable HOST: the address at which a server that listens on HOST is called.
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

# The program without its service, which would take a port of this machine now and at each start.
apt_install_stopped() {
    local policy=/usr/sbin/policy-rc.d made= code=0
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && made=1; }
    apt_install "$1" || code=1
    [ -z "$made" ] || rm -f "$policy"
    ! command -v systemctl >/dev/null || systemctl disable --quiet "$1" 2>/dev/null || true
    return "$code"
}

# A Python from 3.11 on: $PYTHON, or the first that runs; one that can make a virtual environment before one that cannot.
# The system's own comes first: distributions compile it with profile-guided optimization. Version managers do not by default,
# and the same code then takes up to 1.6 times as long. A name on PATH may be a shim of a version that is not installed, so
# each is tried.
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
    [ -z "${PYTHON:-}" ] || fail "PYTHON is $PYTHON, which is no Python 3.11 or newer."
    fail "Python 3.11 or newer is needed and none is on PATH. Install it (Debian, Ubuntu: apt install python3.11 python3.11-venv)."
}

# Debian has half of venv in a package of its own; without it `python3 -m venv` leaves a broken folder behind.
make_venv() {
    [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    rm -rf "$venv"
    say "Making ${venv#"$root/"} with $("$python" -V)"
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    rm -rf "$venv"
    local package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    can_apt && apt_install "$package" && "$python" -m venv "$venv" && return
    fail "$python cannot make a virtual environment. Install it first: apt install $package"
}

# install NAME REQUIREMENT...: in the versions of requirements.lock, and only when pyproject.toml, the lock or the requirements
# have changed since the last install that succeeded.
install() {
    local stamp="$venv/.installed-$1" lock="$root/deploy/requirements.lock" now
    shift
    now="$(cat "$root/pyproject.toml" "$lock" - <<<"$*" | "$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')"
    [ "$(cat "$stamp" 2>/dev/null)" = "$now" ] && return
    say "Installing packages into .venv (Spark is 460 MB; the first time takes a few minutes)"
    (cd "$root" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$lock" "$@") || fail "pip install $* failed"
    # Spark finds format("topics") in a folder of the search path only, and an editable install adds none.
    printf '%s\n' "$root/topics/spark/discovery" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/topics-discovery.pth"
    printf '%s\n' "$now" >"$stamp"
}

java() { command "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@"; }

# 17 for 17.0.15, 8 for 1.8.0; nothing where there is no Java.
java_version() { java -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1 || true; }

new_enough() { [ "$(java_version)" -ge 17 ] 2>/dev/null; }

need_java() {
    new_enough && return
    # Newer releases have no 17 but a newer default. A wrong JAVA_HOME is not replaced.
    if [ -z "${JAVA_HOME:-}" ] && can_apt; then
        apt_install openjdk-17-jre-headless || apt_install default-jre-headless || true
        new_enough && return
    fi
    local where="${JAVA_HOME:+$JAVA_HOME/bin/java (from JAVA_HOME)}" version
    version="$(java_version)"
    if [ -n "$version" ]; then
        fail "Spark needs Java 17 or newer; ${where:-java on PATH} is of version $version. Install it: sudo apt install openjdk-17-jre-headless"
    elif [ -n "$where" ]; then
        fail "Spark needs Java 17 or newer; $where does not run. Unset JAVA_HOME or let it name a Java 17."
    fi
    fail "Spark needs Java 17 or newer and there is no java on PATH. Install it: sudo apt install openjdk-17-jre-headless"
}

#!/usr/bin/env bash
# What a node needs: Debian's bubblewrap, and the project with the versions it was tested with, in a venv beside it.
# Run again, it does what is left to do. Without root or sudo it leaves out Debian's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v bwrap >/dev/null && command -v apt-get >/dev/null; then
    if [ "$(id -u)" = 0 ]; then root=(); else root=(sudo --non-interactive); fi
    if "${root[@]}" true; then
        "${root[@]}" apt-get update --quiet
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install --quiet --yes --no-install-recommends bubblewrap postgresql python3-venv rsync wget
        # Ubuntu 24.04 keeps user namespaces, and so bubblewrap, from everyone but root.
        restricted=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
        if [ -w "$restricted" ] || [ -e "$restricted" ]; then
            echo "kernel.apparmor_restrict_unprivileged_userns = 0" |
                "${root[@]}" tee /etc/sysctl.d/60-bubblewrap.conf >/dev/null
            "${root[@]}" sysctl --quiet --system || true # a container has its host's
        fi
    fi
fi
[ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
if [ ! .venv/ready -nt constraints.txt ] || [ ! .venv/ready -nt pyproject.toml ]; then
    .venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[postgres]'
    touch .venv/ready
fi

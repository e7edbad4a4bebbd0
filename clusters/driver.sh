#!/usr/bin/env bash
# The driver of a submitted sweep (launch.py submit), on the head node: driver.sh NAME GRID [KEY=VALUE]...
# Code and command stay in ~/.spot-sweeps/NAME for as long as it runs: a head node that is started anew submits what it
# finds there (clusters/head.sh).
set -uo pipefail
kept="$HOME/.spot-sweeps/$1"
shift
rm -rf "$kept"
mkdir -p "$kept" && cp -r . "$kept" && printf '%q ' "$@" >"$kept/asked"
trap : TERM # the driver has it too, and takes its time
python launch.py run "$@"
status=$?
rm -rf "$kept"
exit $status

#!/usr/bin/env bash
# A head node: Ray, MLflow if told where its artifacts go, and the sweeps that an earlier head left unfinished
# (clusters/driver.sh). `ray up` runs it, and cron whenever the machine starts: clusters/head.sh [s3://BUCKET/mlflow]
set -euo pipefail
spot=$(cd "$(dirname "$0")/.." && pwd)
PATH="$PATH:$spot/.venv/bin" # cron has a short one
line="@reboot $(printf '%q ' "$spot/clusters/head.sh" "$@")"
{ crontab -l 2>/dev/null | grep --invert-match clusters/head.sh || true; echo "$line"; } | crontab -

if [ $# -gt 0 ] && ! wget --quiet --output-document=/dev/null http://127.0.0.1:5000/health; then
    sudo -u postgres createuser "$(id -un)" 2>/dev/null && sudo -u postgres createdb --owner "$(id -un)" mlflow
    nohup "$spot/clusters/mlflow.sh" "$1" >>~/mlflow.log 2>&1 &
fi

if ! ray status --address 127.0.0.1:6379 >/dev/null 2>&1; then # a second `ray up` leaves sweeps that run alone
    scaling=()
    if [ -e ~/ray_bootstrap_config.yaml ]; then scaling=(--autoscaling-config="$HOME/ray_bootstrap_config.yaml"); fi
    ulimit -n 65536 || true
    export RAY_worker_niceness=0 # decoding is what the machines are for
    ray start --head --port=6379 --dashboard-host=127.0.0.1 "${scaling[@]}"
fi

for kept in ~/.spot-sweeps/*/asked; do
    [ -e "$kept" ] || continue
    (cd "$(dirname "$kept")" && xargs python launch.py submit <asked) || true # its line says why; the next may go
done

#!/usr/bin/env bash
# MLflow over PostgreSQL, with artifacts on S3: clusters/mlflow.sh s3://BUCKET/mlflow
#
# By default the database is `mlflow` of this machine's PostgreSQL, whom the socket tells who asks: no password. Once:
#     sudo -u postgres createuser "$USER" && sudo -u postgres createdb --owner "$USER" mlflow
# Another one by libpq's own PGHOST, PGUSER and PGPASSFILE. The server listens on this machine alone unless MLFLOW_HOST
# says otherwise. It asks for a name and a password where MLFLOW_AUTH_CONFIG_PATH names an auth.ini (docs/clusters.md);
# else it asks nobody, so put what does in front of it.
set -euo pipefail
destination=${1:?clusters/mlflow.sh s3://BUCKET/mlflow}
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
export PGHOST=${PGHOST:-/var/run/postgresql}
app=()
if [ -n "${MLFLOW_AUTH_CONFIG_PATH:-}" ]; then app=(--app-name basic-auth); fi
exec mlflow server --host "${MLFLOW_HOST:-127.0.0.1}" --port "${MLFLOW_PORT:-5000}" --workers 2 "${app[@]}" \
    --backend-store-uri postgresql:///mlflow --artifacts-destination "$destination"

#!/usr/bin/env bash
# MLflow over PostgreSQL, with artifacts on S3: clusters/mlflow.sh s3://BUCKET/mlflow
#
# By default the database is `mlflow` of this machine's PostgreSQL, whom the socket tells who asks: no password. Once:
#     sudo -u postgres createuser "$USER" && sudo -u postgres createdb --owner "$USER" mlflow
# Another one by libpq's own PGHOST, PGUSER and PGPASSFILE. The server listens on this machine alone unless MLFLOW_HOST
# says otherwise; it asks nobody for a password, so put what does in front of it then.
set -euo pipefail
destination=${1:?clusters/mlflow.sh s3://BUCKET/mlflow}
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
export PGHOST=${PGHOST:-/var/run/postgresql}
exec mlflow server --host "${MLFLOW_HOST:-127.0.0.1}" --port "${MLFLOW_PORT:-5000}" --workers 2 \
    --backend-store-uri postgresql:///mlflow --artifacts-destination "$destination"

#!/bin/sh
# Start PgBouncer: write the password of the login, then run it with the settings in $1.
set -eu
umask 077
printf '"keepthread_api" "%s"\n' "$PGPASSWORD" >"${KEEPTHREAD_USERS:-/tmp/users}"
exec pgbouncer "$1"

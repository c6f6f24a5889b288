#!/bin/sh
# As the official image does: once, make the data folder, the account and Tango's tables; then MariaDB becomes process 1.
set -eu
data=/var/lib/mysql
if [ ! -e "$data/tango-schema-loaded" ]; then
  # What an interrupted start has left is no database.
  find "$data" -mindepth 1 -delete
  mariadb-install-db --no-defaults --datadir="$data" --auth-root-authentication-method=normal --skip-test-db >/dev/null
  password=$(cat "$MARIADB_PASSWORD_FILE")
  {
    echo "CREATE DATABASE $MARIADB_DATABASE;"
    echo "CREATE USER '$MARIADB_USER'@'%' IDENTIFIED BY '$password';"
    echo "GRANT ALL ON $MARIADB_DATABASE.* TO '$MARIADB_USER'@'%';"
    echo "CREATE USER 'healthcheck'@'127.0.0.1';"
    echo "USE $MARIADB_DATABASE;"
    cat /usr/share/dbconfig-common/data/tango-db/install/mysql
  } >/tmp/tables.sql
  mariadbd --no-defaults --datadir="$data" --skip-networking --socket=/tmp/once.sock &
  until mariadb --no-defaults --user=root --socket=/tmp/once.sock --execute='SELECT 1' >/dev/null 2>&1; do
    kill -0 $! # it has ended: so does this
    sleep 0.2
  done
  # The client understands `source`, with which Tango's file includes others.
  mariadb --no-defaults --user=root --socket=/tmp/once.sock </tmp/tables.sql
  # Root has had no password so far, and needs none: nobody logs in as root.
  mariadb --no-defaults --user=root --socket=/tmp/once.sock --execute='ALTER USER root@localhost ACCOUNT LOCK'
  rm /tmp/tables.sql
  kill $!
  wait $! || true
  touch "$data/tango-schema-loaded"
fi
exec mariadbd --no-defaults --datadir="$data" --bind-address=0.0.0.0 --skip-name-resolve

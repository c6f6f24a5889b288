#!/bin/sh
# Healthy is what answers over TCP: the server that only makes the tables does not.
exec mariadb --no-defaults --protocol=tcp --host=127.0.0.1 --user=healthcheck --connect-timeout=3 --execute='SELECT 1' >/dev/null

#!/bin/sh
# After the removal. The data of the peer stay in /var/lib/blackholed: its identity is there.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi

#!/bin/sh
# After the installation or an upgrade: a running peer goes on with the new program, and nothing is started unasked. A peer that does not
# start again is told, and leaves the package installed: otherwise nothing else would be either.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || echo "blackholed: systemd did not read the unit again: run systemctl daemon-reload" >&2
	systemctl try-restart blackholed.service ||
		echo "blackholed: the peer did not start again with the new program: see journalctl -u blackholed, then systemctl start blackholed" >&2
fi

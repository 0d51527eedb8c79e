#!/bin/sh
# Before the removal, not before an upgrade: dpkg says "remove", rpm the number of versions that stay.
set -e
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
	systemctl disable --now blackholed.service
fi

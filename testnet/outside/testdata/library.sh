#!/usr/bin/env bash
# Plays the compiled tests of a library in the folder of its package, with programs etcd and consul that start a peer. Tests that want one running name
# it and its port. Runs in a network namespace of its own:
#	unshare -n library.sh BLACKHOLED TESTS FOLDER [etcd|consul PORT] [-test.FLAG...]
set -euo pipefail
export BLACKHOLED=$1 STANDIN
tests=$2 folder=$3
shift 3
STANDIN=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$STANDIN"' EXIT
ip link set lo up
mkdir "$STANDIN/bin"
for name in etcd consul; do
	ln -s "$(cd "$(dirname "$0")" && pwd)/standin.py" "$STANDIN/bin/$name"
done
PATH=$STANDIN/bin:$PATH
case ${1-} in
etcd | consul)
	if [[ $1 == etcd ]]; then
		etcd -listen-client-urls "http://localhost:$2" &
	else
		echo '{"ports":{"http":'"$2"'}}' > "$STANDIN/consul.json"
		consul agent -dev -config-file "$STANDIN/consul.json" &
	fi
	timeout 60 bash -c "until (: < /dev/tcp/127.0.0.1/$2) 2>/dev/null; do sleep 0.3; done"
	shift 2
	;;
esac
cd "$folder"
"$tests" -test.v -test.timeout 10m "$@"

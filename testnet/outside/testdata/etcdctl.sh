#!/usr/bin/env bash
# etcdctl, unchanged, against the peer whose clients of etcd use the given address.
set -euo pipefail
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$1
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
trap 'printf "line %d failed\n" "$LINENO" >&2' ERR

# is compares what a command prints, line by line.
is() {
	local want=$1 got
	shift
	got=$("$@" 2>&1) || { printf '%s: exit code %d\n%s\n' "$*" "$?" "$got" >&2; exit 1; }
	[[ $got == "$want" ]] || { printf '%s printed\n%s\nnot\n%s\n' "$*" "$got" "$want" >&2; exit 1; }
}

# fails needs a command to fail with some words.
fails() {
	local words=$1 got
	shift
	if got=$("$@" 2>&1) || [[ $got != *"$words"* ]]; then
		printf '%s printed without a failure, or without %s\n%s\n' "$*" "$words" "$got" >&2
		exit 1
	fi
}

printf 'etcdctl %s\n' "$(etcdctl version | sed -n 's/^etcdctl version: //p')"

is OK etcdctl put ctl/a 1
is $'OK\nctl/a\n1' etcdctl put ctl/a 2 --prev-kv
is OK etcdctl put ctl/b 3
is $'ctl/b\n3\nctl/a\n2' etcdctl get ctl/ --prefix --order DESCEND
is $'ctl/a\n\nctl/b' etcdctl get ctl/ --prefix --keys-only
is 2 etcdctl get ctl/a --print-value-only
is $'ctl/a\n2' etcdctl get ctl/a ctl/b
is $'ctl/b\n3' etcdctl get --from-key ctl/b
is $'ctl/b\n3' etcdctl get ctl/ --prefix --sort-by MODIFY --order DESCEND --limit 1
is 1 etcdctl del ctl/b
is 0 etcdctl del ctl/b
printf 'ok keys\n'

txn() { etcdctl txn <<<"$1"; }
is $'SUCCESS\n\nOK\n\nctl/c\nx' txn $'mod("ctl/c") = "0"\nval("ctl/a") = "2"\n\nput ctl/c x\nget ctl/c\n\nget ctl/a\n'
is $'FAILURE\n\nctl/a\n2' txn $'create("ctl/c") = "0"\n\nput ctl/c y\n\nget ctl/a\n'
printf 'ok transactions\n'

etcdctl watch ctl/w --rev 1 --prev-kv >"$work/watch" &
watch=$!
etcdctl put ctl/w 1 >"$work/put"
etcdctl put ctl/w 2 >"$work/put"
etcdctl del ctl/w >"$work/put"
for _ in {1..300}; do
	[[ $(wc -l <"$work/watch") -ge 13 ]] && break
	read -rt 0.1 <> <(:) || true
done
kill "$watch"
is $'PUT\nctl/w\n1\nPUT\nctl/w\n1\nctl/w\n2\nDELETE\nctl/w\n2\nctl/w' cat "$work/watch"
printf 'ok watches\n'

etcdctl put ctl/m/a 1 >"$work/put"
etcdctl make-mirror --prefix ctl/m/ --dest-prefix ctl/n/ "$1" >"$work/mirror" 2>&1 &
mirror=$!
etcdctl put ctl/m/b 2 >"$work/put"
for _ in {1..300}; do
	[[ $(etcdctl get ctl/n/ --prefix) == $'ctl/n/a\n1\nctl/n/b\n2' ]] && break
	read -rt 0.1 <> <(:) || true
done
kill "$mirror"
is $'ctl/n/a\n1\nctl/n/b\n2' etcdctl get ctl/n/ --prefix
printf 'ok mirror\n'

lease=$(etcdctl lease grant 60 | sed -n 's/^lease \([0-9a-f]*\) granted with TTL(60s)$/\1/p')
is OK etcdctl put ctl/l 1 --lease "$lease"
is "lease $lease keepalived with TTL(60)" etcdctl lease keep-alive --once "$lease"
[[ $(etcdctl lease timetolive --keys "$lease") == "lease $lease granted with TTL(60s), remaining("*"), attached keys([ctl/l])" ]]
[[ $(etcdctl lease list) == *"$lease"* ]]
is "lease $lease revoked" etcdctl lease revoke "$lease"
is "" etcdctl get ctl/l
fails "requested lease not found" etcdctl lease revoke "$lease"
printf 'ok leases\n'

is held etcdctl lock ctl-job -- echo held
is $'won' etcdctl lock ctl-job -- etcdctl lock ctl-other -- echo won
for _ in 1 2 3 4; do
	etcdctl lock ctl-count -- bash -c 'n=$(cat "$0" 2>/dev/null || echo 0); echo $((n + 1)) >"$0"' "$work/count" &
	locked+=("$!")
done
for pid in "${locked[@]}"; do
	wait "$pid"
done
is 4 cat "$work/count"
etcdctl elect ctl-chief me >"$work/elect" &
elect=$!
for _ in {1..300}; do
	[[ $(tail -1 "$work/elect") == me ]] && break
	read -rt 0.1 <> <(:) || true
done
kill -INT "$elect"
wait "$elect" || true
[[ $(sed -n 2p "$work/elect") == me ]]
printf 'ok locks\n'

[[ $(etcdctl endpoint health 2>&1) == *"is healthy"* ]]
[[ $(etcdctl endpoint status) == "$1, "*", true, "* ]]
[[ $(etcdctl member list) == *", started, "* ]]
is "" etcdctl alarm list
is "Finished defragmenting etcd member[$1]" etcdctl defrag
revision=$(etcdctl get ctl/a -w json | sed 's/.*"revision":\([0-9]*\).*/\1/')
etcdctl put ctl/a 9 >"$work/put"
is "compacted revision $((revision + 1))" etcdctl compaction "$((revision + 1))"
fails "required revision has been compacted" etcdctl get ctl/a --rev "$revision"
for refused in "member add other --peer-urls http://127.0.0.1:1" "user add me:secret" "snapshot save $work/snapshot"; do
	# shellcheck disable=SC2086
	fails "" etcdctl $refused
done
printf 'ok cluster\n'

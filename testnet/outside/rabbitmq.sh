#!/bin/bash
# Two nodes of RabbitMQ, each with a peer on its host, find each other by RabbitMQ's own plugin for Consul or for etcd, unchanged.
#
#	go build -o /tmp/blackholed ./cmd/blackholed
#	apt-get install rabbitmq-server
#	testnet/outside/rabbitmq.sh /tmp/blackholed consul|etcd
#
# Needs root: each host is a network namespace. Prints the nodes of the cluster, and fails without both.
set -euo pipefail
binary=$1 front=$2
folder=$(mktemp -d)
chmod 755 "$folder"
started=()
stop() {
	for p in "${started[@]}"; do kill -KILL "$p" 2>/dev/null || true; done
	for i in 1 2; do
		ip netns pids "outside$i" 2>/dev/null | xargs -r kill -KILL || true
		ip netns delete "outside$i" 2>/dev/null || true
	done
	rm -rf "$folder"
}
trap stop EXIT

for i in 1 2; do ip netns add outside$i; done
ip link add host1 netns outside1 type veth peer name host2 netns outside2
for i in 1 2; do
	ip -n outside$i address add 10.99.0.$i/24 dev host$i
	ip -n outside$i link set host$i up
	ip -n outside$i link set lo up
done
peer() { # NUMBER FLAG...
	ip netns exec "outside$1" env BLACKHOLE_ETCD_LISTEN=127.0.0.1:2379 BLACKHOLE_CONSUL_ENABLED=true \
		"$binary" run --network outside --data "$folder/peer$1" --dns off --listen "/ip4/10.99.0.$1/tcp/4801" "${@:2}" > "$folder/peer$1.log" 2>&1 &
	started+=($!)
	disown
	timeout 60 bash -c "until ip netns exec outside$1 '$binary' status > /dev/null 2>&1; do sleep 0.3; done"
}
peer 1
peer 2 --join "$(ip netns exec outside1 "$binary" invite --data "$folder/peer1" 2>/dev/null | grep -o 'bh1_[A-Za-z0-9_-]*')"

as_rabbit() { # NUMBER COMMAND...
	ip netns exec "outside$1" setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups env HOME="$folder/node$1" RABBITMQ_USE_LONGNAME=true \
		RABBITMQ_NODENAME="rabbit@10.99.0.$1" RABBITMQ_CONFIG_FILE="$folder/node$1/rabbitmq" RABBITMQ_ENABLED_PLUGINS_FILE="$folder/node$1/plugins" \
		RABBITMQ_MNESIA_BASE="$folder/node$1/mnesia" RABBITMQ_LOG_BASE="$folder/node$1/log" "${@:2}"
}
for i in 1 2; do
	node=$folder/node$i
	mkdir -p "$node/mnesia" "$node/log"
	case $front in
	consul) printf 'cluster_formation.consul.%s\n' 'host = 127.0.0.1' 'svc_addr_auto = false' "svc_addr = 10.99.0.$i" 'svc_ttl = 30' ;;
	etcd) printf 'cluster_formation.etcd.%s\n' 'endpoints.1 = 127.0.0.1:2379' 'cluster_name = one' 'node_ttl = 30' ;;
	esac > "$node/rabbitmq.conf"
	echo "cluster_formation.peer_discovery_backend = $front" >> "$node/rabbitmq.conf"
	echo "[rabbitmq_peer_discovery_$front]." > "$node/plugins"
	echo outside > "$node/.erlang.cookie"
	chmod 400 "$node/.erlang.cookie"
	chown -R rabbitmq "$node"
	as_rabbit $i /usr/lib/rabbitmq/bin/rabbitmq-server > "$node/out" 2>&1 &
	started+=($!)
	disown
done
for ((try = 0; try < 60; try++)); do
	nodes=$(as_rabbit 1 /usr/lib/rabbitmq/bin/rabbitmqctl --longnames cluster_status --formatter json 2>/dev/null | grep -o '"running_nodes":\[[^]]*\]' || true)
	case $nodes in *10.99.0.1*10.99.0.2* | *10.99.0.2*10.99.0.1*)
		echo "$nodes"
		exit
		;;
	esac
	sleep 1
done
tail -n 20 "$folder"/node*/out
echo "the nodes do not find each other" >&2
exit 1

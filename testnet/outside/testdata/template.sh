#!/usr/bin/env bash
# consul-template, unchanged, renders keys and instances, and follows a change. Runs in a network namespace of its own:
#	unshare -n template.sh BLACKHOLED CONSUL-TEMPLATE
set -euo pipefail
binary=$1 program=$2
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
ip link set lo up
BLACKHOLE_CONSUL_ENABLED=true "$binary" run --network outside --data "$folder/peer" > "$folder/log" 2>&1 &
api=http://127.0.0.1:8500
timeout 60 bash -c "until curl -sf $api/readyz > /dev/null; do sleep 0.3; done" || { cat "$folder/log"; exit 1; }
curl -sf -X PUT $api/v1/kv/shop/title -d 'first' > /dev/null
curl -sf -X PUT $api/v1/agent/service/register -d '{"ID":"web1","Name":"web","Address":"10.0.0.1","Port":80}'
cat > "$folder/in" <<'IN'
{{ key "shop/title" }}{{ range tree "shop" }} {{ .Key }}{{ end }}{{ range service "web" }} {{ .Address }}:{{ .Port }}{{ end }}{{ range services }} {{ .Name }}{{ end }}
IN
"$program" -version
"$program" -consul-addr 127.0.0.1:8500 -template "$folder/in:$folder/out" -wait 100ms:1s 2> "$folder/template.log" &
becomes() {
	timeout 60 bash -c 'until grep -qx "$1" "$2" 2>/dev/null; do sleep 0.2; done' _ "$1" "$folder/out" || { cat "$folder/out" "$folder/template.log"; exit 1; }
}
becomes 'first title 10.0.0.1:80.* web'
curl -sf -X PUT $api/v1/kv/shop/title -d 'second' > /dev/null
curl -sf -X PUT $api/v1/agent/service/deregister/web1
becomes 'second title consul'
echo "rendered, and followed a change"

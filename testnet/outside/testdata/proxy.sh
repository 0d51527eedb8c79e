#!/bin/bash
# HAProxy, nginx or Traefik, unchanged, finds the instances of a service, and follows when one leaves. Runs in a network namespace of its own:
#	unshare -n proxy.sh BLACKHOLED haproxy|nginx|traefik PROGRAM
set -euo pipefail
binary=$1 kind=$2 program=$3
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
ip link set lo up

# The service: two addresses that say who they are.
for i in 2 3; do
	mkdir "$folder/$i"
	echo "127.0.0.$i" > "$folder/$i/index.html"
	python3 -m http.server --bind 127.0.0.$i --directory "$folder/$i" 8080 > "$folder/$i.log" 2>&1 &
done

BLACKHOLE_CONSUL_ENABLED=true "$binary" run --network outside --data "$folder/peer" > "$folder/log" 2>&1 &
timeout 60 bash -c "until curl -sf http://127.0.0.1:8500/readyz > /dev/null; do sleep 0.3; done" || { cat "$folder/log"; exit 1; }
for i in 2 3; do
	curl -sf -X PUT http://127.0.0.1:8500/v1/agent/service/register -d '{"ID":"web'$i'","Name":"web","Address":"127.0.0.'$i'","Port":8080,
		"Tags":["traefik.enable=true","traefik.http.routers.web.rule=PathPrefix(`/`)"]}'
done

case $kind in
haproxy)
	"$program" -v | sed -n 1p
	cat > "$folder/conf" <<-'CONF'
		defaults
		    mode http
		    timeout connect 1s
		    timeout client 5s
		    timeout server 5s
		resolvers peer
		    nameserver local 127.0.0.1:8600
		    accepted_payload_size 8192
		    hold valid 1s
		    hold obsolete 1s
		    timeout resolve 1s
		frontend all
		    bind 127.0.0.1:8000
		    default_backend web
		backend web
		    server-template web 3 _web._tcp.service.blackhole resolvers peer init-addr none check inter 1s
	CONF
	"$program" -db -f "$folder/conf" > "$folder/proxy.log" 2>&1 &
	;;
nginx)
	"$program" -v 2>&1
	cat > "$folder/conf" <<-CONF
		daemon off;
		pid $folder/pid;
		events {}
		http {
		    access_log off;
		    resolver 127.0.0.1:8600 valid=1s ipv6=off;
		    server {
		        listen 127.0.0.1:8000;
		        location / {
		            set \$web web.service.blackhole;
		            proxy_pass http://\$web:8080;
		        }
		    }
		}
	CONF
	"$program" -e "$folder/proxy.log" -c "$folder/conf" &
	;;
traefik)
	"$program" version | sed -n 1p
	"$program" --entrypoints.web.address=127.0.0.1:8000 --providers.consulcatalog.endpoint.address=127.0.0.1:8500 \
		--providers.consulcatalog.exposedbydefault=false --providers.consulcatalog.refreshinterval=1s > "$folder/proxy.log" 2>&1 &
	;;
esac

answers() { # the addresses that answer twelve requests
	for _ in {1..12}; do curl -s --max-time 5 http://127.0.0.1:8000/ || true; done | sort -u | tr '\n' ' '
}
expect() {
	for _ in {1..60}; do
		found=$(answers)
		[ "$found" = "$1" ] && return
		sleep 0.5
	done
	cat "$folder/proxy.log"
	echo "$found answers instead of $1" >&2
	exit 1
}
expect "127.0.0.2 127.0.0.3 "
curl -sf -X PUT http://127.0.0.1:8500/v1/agent/service/deregister/web2
expect "127.0.0.3 "
echo "both found, one left"

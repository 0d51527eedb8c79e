#!/bin/bash
# The scripts of docs/howto/trade-hooks.md sell a shell of OpenSSH, a process, and a unit for a payment. Runs in a network namespace of its own:
#	unshare -n hooks.sh BLACKHOLED
set -euo pipefail
binary=$1
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
fail() { printf '%s\n' "$*" >&2; tail -n 30 "$folder"/*.log >&2; exit 1; }
until_ok() { timeout 60 bash -c "until $1; do sleep 0.2; done" || fail "never: $1"; }
ip link set lo up
mkdir "$folder/offers" "$folder/ca" "$folder/pids" "$folder/paid"

# The scripts stand in the page: a block that begins with #!/bin/sh, and then its name.
awk -v folder="$folder" '/^```/ { out = ""; first = $0 == "```sh"; next }
	first && /^#!\/bin\/sh$/ { shebang = 1; first = 0; next }
	shebang { out = folder "/" $2; print "#!/bin/sh" > out; shebang = 0 }
	out { print > out }' ../../docs/howto/trade-hooks.md
chmod +x "$folder"/{per-offer,ssh-grant,process-grant,pay-grant}
program() { # program OFFER COMMAND...
	printf '#!/bin/sh\nexec %s\n' "${*:2}" > "$folder/offers/$1"
	chmod +x "$folder/offers/$1"
}
program shell "$folder/ssh-grant" "$folder/ca" root
program server "$folder/process-grant" "$folder/pids" /usr/bin/python3 -m http.server --bind 127.0.0.1 9000
program paid "$folder/pay-grant" http://127.0.0.1:9100 "$folder/paid" 0xSELLER 400000

# OpenSSH, with a host key of its own, trusts the authority alone.
ssh -V 2>&1
ssh-keygen -q -t ed25519 -N '' -f "$folder/ca/ca"
ssh-keygen -q -k -f "$folder/ca/revoked"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
mkdir -p /run/sshd
cat > "$folder/sshd_config" <<-CONF
	ListenAddress 127.0.0.1:2222
	HostKey $folder/host
	PidFile none
	PermitRootLogin prohibit-password
	PasswordAuthentication no
	KbdInteractiveAuthentication no
	AuthorizedKeysFile none
	TrustedUserCAKeys $folder/ca/ca.pub
	RevokedKeys $folder/ca/revoked
CONF
/usr/sbin/sshd -D -e -f "$folder/sshd_config" > "$folder/sshd.log" 2>&1 &

# A facilitator of x402 that settles each nonce once, and counts.
/usr/bin/python3 - "$folder/settled" > "$folder/facilitator.log" 2>&1 <<-'PY' &
	import http.server, json, sys
	class Facilitator(http.server.BaseHTTPRequestHandler):
	    def do_POST(self):
	        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
	        paid, wants = asked["paymentPayload"]["payload"]["authorization"], asked["paymentRequirements"]
	        known = open(sys.argv[1], "a+")
	        known.seek(0)
	        fine = self.path == "/settle" and paid["value"] == wants["maxAmountRequired"] and paid["to"] == wants["payTo"] and paid["nonce"] not in known.read().split()
	        if fine:
	            known.write(paid["nonce"] + "\n")
	            known.close()
	        answer = json.dumps({"success": fine, "transaction": "0x1", "network": "base"}).encode()
	        self.send_response(200)
	        self.end_headers()
	        self.wfile.write(answer)
	http.server.HTTPServer(("127.0.0.1", 9100), Facilitator).serve_forever()
PY

# The seller and the buyer.
hook="$folder/per-offer,$folder/offers"
BLACKHOLE_TRADE_ON_PAY=$hook BLACKHOLE_TRADE_ON_GRANT=$hook BLACKHOLE_TRADE_ON_END=$hook \
	"$binary" run --network outside --data "$folder/seller" > "$folder/seller.log" 2>&1 &
until_ok "curl -sf http://127.0.0.1:8500/readyz > /dev/null"
invitation=$("$binary" invite --data "$folder/seller" 2> /dev/null)
"$binary" run --data "$folder/buyer" --http 127.0.0.1:8510 --grpc 127.0.0.1:8512 --dns off --listen /ip4/127.0.0.1/tcp/4802 --join "$invitation" > "$folder/buyer.log" 2>&1 &
until_ok "curl -sf http://127.0.0.1:8510/readyz > /dev/null"
for offer in shell:2222 server:9000 paid:9100; do
	cat > "$folder/offer.yaml" <<-YAML
		id: ${offer%:*}
		metadata:
		  type: tool
		  access: peer
		  stock: {unit: slot, total: 4, max_per_consumer: 4, max_ttl: 600}
	YAML
	"$binary" offer register -f "$folder/offer.yaml" > /dev/null
	curl -sf -X PUT "http://127.0.0.1:8500/v1/trade/served/${offer%:*}" -d '{"address":"127.0.0.1:'"${offer#*:}"'"}' > /dev/null
done
buy() { BLACKHOLE_GRPC=127.0.0.1:8512 "$binary" "$@"; }
key() { "$binary" offer ls -o json | jq -er --arg tail "/$1" '.records[].key | select(endswith($tail))'; }

# A shell: the buyer's key is signed, the certificate opens a session, and none after the end of the grant.
ssh-keygen -q -t ed25519 -N '' -f "$folder/id"
! buy offer reserve "$(key shell)" 2> "$folder/refused" || fail "a shell without a key"
grep -q "send a public key of SSH" "$folder/refused" || fail "$(cat "$folder/refused")"
buy offer reserve "$(key shell)" --proof "$folder/id.pub" -o json > "$folder/grant.json"
jq -r .handover "$folder/grant.json" > "$folder/id-cert.pub"
token=$(jq -r .token "$folder/grant.json")
buy connect "$token" --listen 127.0.0.1:2200 > "$folder/connect.log" 2>&1 &
into() { ssh -F none -i "$folder/id" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -p "$1" root@127.0.0.1 "${@:2}"; }
until_ok "grep -q listen $folder/connect.log"
[[ $(into 2200 echo inside) == inside ]] || fail "no shell"
into 2200 'echo inside; exec sleep 1000' > "$folder/session.log" 2>&1 &
session=$!
until_ok "grep -q inside $folder/session.log"
buy offer release "$token" > /dev/null
! wait "$session" || fail "the session outlives its grant"
until_ok "test \"\$(ssh-keygen -Q -f $folder/ca/revoked $folder/id-cert.pub | grep -c REVOKED)\" = 1"
! into 2222 true 2> /dev/null || fail "the certificate outlives its grant"
echo "a shell, as long as the grant"

# A process: it runs with the grant, and ends with it.
buy offer reserve "$(key server)" --for 20s -o json > "$folder/grant.json"
token=$(jq -r .token "$folder/grant.json")
until_ok "curl -sf http://127.0.0.1:9000/ > /dev/null"
buy connect "$token" -- sh -c 'curl -sf "http://$BLACKHOLE_CONNECT/" > /dev/null' || fail "the server is not reached"
until_ok "! curl -s http://127.0.0.1:9000/ > /dev/null && ! ls $folder/pids/*.pid 2> /dev/null"
echo "a process, until its grant expired"

# A payment: terms, a payment of another request, and the right one, sent twice.
code=0
buy offer reserve "$(key paid)" -o json > "$folder/terms.json" 2> "$folder/refused" || code=$?
[[ $code == 6 ]] || fail "exit $code: $(cat "$folder/refused")"
request=$(jq -r .request_id "$folder/terms.json")
jq '.terms.accepts[0] | {x402Version: 1, scheme, network,
	payload: {signature: "0x", authorization: {to: .payTo, value: .maxAmountRequired, nonce: .extra.nonce}}}' "$folder/terms.json" > "$folder/payment.json"
[[ $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8510/v1/trade/grants -d "{\"key\":\"$(key paid)\",\"request_id\":\"$request\"}") == 402 ]] || fail "no status 402"
! buy offer reserve "$(key paid)" --request other --proof "$folder/payment.json" 2> "$folder/refused" || fail "a payment of another request"
grep -q "the payment is of another request" "$folder/refused" || fail "$(cat "$folder/refused")"
for _ in 1 2; do buy offer reserve "$(key paid)" --request "$request" --proof "$folder/payment.json" -o json | jq -r '.token + " " + .state'; done > "$folder/paid.txt"
[[ $(uniq "$folder/paid.txt" | wc -l) == 1 && $(wc -l < "$folder/settled") == 1 ]] || fail "$(cat "$folder/paid.txt" "$folder/settled")"
grep -q ' active$' "$folder/paid.txt" || fail "$(cat "$folder/paid.txt")"
echo "a unit, for one payment"

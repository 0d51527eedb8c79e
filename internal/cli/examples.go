package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples shows the use of the commands that have no example of their own, without the program's name. A test parses
// them all.
func examples() map[string][]string {
	return map[string][]string{
		"init": {"init --data ~/peer"},
		"run": {
			"run", "run --profile lan --network office",
			"run --data peer-2 --http 127.0.0.1:8510 --grpc 127.0.0.1:8512 --dns 127.0.0.1:8610 --listen /ip4/127.0.0.1/tcp/4802",
			"run --join bh1_CgZvZmZpY2US...",
		},
		"invite":       {"invite", "invite --address /dns4/peer.example.org/tcp/4801/p2p/12D3KooW..."},
		"id":           {"id --data ~/peer"},
		"status":       {"status", "status --grpc 127.0.0.1:8512", "status -o json"},
		"doctor":       {"doctor", "doctor --data ~/peer -o json"},
		"peers":        {"peers", "peers -o ndjson"},
		"config show":  {"config show --origin", "config show --data ~/peer -o yaml"},
		"reclaim":      {"reclaim --data ~/peer"},
		"register":     {"register -f offer.yaml", "register -f offers/"},
		"update":       {"update -f offer.yaml"},
		"withdraw":     {"withdraw gpu-box-1"},
		"records":      {"records", "records -o json"},
		"query fields": {"query fields"},
		"watch": {
			"watch --type compute --near 52.52,13.40 --radius 300km", "watch --type storage --max-price 0.05 -o ndjson",
		},
		"resolve":            {"resolve /blackhole/services/compute/gpu/rvupte/12D3KooW.../gpu-box-1"},
		"services":           {"services", "services --watch"},
		"service status":     {"service status payment", "service status payment payment-1"},
		"service drain":      {"service drain payment payment-1"},
		"service deregister": {"service deregister payment payment-1"},
		"requirements":       {"requirements"},
		"locks":              {"locks", "locks backups/ -o json"},
		"lease grant":        {"lease grant --ttl 1m"},
		"lease keepalive":    {"lease keepalive 7587861234567890123"},
		"lease ttl":          {"lease ttl 7587861234567890123"},
		"lease revoke":       {"lease revoke 7587861234567890123"},
		"lease ls":           {"lease ls", "lease ls -o json"},
		"kv get":             {"kv get config/color", "kv get config/color --revision 12"},
		"kv put":             {"kv put config/color blue", "kv put config/color - < color.txt"},
		"kv del":             {"kv del config/color", "kv del config/ --prefix"},
		"kv ls":              {"kv ls config/"},
		"kv watch":           {"kv watch config/"},
		"group status":       {"group status"},
		"group members":      {"group members", "group members -o json"},
		"group add":          {"group add 12D3KooW..."},
		"group remove":       {"group remove 12D3KooW... --dry-run"},
		"group promote":      {"group promote 12D3KooW..."},
		"group replace":      {"group replace 12D3KooW... 12D3KooX... --dry-run"},
		"group transfer":     {"group transfer 12D3KooW..."},
		"group leave":        {"group leave --dry-run"},
		"group join":         {"group join", "group join 12D3KooW..."},
		"group resume":       {"group resume"},
		"group backup":       {"group backup /var/backups/blackholed-group"},
		"group restore":      {"group restore /var/backups/blackholed-group --data ~/peer", "group restore /var/backups/blackholed-group --data ~/peer --yes"},
		"group recover":      {"group recover --data ~/peer", "group recover --data ~/peer --yes"},
		"version":            {"version", "version -o json"},
	}
}

// addExamples completes the help of the commands below root.
func addExamples(root *cobra.Command) {
	table := examples()
	each(root, func(path string, cmd *cobra.Command) {
		if lines := table[path]; cmd.Example == "" && lines != nil {
			cmd.Example = "  " + name + " " + strings.Join(lines, "\n  "+name+" ")
		}
	})
}

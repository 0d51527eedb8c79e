package archtest

import (
	"slices"
	"strings"
)

// A room is a folder of the module, its subfolders included, and its place in
// the house. A subfolder with an entry of its own is a room of its own.
type room struct {
	path  string
	floor int

	// only, if not nil, replaces "every lower floor" by the rooms listed.
	// Nouns (see there) need not be repeated.
	only []string

	// users, if not nil, are the only rooms that may import this one.
	users []string

	// support marks a room that exists for tests: tests on every floor may
	// import it, and nothing that ships may.
	support bool
}

// floors is the house, from the roof down. A package imports only rooms on
// lower floors. Two exceptions stand here and nowhere else: a room may import
// itself (its own subfolders), and every room may import foundations.
//
// Tests may import their own floor too, and are bound by neither only nor
// users: the needs of a test do not ship.
func floors() []room {
	return slices.Concat(
		[]room{
			{path: "cmd/blackholed", floor: 16},

			{path: "internal/daemon", floor: 12, users: []string{"cmd/blackholed"}},
			{path: "internal/sim", floor: 12, support: true},
			{path: "internal/reference", floor: 15, only: []string{}},
			{path: "testnet", floor: 12, only: append(contracts(), "pkg/client", "internal/operator", "internal/platform/cities", "internal/platform/identity", "internal/coordination/coordtest/ops", "internal/platform/config", "internal/platform/strictjson", "testnet/nemesis/history")},
			{path: "testnet/nemesis/history", floor: 3, only: []string{}, users: []string{"testnet"}},
			{path: "examples", floor: 12, only: []string{"pkg/client"}},
			{path: "examples/embed", floor: 12, only: []string{"pkg/discovery"}},
			{path: "bench", floor: 13, only: append(contracts(), "testnet", "pkg/client", "internal/operator", "internal/coordination/coordtest/ops", "bench/buyer")},
			{path: "bench/buyer", floor: 12, only: []string{"internal/trade"}, users: []string{"bench"}},

			{path: "internal/frontend", floor: 11, only: append(contracts(), "internal/platform/cities", "internal/platform/jsonform", "internal/platform/access", "internal/platform/pause", "internal/platform/share", "internal/platform/special", "internal/platform/strictjson", "internal/platform/strictproto")},
			{path: "internal/operator", floor: 11, only: append(contracts(), "pkg/client", "internal/link")},
			{path: "pkg/client", floor: 10, only: append(contracts(), "internal/query", "internal/contract/coord/calls", "internal/contract/coord/attempt", "internal/link")},
			{path: "internal/link", floor: 9, only: contracts()},
			{path: "internal/trade", floor: 9, only: []string{"internal/contract/coord", "internal/platform/bounded", "internal/platform/clean", "internal/platform/condition", "internal/platform/rpc", "internal/platform/script", "internal/platform/store", "internal/trade/ledger"}, users: wiring("bench/buyer")},
			{path: "internal/trade/ledger", floor: 4, only: []string{"internal/platform/share"}, users: wiring("internal/trade")},
			{path: "pkg/discovery", floor: 11, only: []string{"internal/query", "internal/discovery", "internal/contract/discovery", "internal/platform/p2p", "internal/platform/identity"}},
		},
		commandRooms(), discoveryRooms(), coordinationRooms(), agentRooms(),
		[]room{
			{path: "internal/contract/instances", floor: 2, only: []string{"internal/platform/strictjson"}},
			{path: "internal/contract/discovery", floor: 3, only: []string{}},
			{path: "internal/contract/coord", floor: 3, only: []string{}},
			{path: "internal/contract/coord/calls", floor: 4, only: []string{"internal/contract/coord"}},
			{path: "internal/contract/coord/attempt", floor: 4, only: []string{"internal/contract/coord"}},

			{path: "internal/query", floor: 3, only: []string{"internal/platform/strictjson", "internal/platform/spelling"}},
			{path: "pkg/query", floor: 2, only: []string{"internal/platform/jsonform", "internal/platform/strictjson"}},
			{path: "internal/discovery/recordstest", floor: 2, support: true},
			{path: "pkg/records", floor: 1, only: []string{"internal/platform/jsonform", "internal/platform/strictjson"}},
			{path: "pkg/instance", floor: 1, only: []string{"internal/platform/strictjson"}},
			{path: "internal/platform/invite", floor: 2, only: []string{"internal/platform/identity"}},
			{path: "internal/platform/identity", floor: 1, only: []string{}},
			{path: "internal/platform/cities", floor: 1, only: []string{"internal/platform/spelling"}},
			{path: "internal/platform/jsonform", floor: 0},
			{path: "internal/platform/p2p", floor: 2, users: wiring("internal/discovery")},
			{path: "internal/platform/p2p/dial", floor: 1, only: []string{"internal/platform/pause"}, users: wiring("internal/platform/p2p", "internal/platform/p2p/join", "internal/platform/p2p/probe", "internal/platform/p2p/routing", "internal/coordination/transport")},
			{path: "internal/platform/p2p/proof", floor: 2, only: []string{"internal/platform/rpc", "internal/platform/bounded", "internal/platform/identity"}, users: wiring()},
			{path: "internal/platform/rpc", floor: 1, users: wiring("internal/discovery/protocol", "internal/discovery/keep", "internal/discovery/ask", "internal/discovery/keeper", "internal/coordination/transport", "internal/platform/p2p", "internal/platform/p2p/proof", "internal/trade")},
			{path: "internal/platform/access", floor: 2, users: []string{"internal/daemon", "internal/frontend"}},

			{path: "internal/platform/config", floor: 2, only: []string{"internal/platform/identity", "internal/platform/environ", "internal/platform/secret"}, users: []string{"internal/daemon", "internal/cli", "internal/cli/peer", "internal/cli/doctor", "internal/cli/remote", "internal/cli/settings", "cmd/blackholed", "testnet"}},
			{path: "internal/platform/bounded", floor: 0},
			{path: "internal/platform/clean", floor: 0},
			{path: "internal/platform/endpoint", floor: 0},
			{path: "internal/platform/condition", floor: 0, users: wiring("internal/coordination", "internal/coordination/formation", "internal/coordination/upkeep", "internal/discovery", "internal/discovery/protocol", "internal/discovery/keep", "internal/platform/p2p", "internal/trade")},
			{path: "internal/platform/disk", floor: 0},
			{path: "internal/platform/environ", floor: 0},
			{path: "internal/platform/heap", floor: 0},
			{path: "internal/platform/metrics", floor: 0},
			{path: "internal/platform/metrics/metricstest", floor: 0, support: true},
			{path: "internal/platform/clock", floor: 0, users: wiring("internal/discovery", "internal/discovery/protocol", "internal/discovery/ask", "internal/discovery/keeper")},
			{path: "internal/platform/digest", floor: 0, users: wiring("internal/discovery/protocol", "internal/discovery/keep")},
			{path: "internal/platform/pause", floor: 0},
			{path: "internal/platform/probe", floor: 2, only: []string{"internal/platform/bounded", "internal/platform/special", "pkg/records"}, users: wiring("internal/discovery", "internal/agent/health", "internal/cli", "internal/cli/offer")},
			{path: "internal/platform/script", floor: 0, users: wiring("internal/agent/health", "internal/trade")},
			{path: "internal/platform/secret", floor: 0},
			{path: "internal/platform/spelling", floor: 0},
			{path: "internal/platform/special", floor: 0, users: []string{"internal/platform/probe", "internal/frontend"}},
			{path: "internal/platform/share", floor: 0},
			{path: "internal/platform/store", floor: 1, only: []string{"internal/platform/disk"}},
			{path: "internal/platform/strictjson", floor: 0},
			{path: "internal/platform/trace", floor: 0, users: wiring("internal/discovery", "internal/discovery/protocol", "internal/agent", "internal/agent/directory", "cmd/blackholed")},
			{path: "internal/platform/trace/collector", floor: 0, support: true},
			{path: "internal/platform/strictproto", floor: 0, users: []string{"internal/platform/rpc", "internal/discovery/protocol", "internal/discovery/ask", "internal/coordination/upkeep", "internal/frontend"}},
			{path: "pkg/geo", floor: 0},
			{path: "pkg/network", floor: 0},
			{path: "pkg/fault", floor: 0},
			{path: "proto", floor: 0},
			{path: ".", floor: 0, users: []string{"cmd/blackholed"}}, // the version
			{path: "internal/archtest", floor: 0},
		},
	)
}

// The commands of a subject know the connection to the peer and what all commands share, and no other subject. Package peer shows things of
// each subject, and the root has the tree of all commands.
func commandRooms() []room {
	const root = "internal/cli/"
	base := []string{root + "term", root + "exit", root + "command", root + "file", "internal/platform/environ", "internal/platform/spelling", "internal/platform/strictjson"}
	client := slices.Concat(contracts(), base, []string{"pkg/client", "internal/operator", "internal/platform/config"})
	connected := append(slices.Clone(client), root+"remote", root+"guard", root+"settings", "internal/platform/cities", "internal/platform/identity", "internal/platform/invite", "internal/platform/disk", "internal/platform/pause")
	subjects := []string{root + "offer", root + "service", root + "coordination", root + "group", root + "doctor"}
	rooms := []room{
		{path: "internal/cli", floor: 15, only: slices.Concat(connected, subjects, []string{root + "peer", "internal/platform/probe"}), users: []string{"cmd/blackholed"}},
		{path: root + "peer", floor: 14, only: slices.Concat(connected, subjects)},
		{path: root + "remote", floor: 12, only: client},
		{path: root + "guard", floor: 12, only: client},
		{path: root + "settings", floor: 4, only: append(slices.Clone(base), "internal/platform/config")},
		{path: root + "command", floor: 3, only: base},
		{path: root + "file", floor: 2, only: base},
		{path: root + "exit", floor: 2, only: base},
		{path: root + "term", floor: 1, only: []string{}},
	}
	for _, subject := range subjects {
		rooms = append(rooms, room{path: subject, floor: 13, only: connected})
		if subject == root+"offer" {
			rooms[len(rooms)-1].only = append(slices.Clip(connected), "internal/platform/probe") // it crawls
		}
	}
	return rooms
}

// Each plane has one entrance, its root. The parts below it are open to the
// plane itself, to simulations and to measurements.

func discoveryRooms() []room {
	const root = "internal/discovery"
	parts := []string{root, root + "/keeper", root + "/ask", root + "/keep", root + "/protocol"}
	plane := wiring(parts...)
	return []room{
		{path: root, floor: 10, users: wiring()},
		{path: root + "/discoverytest", floor: 11, support: true},
		{path: root + "/keeper", floor: 9, users: wiring(root)},
		{path: "pkg/gossip", floor: 9, only: []string{}, users: plane},
		{path: root + "/ask", floor: 8, users: plane},
		{path: root + "/offers", floor: 5, only: []string{"internal/platform/store", "internal/platform/heap", "internal/platform/share", "internal/platform/strictjson"}, users: plane},
		{path: root + "/keep", floor: 6, users: plane},
		{path: root + "/keepertest", floor: 4, support: true},
		{path: root + "/protocol", floor: 5, users: plane},
		{path: root + "/index", floor: 4, only: []string{}, users: plane},
	}
}

func coordinationRooms() []room {
	const root = "internal/coordination"
	parts := slices.Clip([]string{
		"internal/contract/coord", root + "/machine", root + "/member", root + "/membership", root + "/replica", "internal/platform/pause", "internal/platform/condition",
	})
	acts := []string{root, root + "/formation", root + "/upkeep"}
	return []room{
		{path: root, floor: 9, users: wiring()},
		{path: root + "/simulation", floor: 8, support: true},
		{path: root + "/coordtest", floor: 8, support: true},
		{path: root + "/coordtest/ops", floor: 4, only: []string{"internal/contract/coord"}, users: []string{"testnet", "bench", root + "/coordtest", root + "/audit", root + "/simulation"}},
		{path: root + "/audit", floor: 7, support: true},
		{
			path: root + "/formation", floor: 8, users: wiring(root),
			only: append(parts, root+"/bootstrap", root+"/raftlog", root+"/view", "internal/platform/store", "internal/platform/strictjson"),
		},
		{path: root + "/upkeep", floor: 8, only: append(parts, "internal/platform/strictproto"), users: wiring(root)},
		{path: root + "/view", floor: 6, only: []string{"internal/contract/coord", root + "/bootstrap", root + "/leader", root + "/membership", "internal/platform/identity"}, users: wiring(root, root+"/formation")},
		{path: root + "/member", floor: 7, users: wiring(acts...)},
		{path: root + "/replica", floor: 6, users: wiring(append(acts, root+"/member")...)},
		{path: root + "/announce", floor: 6, users: wiring(root)},
		{path: root + "/bootstrap", floor: 5, only: []string{"internal/platform/store"}, users: wiring(root, root+"/announce", root+"/formation", root+"/view")},
		{path: root + "/leader", floor: 5, only: []string{}, users: wiring(root, root+"/routing", root+"/view")},
		{path: root + "/routing", floor: 6, only: []string{"internal/contract/coord", "internal/contract/coord/calls", "internal/contract/coord/attempt", root + "/leader", root + "/answer", "internal/platform/pause", "internal/platform/share"}, users: wiring(root)},
		{path: root + "/lessor", floor: 5, only: []string{"internal/contract/coord", root + "/machine", "internal/platform/heap"}, users: wiring(root + "/replica")},
		{path: root + "/machine", floor: 4, only: []string{"internal/contract/coord", "internal/platform/share"}, users: wiring(append(acts, root+"/member", root+"/replica", root+"/lessor", root+"/audit", root+"/coordtest", root+"/answer")...)},
		{path: root + "/answer", floor: 5, only: []string{"internal/contract/coord", root + "/machine"}, users: wiring(root, root+"/coordtest", root+"/routing")},
		{path: root + "/membership", floor: 4, only: []string{"internal/contract/coord"}, users: wiring(append(acts, root+"/view")...)},
		{path: root + "/raftlog", floor: 4, only: []string{"internal/platform/store"}, users: wiring(root, root+"/formation", root+"/member", root+"/replica")},
		{path: root + "/transport", floor: 4, only: []string{"internal/platform/metrics", "internal/platform/p2p/dial", "internal/platform/pause", "internal/platform/rpc", "internal/contract/coord"}, users: wiring(root)},
	}
}

func agentRooms() []room {
	const root = "internal/agent"
	return []room{
		{path: root, floor: 7, users: wiring()},
		{path: root + "/directory", floor: 6, only: []string{"internal/contract/coord", "internal/contract/instances", root + "/catalog", "internal/platform/trace"}, users: wiring(root)},
		{path: root + "/requirement", floor: 6, only: []string{"internal/contract/coord", "internal/contract/instances", "internal/platform/pause"}, users: wiring(root)},
		{path: root + "/agenttest", floor: 6, support: true},
		{path: root + "/catalog", floor: 5, only: []string{"internal/contract/instances", "internal/platform/bounded", "internal/platform/pause"}, users: wiring(root, root+"/directory")},
		{path: root + "/health", floor: 5, only: []string{"internal/contract/instances", "internal/platform/environ", "internal/platform/heap", "internal/platform/pause", "internal/platform/probe", "internal/platform/script"}, users: wiring(root)},
		{path: root + "/registry", floor: 5, only: []string{"internal/contract/instances", "internal/platform/store", "internal/platform/heap", "internal/platform/bounded", "internal/platform/share", "internal/platform/strictjson"}, users: wiring(root)},
	}
}

// wiring lists the rooms that connect parts, and more.
func wiring(more ...string) []string {
	return append([]string{"internal/daemon", "internal/sim", "pkg/discovery"}, more...)
}

// foundations are what every room may import: the error type, and the gate of text from outside, which stands on it
// alone.
func foundations() []string {
	return []string{"pkg/fault", "internal/platform/clean", "internal/platform/endpoint"}
}

// contracts are the nouns and interfaces of planes that front ends and the SDK
// speak in.
func contracts() []string {
	return []string{"internal/contract/discovery", "internal/contract/coord", "internal/contract/instances"}
}

// nouns are the rooms that name things: networks, places, records, questions and how they judge records, instances,
// errors, messages. Every higher floor may use them, a room with its own only
// list included.
func nouns() []string {
	return []string{"pkg/fault", "pkg/network", "pkg/geo", "pkg/records", "pkg/query", "internal/query", "pkg/instance", "proto"}
}

// roomOf returns the room of a folder relative to the module root. The longest
// path wins.
func roomOf(dir string) (room, bool) {
	var best room
	found := false
	for _, r := range floors() {
		if within(dir, r.path) && (!found || len(r.path) > len(best.path)) {
			best, found = r, true
		}
	}
	return best, found
}

// A fence keeps a third-party library inside the rooms built for it.
type fence struct {
	library string   // import path, everything below it included
	open    []string // parts of the library anybody may import
	rooms   []string
	reason  string
}

func fences() []fence {
	return []fence{
		{
			library: "github.com/libp2p",
			open: []string{
				"github.com/libp2p/go-libp2p/core/crypto",
				"github.com/libp2p/go-libp2p/core/peer",
				"github.com/libp2p/go-libp2p/core/record",
				"github.com/libp2p/zeroconf",
			},
			rooms:  []string{"internal/platform/p2p", "internal/platform/rpc", "internal/coordination", "internal/sim", "internal/discovery", "internal/trade", "pkg/gossip", "pkg/discovery", "examples/embed", "bench/buyer", "testnet/night/flood"},
			reason: "only the network packages know the network; the others name peers and keys and no more",
		},
		{
			library: "github.com/libp2p/zeroconf",
			rooms:   []string{"internal/frontend/dnssd"},
			reason:  "peers find each other by libp2p; only applications are announced beside it",
		},
		{
			library: "go.etcd.io/raft",
			rooms:   []string{"internal/coordination"},
			reason:  "coordination is a state machine to everybody but the group",
		},
		{
			library: "go.etcd.io/etcd",
			rooms:   []string{"internal/frontend/etcdapi"},
			reason:  "the API of etcd is one front end, over the contracts of the planes",
		},
		{
			library: "github.com/grpc-ecosystem",
			rooms:   []string{"internal/frontend/etcdapi"},
			reason:  "only the schema of etcd has options of the gateway; all JSON is of our own",
		},
		{
			library: "github.com/hashicorp",
			open:    []string{"github.com/hashicorp/golang-lru"},
			rooms:   []string{"internal/frontend/consulapi"},
			reason:  "the API of Consul is one front end, over the contracts of the planes",
		},
		{
			library: "github.com/go-json-experiment/json",
			rooms:   []string{"internal/platform/strictjson"},
			reason:  "all JSON is read by one set of rules",
		},
		{
			library: "go.opentelemetry.io",
			rooms:   []string{"internal/platform/trace"},
			reason:  "parts make spans through one small package, and the SDK links none of it",
		},
		{
			library: "github.com/cockroachdb/pebble",
			open:    []string{"github.com/cockroachdb/pebble/v2/vfs"}, // a file system: where, not how
			rooms:   []string{"internal/platform/store", "internal/coordination", "internal/daemon"},
			reason:  "only what is durable knows the database; others, the SDK above all, do without",
		},
	}
}

// planes lists the packages of each plane that the other planes never reach,
// not even through a third package. The agent plane has no contract of its own
// here: pkg/instance is a noun.
func planes() [][]string {
	return [][]string{
		{"pkg/records", "pkg/query", "internal/query", "pkg/gossip", "pkg/discovery", "internal/contract/discovery", "internal/discovery"},
		{"internal/contract/coord", "internal/coordination"},
		{"internal/agent"},
		{"internal/trade"},
	}
}

// meetings are the contracts through which one plane may use another: the
// agent plane keeps its directory in the group and announces offers.
func meetings() map[string][]string {
	return map[string][]string{"internal/agent": {"internal/contract/coord", "pkg/records"}, "internal/trade": {"internal/contract/coord", "pkg/records"}}
}

// sdk lists what the SDK may consist of: contracts, nouns, messages, foundations, the
// readers of JSON, and what finds the word that a wrong one stands for. So it contains no engine: no index, no state machine, no
// snapshot.
func sdk() []string {
	return append(slices.Concat(contracts(), nouns(), foundations()), "pkg/client", "internal/link", "internal/platform/jsonform", "internal/platform/spelling", "internal/platform/strictjson")
}

// pure are the rooms that compute and do nothing else: equal arguments give
// equal results, on every peer.
func pure() []string {
	return []string{"pkg/fault", "pkg/network", "pkg/geo", "pkg/records", "pkg/query", "internal/query", "internal/contract/coord", "internal/coordination/machine", "internal/trade/ledger"}
}

// dialing are the rooms that connect to what strangers name, and the file with the one dialer that they have.
func dialing() (rooms []string, dialer string) {
	return []string{"internal/platform/probe", "internal/platform/p2p/probe", "internal/discovery", "internal/agent/health", "internal/cli/offer"}, "internal/platform/probe/line.go"
}

// within reports whether the slash path p is root or lies below it.
func within(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}

func withinAny(p string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return within(p, root) })
}

// isPure reports whether a folder belongs to a pure room.
func isPure(dir string) bool {
	r, _ := roomOf(dir)
	return slices.Contains(pure(), r.path)
}

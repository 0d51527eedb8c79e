package archtest

import (
	"slices"
	"strings"
)

// A room is a folder of the module, its subfolders included, and its place in
// the house.
type room struct {
	path  string
	floor int

	// only, if not nil, replaces "every lower floor" by the rooms listed.
	// Nouns (see there) need not be repeated.
	only []string

	// users, if not nil, are the only rooms that may import this one.
	users []string
}

// floors is the house. A package imports only rooms on lower floors. Two
// exceptions are written here and nowhere else: a room may import itself (its
// own subfolders), and everything may import pkg/fault.
//
// Tests may import their own floor too, and are not bound by only and users:
// what a test needs does not ship.
func floors() []room {
	wiring := []string{"internal/daemon", "internal/sim", "cmd/blackholed", "bench"}
	contracts := []string{"pkg/discovery", "pkg/coord"}
	return []room{
		{path: "cmd/blackholed", floor: 8},

		{path: "internal/daemon", floor: 7, users: []string{"cmd/blackholed"}},
		{path: "internal/cli", floor: 7, only: []string{"pkg/client", "internal/platform/config"}},
		{path: "internal/sim", floor: 7, users: []string{}}, // tests only: nobody imports it
		{path: "testnet", floor: 7, only: []string{"pkg/client", "pkg/coord", "internal/platform/config"}},
		{path: "examples", floor: 7, only: []string{"pkg/client"}},
		{path: "bench", floor: 7},

		{path: "internal/frontend", floor: 6, only: append(contracts, "internal/platform/access")},
		{path: "pkg/client", floor: 6, only: contracts},

		{path: "internal/agent", floor: 5, only: []string{"internal/platform/store"}},
		{path: "internal/agent/directory", floor: 5, only: []string{"pkg/coord", "internal/agent/catalog"}, users: wiring},
		{path: "internal/agent/requirement", floor: 5, only: []string{"pkg/coord"}, users: wiring},
		{path: "pkg/discovery", floor: 5, only: []string{"internal/discovery/registry", "internal/discovery/index"}},
		{path: "internal/discovery", floor: 4, users: append(wiring, "pkg/discovery")},
		{path: "pkg/gossip", floor: 4, users: wiring},
		{path: "internal/coordination", floor: 4, only: []string{"pkg/coord"}, users: wiring},
		{path: "internal/platform/p2p", floor: 4, users: wiring},

		{path: "pkg/query", floor: 2},
		{path: "pkg/coord", floor: 2},

		{path: "pkg/records", floor: 1},
		{path: "pkg/instance", floor: 1},
		{path: "internal/platform/access", floor: 1, users: []string{"internal/daemon", "internal/frontend"}},

		{path: "pkg/geo", floor: 0},
		{path: "pkg/fault", floor: 0},
		{path: "proto", floor: 0},
		{path: "internal/platform/config", floor: 0, users: []string{"internal/daemon", "internal/cli", "cmd/blackholed", "testnet"}},
		{path: "internal/platform/metrics", floor: 0},
		{path: "internal/platform/store", floor: 0},
		{path: "internal/archtest", floor: 0},
	}
}

// nouns are the rooms that name what the project talks about. Every higher
// floor may use them, a room with its own only list included.
func nouns() []string {
	return []string{"pkg/fault", "pkg/geo", "pkg/records", "pkg/query", "pkg/instance", "proto"}
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
			},
			rooms:  []string{"internal/platform/p2p", "internal/coordination", "internal/sim", "internal/discovery/keeper", "pkg/gossip"},
			reason: "only the network packages know the network; the others name peers and keys and no more",
		},
		{
			library: "go.etcd.io/raft",
			rooms:   []string{"internal/coordination"},
			reason:  "coordination is a state machine to everybody but the group",
		},
		{
			library: "github.com/cockroachdb/pebble",
			open:    []string{"github.com/cockroachdb/pebble/v2/vfs"}, // a file system: where, not how
			rooms:   []string{"internal/platform/store", "internal/coordination", "internal/daemon"},
			reason:  "only what is durable knows the database; others, the SDK above all, do without",
		},
	}
}

// planes are the two halves that never meet, not even through a third package.
func planes() (discovery, coordination []string) {
	return []string{"pkg/records", "pkg/query", "pkg/gossip", "pkg/discovery", "internal/discovery"},
		[]string{"pkg/coord", "internal/coordination"}
}

// pure are the rooms that compute and do nothing else: equal arguments give
// equal results, on every peer.
func pure() []string {
	return []string{"pkg/fault", "pkg/geo", "pkg/records", "pkg/query", "pkg/coord"}
}

// vagueNames say nothing about what a package is for and so collect anything.
func vagueNames() []string {
	return []string{"util", "utils", "common", "helper", "helpers", "type", "types", "core", "manager", "managers", "misc", "lib"}
}

// within reports whether the slash path p is root or lies below it.
func within(p, root string) bool {
	return p == root || strings.HasPrefix(p, root+"/")
}

func withinAny(p string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return within(p, root) })
}

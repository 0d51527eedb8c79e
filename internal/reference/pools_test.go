package reference_test

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/platform/config"
)

// pool is a row of the table of pools.
type pool struct {
	total   string   // places
	share   string   // of one caller, owner or peer
	reserve string   // for whom a part is kept; empty: nobody
	setting string   // that changes it; empty: none
	tests   []string // folder.TestName
}

// write writes an element of a list.
func (r pool) write(b *strings.Builder, lead string) {
	lead = "- " + lead + r.total
	if r.share != "" && r.share != rule {
		lead += ". Share: " + r.share
	}
	if r.share == "" {
		lead += ", not shared"
	}
	if r.reserve != "" {
		lead += ". Reserve: " + r.reserve
	}
	if r.setting != "" {
		lead += " (" + code(r.setting) + ")"
	}
	b.WriteString(lead + "\n")
}

const rule = "rule"

// places are the pools of a peer, by name. For peers that call the members of the group the name begins with "peer_" in metrics and logs.
func places() map[string]pool {
	const known = "known peers"
	const front, access = "internal/frontend/", "internal/platform/access."
	return map[string]pool{
		"connections": {"a quarter of the descriptors, and one for each 256 KiB of the memory limit: 64 to 16,384", rule, "64 beside them for probes of health", "", []string{
			access + "TestConnectionsAreBounded", "internal/daemon.TestCallersAreBounded"}},
		"answer_bytes": {"a sixteenth of the memory limit, 8 to 64 MiB, of HTTP, gRPC and clients of etcd and Consul together; 16 KiB of an answer are free", rule, known, "", []string{
			access + "TestBytes", access + "TestKeptPlaces", front + "httpapi.TestSilentReaders", front + "grpcapi.TestSilentReaders",
			front + "etcdapi.TestAnswersAreBounded", front + "consulapi.TestBounds", front + "consulapi.TestSilentReaders", front + "consulapi.TestRoomBeforeReading"}},
		"watch_bytes": {"as of `answer_bytes`, of clients of etcd: 1 KiB and the length of key and range for each watch, 16 KiB for each wait for a lock or election", rule, "", "", []string{
			front + "etcdapi.TestManyWatches"}},
		"watches": {"1,024 of each plane and front but etcd's, 4,096 of peers, 4,096 of instances", rule, known, "", []string{access + "TestKeptPlaces",
			front + "httpapi.TestWatchesAreBounded", front + "grpcapi.TestWatchesAreBounded", front + "consulapi.TestBounds", access + "TestGreedyClients"}},
		"waits": {"1,024 of HTTP, 8,192 of gRPC, 4,096 of a peer at the group", rule, known + "; commands of the peer itself have 64 places of their own", "", []string{access + "TestKeptPlaces",
			front + "httpapi.TestLockWaitsAreBounded", front + "grpcapi.TestWaitsAreBounded", "internal/contract/coord/attempt.TestOwnersTakeTurns", "internal/contract/coord/attempt.TestOwnLane"}},
		"calls": {"one for each 128 KiB of the memory limit, 2,048 to 32,768, of gRPC and clients of etcd together, on streams too", rule, known, "", []string{front + "grpcapi.TestCallsHavePlaces",
			front + "etcdapi.TestRequestsAreBounded", access + "TestKeptPlaces"}},
		"begun_calls": {"4,096 of gRPC and as many of clients of etcd that have no place of `calls` yet, as their requests have not arrived; one that ends without a request keeps its place for 2 s", rule + "; 4 of each connection whose caller has no name beside it", "", "", []string{
			front + "grpcapi.TestBegunCalls", front + "budget.TestBegun", front + "budget.TestCallsWithoutRequests"}},
		"request_bytes": {"as of `answer_bytes`; 16 KiB of a request are free", rule, known, "", []string{
			front + "httpapi.TestHalfBodies", front + "grpcapi.TestRequestsAtWork", front + "etcdapi.TestRequestsAreBounded", front + "consulapi.TestBounds", access + "TestKeptPlaces"}},
		"arriving_bytes": {"as many of each of these fronts, of messages over gRPC until they have arrived", rule + ", of an address or user", known, "", []string{
			front + "grpcapi.TestHalfRequests", front + "etcdapi.TestRequestsAreBounded"}},
		"backups":  {"2", rule, "", "", []string{front + "httpapi.TestBackup"}},
		"viewers":  {"256", rule, "", "", []string{front + "httpapi.TestViewersAreBounded"}},
		"sessions": {"1,024", "16: the oldest ends", "", "", []string{access + "TestSessionsAreBounded"}},
		"instances": {setting("agent.limits.instances"), rule + "; who owns those of callers without a name is forgotten at a restart", "", "agent.limits.instances", []string{
			"internal/agent/registry.TestRegisterRefuses", "internal/agent/registry.TestInstancesAreShared"}},
		"checks": {"as of instances: one each", "", "", "agent.limits.instances", []string{"internal/agent/health.TestBounds"}},
		"offers": {"10 ids for each of `discovery.limits.services_per_provider`, withdrawn ones until their records lapse", rule, "a quarter for operators", "discovery.limits.services_per_provider", []string{
			"internal/discovery/offers.TestWithdrawnOffersAreShared"}},
		"requests":    {"16,384 at the leader", "", "", "", []string{"internal/coordination/replica.TestBoundsWhatWaits"}},
		"uncommitted": {"64 MiB at the leader", "", "", "", []string{"internal/coordination/replica.TestBoundsBytesThatWait"}},
	}
}

func setting(key string) string {
	defaults := config.Default()
	return defaults.Value(key)
}

// groupPools are the pools of the group, by name. In metrics and logs their names begin with "group_".
func groupPools() map[string]pool {
	const machine, limits = "internal/coordination/machine.", "coordination.limits."
	l := coord.DefaultLimits()
	all := []string{machine + "TestGreedyOwners", "internal/coordination.TestGreedyCallers", machine + "TestCallersWithoutNamesShare"}
	kept := fmt.Sprintf("%d %%", l.Reserved)
	return map[string]pool{
		"leases": {number(l.Leases), rule + ", at most " + number(l.PerOwner.Leases), kept + " for peers, " + kept + " for applications", limits + "leases", all},
		"clients": {number(l.Clients) + " identities", number(l.PerOwner.Clients) + "; where none is left the owner with the most loses its idlest",
			kept + " for peers", limits + "clients", []string{machine + "TestClientsMakeRoom", all[0], all[1]}},
		"keys": {number(l.Keys), rule + ", at most " + number(l.PerOwner.UnleasedKeys) + " without a lease", kept + " for locks and the directory, half of it for the directory",
			limits + "keys", []string{machine + "TestReservedRoom", all[0], all[1]}},
		"bytes": {number(l.Bytes>>20) + " MiB", rule + fmt.Sprintf(", at most %d MiB under leases and %d MiB without", l.PerOwner.Bytes>>20, l.PerOwner.UnleasedBytes>>20),
			"as of keys", limits + "bytes", []string{machine + "TestReservedRoom", all[0]}},
		"claims":       {"as of keys", number(l.PerOwner.Claims), "as of keys", limits + "claims_per_owner", []string{machine + "TestQuotas", all[0], all[2]}},
		"queue":        {number(l.Queue) + " claims on one lock", rule, "", limits + "queue", []string{machine + "TestQueueIsShared"}},
		"requirements": {number(uint32(requirements.Max)), rule, "", "", []string{machine + "TestRequirements", all[0]}},
	}
}

// streams are the bounds of streams of peers, by file and line of code. A stream above one is reset or gets the answer busy.
func streams() map[string]pool {
	const known = "a quarter for members"
	return map[string]pool{
		"internal/coordination/transport/transport.go handshakes": {"64 handshakes of members", "8 of a peer; " + rule + " of an address prefix", known, "", []string{
			"internal/coordination/transport.TestFloodOfGreetings"}},
		"internal/coordination/transport/calls.go limiter": {"8,192 connections of calls", "4 of a peer; " + rule + " of an address prefix", known, "", []string{
			"internal/coordination/transport.TestListenerBounds"}},
		"internal/platform/rpc/server.go limiter": {"streams of a protocol of questions: a number each", "a number of a peer; " + rule + " of an address prefix",
			"a quarter for members, in the group's protocol", "", []string{"internal/coordination/transport.TestFlood", "internal/discovery/keeper.TestStreamsPerPeer"}},
	}
}

func number[T uint32 | uint64](n T) string {
	text := strconv.FormatUint(uint64(n), 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// writePools writes the table of pools. A pool in the code without a row fails, and so do a row without code, a test and a setting
// that do not exist.
func writePools(t *testing.T, b *strings.Builder, tests limitTests) {
	t.Helper()
	b.WriteString("\n## Pools\n\nA pool has places that callers, owners or peers share. The **rule**, where nothing else is said: each may have up to three times as many as are free, so five that take all they can " +
		"leave some.\nWhoever gets none is refused with [`pool_exhausted`](../operations.md#pool_exhausted-callers-find-no-place) and the field `pool.NAME`, and with `pool.NAME.share` if the pool has more for others.\n" +
		"Reserve **known peers**: a quarter of the places for peers is for those that have the key or are listed.\n")
	found := poolsOfCode(t)
	section := func(title string, rows map[string]pool, in map[string]bool) {
		require.Equal(t, slices.Sorted(maps.Keys(in)), slices.Sorted(maps.Keys(rows)), "rows of the table %s, and pools in the code", title)
		b.WriteString("\n" + title + ":\n")
		b.WriteString("\n")
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			r := rows[name]
			require.NotEmpty(t, r.tests)
			for _, test := range r.tests {
				require.True(t, tests.all[test], "%s is a test of the pool %s, and does not exist", test, name)
			}
			if r.setting != "" {
				require.True(t, slices.ContainsFunc(config.Settings(), func(s config.Setting) bool { return s.Key == r.setting }), r.setting)
			}
			r.write(b, code(name)+": ")
		}
	}
	section("Of a peer", places(), found.places)
	section("Of the group, with the reserves that `coordination.limits.reserved_percent` sets. Callers without a name at one peer and front have the share of "+
		"one owner; of it each, by its user on this machine or else its address, has at most what the rule gives", groupPools(), found.group)
	require.Equal(t, slices.Sorted(maps.Keys(found.streams)), slices.Sorted(maps.Keys(streams())), "bounds of streams")
	b.WriteString("\nOf streams from other peers; one above a bound is reset, or answered `busy`:\n")
	b.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(streams())) {
		r := streams()[name]
		require.NotEmpty(t, r.tests)
		for _, test := range r.tests {
			require.True(t, tests.all[test], "%s does not exist", test)
		}
		r.write(b, "")
	}
}

// codePools are the names of pools in the code.
type codePools struct{ places, group, streams map[string]bool }

// poolsOfCode finds each call that makes or refuses a pool. A call without a literal name passes on one, in the files listed.
func poolsOfCode(t *testing.T) codePools {
	t.Helper()
	p := codePools{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	made := regexp.MustCompile(`(?:access\.NewPool\(|\.Twin\(|fault\.Exhausted\([^,]+, |&Connections\{pool: NewPool\()("\w+")?`)
	ofGroup := regexp.MustCompile(`\b(?:quota|take|poolOf)\((?:m, )?"(\w+)"`)
	limited := regexp.MustCompile(`(\w+): +(?:rpc\.)?NewLimiter\(\w+\.`)
	passing := []string{"internal/platform/access/pool.go", "internal/coordination/machine/room.go"}
	for _, top := range []string{"pkg", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := filepath.Rel(root, path)
			file = filepath.ToSlash(file)
			text := source(t, file)
			for _, call := range made.FindAllStringSubmatch(text, -1) {
				name, _ := strconv.Unquote(call[1])
				require.True(t, name != "" || slices.Contains(passing, file), "%s: the pool has no literal name: %s", file, call[0])
				if name != "" {
					p.places[name] = true
				}
			}
			if strings.HasPrefix(file, "internal/coordination/machine/") {
				for _, call := range ofGroup.FindAllStringSubmatch(text, -1) {
					p.group[call[1]] = true
				}
			}
			if !strings.HasPrefix(file, "internal/platform/access/") {
				for _, call := range limited.FindAllStringSubmatch(text, -1) {
					p.streams[file+" "+call[1]] = true
				}
			}
			if file != "pkg/fault/fault.go" {
				require.NotRegexp(t, `(?:Kind: fault|New\([^,]*, fault|Refused\(fault)\.PoolExhausted`, text, "%s: use fault.Exhausted", file)
			}
			return err
		}))
	}
	return p
}

package nemesis

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/client"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// TestEvent: deletions and claims have what the checks need.
func TestEvent(t *testing.T) {
	entry, err := proto.Marshal(&coordv1.LockEntry{Mode: apiv1.ShareMode(coord.Permit), Permits: 2, Metadata: []byte("17"), Holder: "peer"})
	require.NoError(t, err)
	claim := &client.KeyValue{Key: permitted + "/2a", Value: entry, CreateRevision: 7, ModRevision: 7, Version: 1, Lease: 42}
	want := history.Event{
		Revision: 7, Key: permitted + "/2a", Value: "17", Create: 7, Version: 1, Lock: permitted, Mode: history.Permit,
		Permits: 2, Lease: 42, Seen: time.Second,
	}
	require.Equal(t, want, event(client.KeyEvent{Revision: 7, Key: claim.Key, KV: claim}, time.Second))
	want.Revision, want.Deleted, want.Replaces = 9, true, 7
	require.Equal(t, want, event(client.KeyEvent{Revision: 9, Key: claim.Key, Prev: claim}, time.Second))

	plain := &client.KeyValue{Key: registers + "/1/0", Value: []byte("v3"), CreateRevision: 2, ModRevision: 5, Version: 2}
	require.Equal(t, history.Event{Revision: 5, Key: plain.Key, Value: "v3", Create: 2, Version: 2, Seen: time.Second},
		event(client.KeyEvent{Revision: 5, Key: plain.Key, KV: plain}, time.Second))
}

func TestFaults(t *testing.T) {
	names := make(map[string]bool)
	for _, k := range kinds() {
		require.Positive(t, k.weight, k.name)
		require.False(t, names[k.name], k.name)
		names[k.name] = true
	}
	require.Len(t, Faults(), len(names))
	r := newFaults(&run{Config: Config{Seed: 1}})
	for _, k := range r.chosen() {
		require.NotContains(t, []need{hosts, disks}, k.needs, k.name)
	}
	r.Faults = Faults("kill")
	require.Len(t, r.chosen(), len(Faults("kill")))
	r.Faults = Faults("cut")
	require.Error(t, r.disturb(t.Context(), time.Hour), "nothing could happen")
}

// TestKeep: what is violated is told, and leaves everything that is needed to understand it.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	r := &run{Config: Config{Dir: dir, Seed: 3}, recorder: newRecorder()}
	r.report = newReport(r.Config)
	r.end(r.begin(history.Op{Kind: history.Read, Object: "k", Value: "never written"}), history.OK, nil)
	r.violated("V1", "nobody serves")
	h := history.History{Ops: r.operations()}
	results := history.Check(h, time.Now, time.Minute)
	r.report.conclude(h, append(results, history.Result{Rule: "X, V", Violations: r.found()}))
	require.NoError(t, r.keep())
	require.Equal(t, dir, r.report.Kept)
	for _, name := range []string{"operations.jsonl", "events.jsonl", "report.json"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	text, err := os.ReadFile(filepath.Join(dir, "operations.jsonl"))
	require.NoError(t, err)
	var o history.Op
	require.NoError(t, json.Unmarshal(text, &o))
	require.Equal(t, h.Ops[0], o)

	var out bytes.Buffer
	require.NoError(t, r.report.Show(&out))
	require.Contains(t, out.String(), "VIOLATION H1: k: no order explains")
	require.Contains(t, out.String(), "VIOLATION V1: nobody serves")
	require.Contains(t, out.String(), "2 violations\n")
	require.Contains(t, out.String(), dir)
}

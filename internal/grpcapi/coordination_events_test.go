package grpcapi

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/coord"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Whatever others were sent before, everybody is sent the events of its own batch.
func TestEventsAreSharedWhenTheyAreTheSame(t *testing.T) {
	kept := new(encodings)
	rapid.Check(t, func(t *rapid.T) {
		var past []coord.Event
		for i := range 2 * keptBatches {
			past = append(past, change(coord.Revision(1+i/2), fmt.Sprint("k", i%3), rapid.IntRange(0, 3).Draw(t, "kind")))
		}
		for range 50 {
			from := rapid.IntRange(0, len(past)-1).Draw(t, "from")
			batch := slices.Clone(past[from:rapid.IntRange(from+1, len(past)).Draw(t, "to")])
			if rapid.Bool().Draw(t, "without former versions") {
				for i := range batch {
					batch[i].Prev = nil
				}
			}
			if key := rapid.SampledFrom([]string{"", "k0", "k1"}).Draw(t, "key"); key != "" {
				batch = slices.DeleteFunc(batch, func(e coord.Event) bool { return e.Key != key })
			}
			sent := &api.WatchKeysResponse{WatchId: 7, NextRevision: 9, Created: true}
			want := proto.Clone(sent).(*api.WatchKeysResponse)
			want.Events = convert(batch, fromKeyEvent)
			kept.put(sent, batch)
			clear(batch) // it is its owner's
			wire, err := proto.Marshal(sent)
			require.NoError(t, err)
			got := new(api.WatchKeysResponse)
			require.NoError(t, proto.Unmarshal(wire, got))
			require.True(t, proto.Equal(want, got), "%v, not %v", got, want)
		}
	})
}

func change(revision coord.Revision, key string, kind int) coord.Event {
	e := coord.Event{Revision: revision, Key: key}
	if kind&1 != 0 {
		e.KV = &coord.KeyValue{Key: key, Value: fmt.Append(nil, revision), ModRevision: revision, Version: 2}
	}
	if kind&2 != 0 {
		e.Prev = &coord.KeyValue{Key: key, ModRevision: revision - 1, Version: 1}
	}
	return e
}

func TestLargeBatchesAreNotKept(t *testing.T) {
	kept := new(encodings)
	large := change(5, "k", 1)
	large.KV.Value = make([]byte, keptBytes)
	kept.put(new(api.WatchKeysResponse), []coord.Event{large})
	for i := range kept {
		require.Nil(t, kept[i].Load())
	}
}

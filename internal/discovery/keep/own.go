package keep

import (
	"context"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Refetch asks two keepers of this peer's own cell for records that own lacks or has in an older
// version, and puts them into the index. A provider does so before it replaces its own records: the
// others come from another machine with the same key. It returns after Limits.Ask at the latest, and
// reports whether a keeper answered.
func (y *Syncer) Refetch(ctx context.Context, own []*records.Record) (answered bool) {
	ctx, end, err := y.Begin(ctx, "refetch", y.Ask)
	if err != nil {
		return false
	}
	defer func() { end(err) }()
	set, err := y.Closest.Keepers(ctx, records.ProviderCell(y.Self))
	if err != nil {
		return false
	}
	known := make(map[digest.ID]digest.Version, len(own))
	for _, r := range own {
		e := protocol.EntryOf(r, r.Name().Provider.String())
		known[e.ID] = e.Version
	}
	var others []peer.ID
	for _, id := range y.client.Rank(set.Nearest(y.Self)) {
		if id != y.Self && len(others) < protocol.AskedAtOnce {
			others = append(others, id)
		}
	}
	var answers atomic.Int64
	protocol.Bounded(protocol.AskedAtOnce, len(others), func(i int) {
		if err := y.refetchFrom(ctx, others[i], known); err != nil {
			y.Logger.Debug("a keeper did not list the own records", "peer", others[i], "error", err)
			return
		}
		answers.Add(1)
	})
	return answers.Load() > 0
}

// refetchFrom compares the own cell with a keeper's.
func (y *Syncer) refetchFrom(ctx context.Context, id peer.ID, known map[digest.ID]digest.Version) error {
	cell := &pb.SyncCell{Cell: records.ProviderCell(y.Self).String()}
	resp, _, err := y.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Sync{Sync: &pb.SyncRequest{Cells: []*pb.SyncCell{cell}}}})
	if err != nil {
		return err
	}
	entries, err := digest.Parse(resp.GetSync().GetEntries())
	if err != nil {
		return protocol.Breach("malformed entries: %w", err)
	}
	var ids []byte
	for _, e := range entries {
		if mine, ok := known[e.ID]; (!ok || e.Version.Newer(mine)) && len(ids) < protocol.PullRecords*digest.IDSize {
			ids = append(ids, e.ID[:]...)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	resp, _, err = y.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Pull{Pull: &pb.PullRequest{Ids: ids}}})
	if err != nil {
		return err
	}
	return y.takeOwn(resp.GetPull().GetEnvelopes())
}

// takeOwn puts records with this peer's key into the index, which keeps the newest versions.
func (y *Syncer) takeOwn(envelopes [][]byte) error {
	for _, envelope := range envelopes {
		r, left, err := protocol.Receive(y.Verifier, envelope, y.Now())
		switch {
		case err != nil:
			return err
		case left != nil:
			y.CountLeft(left)
		case r.Name().Provider != y.Self:
			return protocol.Breach("record %s of another provider", r.Name())
		default:
			_, _ = y.intake.Put(r)
		}
	}
	return nil
}

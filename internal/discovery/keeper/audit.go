package keeper

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	auditEvery = time.Minute
	mostAudits = 8 // of one turn: as many as this peer has offers
)

// auditAll has other peers audit the keepers of this peer's records, at times that nobody can foresee.
func (k *Keeper) auditAll(ctx context.Context) {
	for pause.For(ctx, auditEvery/2+time.Duration(k.Draw(int(auditEvery)))) {
		own := slices.DeleteFunc(k.Index.OfProvider(k.Self), func(r *records.Record) bool { return r.Name().IsManifest() })
		for range min(len(own), mostAudits) {
			i := k.Draw(len(own))
			k.auditOne(ctx, own[i])
			own = slices.Delete(own, i, i+1)
		}
	}
}

// auditOne has a peer that is drawn at random audit the keepers of one cell of a record.
func (k *Keeper) auditOne(ctx context.Context, r *records.Record) {
	cell, held := k.Receipts(r, wire.MaxHeld)
	near := k.Router.Nearby(strconv.Itoa(k.Draw(1<<30)), route.Network)
	near = slices.DeleteFunc(near, func(id peer.ID) bool { return id == k.Self })
	if len(held) > 0 && len(near) > 0 {
		k.omissions.Audit(ctx, near[k.Draw(len(near))], r, cell, held)
	}
}

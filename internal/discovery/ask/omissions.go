package ask

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/internal/discovery/evidence"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	distrustFor  = time.Hour // a keeper with a proven omission is asked last
	maxOmissions = 64        // keepers with a proven omission that this peer remembers
	toldAtOnce   = 2         // omissions in the answer to an exchange of findings
	judgedAtOnce = 8         // omissions and audits under way
	judgedFor    = 2         // of them for one peer

	// An audit or an omission costs its sender one request and this peer many. A provider has up to 8 audits in a turn of a minute.
	costlyRate  = rate.Limit(1) // a second, of an address prefix
	costlyBurst = 32
	maxPrefixes = 1024 // with such a quota
)

// Omissions tells other peers which keeper hides a record that it holds, and hears it from them. It is safe for concurrent use.
type Omissions struct {
	*wire.Env
	client  *wire.Client
	asker   questioner
	allow   func(wire.Source) error // takes a request from the quota of its sender
	judging wire.PeerLimit
	costly  *bounded.Buckets[netip.Prefix]

	mu     sync.Mutex // guards proven
	proven *simplelru.LRU[peer.ID, *evidence.Omission]
}

// questioner puts questions about one record.
type questioner interface {
	// Probe puts an ordinary question about a cell of a record to one keeper.
	Probe(ctx context.Context, id peer.ID, r *records.Record, c records.CellKey) (*pb.QueryRequest, *pb.QueryResponse, error)
	// Newest returns the newest version of a record that most keepers of its provider's cell know; nil for none.
	Newest(ctx context.Context, n records.Name) (*records.Record, error)
}

// NewOmissions returns an Omissions that puts its questions by way of asker.
func NewOmissions(c *wire.Client, asker questioner, allow func(wire.Source) error) *Omissions {
	return &Omissions{
		Env: c.Env, client: c, asker: asker, allow: allow, judging: wire.PeerLimit{Total: judgedAtOnce, PerPeer: judgedFor},
		costly: bounded.NewBuckets[netip.Prefix](maxPrefixes, costlyRate, costlyBurst),
		proven: bounded.Map[peer.ID, *evidence.Omission](maxOmissions, nil),
	}
}

// Audit has another peer put a question to keepers that hold an own record: they would answer this peer truly. The
// honest keepers among them hear who hides it.
func (o *Omissions) Audit(ctx context.Context, by peer.ID, r *records.Record, cell string, held []*pb.Omission) {
	ctx, end, err := o.Begin(ctx, "audit", resolveTimeout)
	if err != nil {
		return
	}
	defer func() { end(err) }()
	audit := &pb.Audit{Cell: cell}
	for i, h := range held {
		h = &pb.Omission{Keeper: h.Keeper, Receipt: h.Receipt, Path: h.Path}
		if i == 0 {
			h.Envelope = r.Envelope()
		}
		audit.Held = append(audit.Held, h)
	}
	resp, _, err := o.client.Call(ctx, by, &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Audit: audit}}})
	for _, m := range resp.GetFindings().GetOmissions() {
		x, err := evidence.Open(o.Network, m, o.Verifier, o.Now())
		if err != nil || x.Record.Digest() != r.Digest() || !o.judge(ctx, x) {
			continue
		}
		wire.Bounded(len(held), len(held), func(i int) {
			if to := peer.ID(held[i].Keeper); to != x.Keeper && to != o.Self {
				_, _, _ = o.client.Call(ctx, to, &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Omission: m}}})
			}
		})
	}
}

// serve answers the part of a FINDINGS request about omissions.
func (o *Omissions) serve(ctx context.Context, from wire.Source, req *pb.FindingsRequest, resp *pb.FindingsResponse) error {
	if req.Audit == nil && req.Omission == nil {
		resp.Omissions = o.told(toldAtOnce)
		return nil
	}
	if o.allow(from) != nil || !o.judging.Enter(from.Peer) {
		return fault.New("", fault.LimitReached, "too many omissions from this peer or its network: try again later")
	}
	defer o.judging.Leave(from.Peer)
	if req.Audit != nil {
		err := o.allowCostly(from)
		if err == nil {
			resp.Omissions, err = o.serveAudit(ctx, from, req.Audit)
		}
		return err
	}
	x, err := evidence.Open(o.Network, req.Omission, o.Verifier, o.Now())
	if err != nil {
		return err
	}
	if latest, ok := o.Index.Latest(x.Record.Name()); ok && x.Refuted(latest) {
		resp.Newer = latest.Envelope()
	} else if err = o.allowCostly(from); err == nil {
		o.judge(ctx, x)
	}
	return err
}

// allowCostly takes a request that has this peer ask others from the quota of its sender.
func (o *Omissions) allowCostly(from wire.Source) error {
	if from.Exempt || o.costly.Of(from.Prefix).AllowN(o.Now(), 1) {
		return nil
	}
	return fault.New("", fault.LimitReached, "too many audits and omissions from network %s: try again later", from.Prefix)
}

// serveAudit puts a question to keepers for the provider of a record.
func (o *Omissions) serveAudit(ctx context.Context, from wire.Source, a *pb.Audit) ([]*pb.Omission, error) {
	if n := len(a.Held); n < 1 || n > wire.MaxHeld {
		return nil, fault.Invalidf("held", n, "must be 1 to %d receipts", wire.MaxHeld)
	}
	r, err := o.Verifier.Open(a.Held[0].Envelope, o.Now())
	if err != nil {
		return nil, err
	}
	if r.Name().Provider != from.Peer {
		return nil, fault.New("", fault.Forbidden, "a peer asks for audits of its own records")
	}
	c, err := records.ParseCellKey(a.Cell)
	if err != nil || !r.In(c) {
		return nil, fault.Invalidf("cell", a.Cell, "must be a cell of the record")
	}
	found := make([]*pb.Omission, len(a.Held))
	wire.Bounded(len(a.Held), len(a.Held), func(i int) {
		h := a.Held[i]
		id := peer.ID(h.Keeper)
		if id == o.Self || evidence.Covers(o.Network, h, r) != nil {
			return
		}
		req, resp, err := o.asker.Probe(ctx, id, r, c)
		if err != nil {
			return
		}
		m, err := evidence.Complete(h, r.Envelope(), req, resp.GetSigned())
		if err != nil {
			return
		}
		if x, err := evidence.Open(o.Network, m, o.Verifier, o.Now()); err == nil && o.judge(ctx, x) {
			found[i] = m
		}
	})
	return slices.DeleteFunc(found, func(m *pb.Omission) bool { return m == nil }), nil
}

// hear judges the omissions in an answer to an exchange, in the background.
func (o *Omissions) hear(from peer.ID, list []*pb.Omission) {
	for _, m := range list[:min(len(list), toldAtOnce)] {
		if o.Known(peer.ID(m.GetKeeper())) || !o.judging.Enter(from) {
			continue
		}
		if !o.Go(func(ctx context.Context) {
			defer o.judging.Leave(from)
			ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
			defer cancel()
			if x, err := evidence.Open(o.Network, m, o.Verifier, o.Now()); err == nil {
				o.judge(ctx, x)
			}
		}) {
			o.judging.Leave(from)
		}
	}
}

// judge reports whether this peer believes an omission. It asks the accused for a newer version of the record, which may
// be the only one with it, and most keepers of the provider's cell, because the accused may be silent or have restarted. Then the accused is asked last for a while.
func (o *Omissions) judge(ctx context.Context, x *evidence.Omission) bool {
	latest, _ := o.Index.Latest(x.Record.Name())
	if x.Refuted(latest) || x.Keeper == o.Self {
		return false
	}
	if o.Known(x.Keeper) {
		return true
	}
	resp, _, err := o.client.Call(ctx, x.Keeper, &pb.Request{Op: &pb.Request_Findings{Findings: &pb.FindingsRequest{Omission: x.Message}}})
	if err == nil && x.Refuted(o.opened(resp.GetFindings().GetNewer())) {
		return false
	}
	if latest, err = o.asker.Newest(ctx, x.Record.Name()); err != nil || x.Refuted(latest) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.knownLocked(x.Keeper) {
		o.proven.Add(x.Keeper, x)
		o.client.Distrust(x.Keeper, "omission", distrustFor)
		o.Logger.Warn("a keeper hides a record that it holds, as others can verify: it is asked last for a while",
			"peer", x.Keeper, "record", x.Record.Name(), "at", x.At)
	}
	return true
}

// opened verifies a version of a record that may have expired.
func (o *Omissions) opened(envelope []byte) *records.Record {
	r, err := o.Verifier.Open(envelope, o.Now())
	if wire.Untimely(err) {
		if end, ok := expiryIn(err); ok {
			r, _ = o.Verifier.Open(envelope, end.Add(-time.Nanosecond))
		}
	}
	return r
}

// expiryIn returns the expiry of a record that was refused because of it.
func expiryIn(err error) (end time.Time, ok bool) {
	if fault.FieldOf(err) == "expires_at" {
		end, ok = fault.ValueOf(err).(time.Time)
	}
	return end, ok
}

// Known reports whether an omission of a keeper is proven, for so long that the keeper is still asked last.
func (o *Omissions) Known(id peer.ID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.knownLocked(id)
}

func (o *Omissions) knownLocked(id peer.ID) bool {
	x, ok := o.proven.Peek(id)
	return ok && o.Now().Sub(x.At) < distrustFor
}

// told returns the latest omissions that this peer believes.
func (o *Omissions) told(most int) (list []*pb.Omission) {
	o.mu.Lock()
	defer o.mu.Unlock()
	keys := o.proven.Keys() // the oldest first
	slices.Reverse(keys)
	for _, id := range keys {
		if len(list) < most && o.knownLocked(id) {
			x, _ := o.proven.Peek(id)
			list = append(list, x.Message)
		}
	}
	return list
}

// Probe puts a question to one keeper that it cannot tell from an ordinary one: near the record, or in a random order.
func (a *Asker) Probe(ctx context.Context, id peer.ID, r *records.Record, c records.CellKey) (*pb.QueryRequest, *pb.QueryResponse, error) {
	q := query.Query{Type: r.Type(), Sort: query.SortRandom, Seed: uint64(a.Draw(math.MaxInt32)) + 1}
	if c.OfProvider() {
		q.ProviderID = c.Provider.String()
	} else if c.Subtype != records.AnySubtype {
		q.Subtype = c.Subtype
	}
	if at, ok := r.Facts().Place(); ok && !c.OfProvider() && c.Cell != geo.Global {
		q.Near, q.Sort, q.Seed = a.around(at, c.Cell), "", 0
	}
	plan, err := query.Compile(q, query.Defaults{})
	if err != nil {
		return nil, nil, fmt.Errorf("the question of an audit is malformed: %w", err)
	}
	asked := cellQuery{plan: plan, cells: []records.CellKey{c}, worst: math.Inf(1)}
	req := requestOf(asked)
	ctx, end, err := a.Begin(ctx, "ask", a.Limits.Ask)
	if err != nil {
		return nil, nil, err
	}
	resp, _, err := a.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Query{Query: req}})
	if err == nil {
		var got answer
		if got, err = verifyAnswer(asked, resp.GetQuery(), a.Verifier, a.Now()); err == nil {
			err = evidence.Check(a.Network, id, req, resp.GetQuery(), got.records)
		}
	}
	end(err)
	return req, resp.GetQuery(), err
}

// around returns a place somewhere near a record, and the radius of a question that leads to cells of the length of c.
func (a *Asker) around(at geo.Point, c geo.Cell) *query.Near {
	box := c.Box()
	radius := max(geo.Distance(geo.Point{Lat: box.MinLat, Lon: box.MinLon}, geo.Point{Lat: box.MaxLat, Lon: box.MaxLon})/4, 100)
	off := func() float64 { return (float64(a.Draw(2001))/1000 - 1) * radius / 4 / 111_320 }
	km := radius / 1000
	return &query.Near{Latitude: min(max(at.Lat+off(), -90), 90), Longitude: min(max(at.Lon+off(), -180), 180), RadiusKM: &km}
}

// Newest returns the newest version of a record, live or not, that most keepers of its provider's cell know.
func (a *Asker) Newest(ctx context.Context, n records.Name) (*records.Record, error) {
	key := records.ProviderCell(n.Provider).Manifest()
	key.Name = n
	newest, _, err := a.askNewest(ctx, key)
	return newest, err
}

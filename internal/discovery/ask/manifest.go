package ask

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Keepers can agree to leave an offer out. The manifest of its provider tells, and they cannot forge it. They can leave the manifest
// out too, or send one from before the offer: then the answer has no proof, or an old one. So the proof is a time.

// askedFurther bounds the keepers asked for what an answer lacks, beside those that gave it. Two of them are asked at a time.
const askedFurther = 4

type listedID = [16]byte // of an offer in a manifest

// account is what is known of one provider's records.
type account struct {
	of       records.Key // of the manifest
	manifest *records.Record
	listed   map[listedID]uint64          // by the manifest, with sequences
	newest   map[listedID]*records.Record // versions, tombstones included
	unread   int                          // records that this version does not read
}

// accountOf returns what this peer's own index knows.
func (a *Asker) accountOf(provider peer.ID) *account {
	c := &account{of: records.ProviderCell(provider).Manifest(), newest: make(map[listedID]*records.Record)}
	c.add(a.Now(), a.Index.VersionsOf(provider))
	return c
}

// add adds those of some verified records that are the provider's.
func (c *account) add(now time.Time, list []*records.Record) {
	for _, r := range list {
		switch listed := r.Manifest(); {
		case r.Expired(now) || r.Name().Provider != c.of.Name.Provider:
		case listed != nil && (c.manifest == nil || records.Compare(r, c.manifest) > 0):
			c.manifest, c.listed = r, listed
		case !r.Name().IsManifest():
			id := r.Name().Listed()
			if last := c.newest[id]; last == nil || records.Compare(r, last) > 0 {
				c.newest[id] = r
			}
		}
	}
}

// missing returns the listed offers of which no version is known that is as new.
func (c *account) missing() (ids []listedID) {
	for id, sequence := range c.listed {
		if r := c.newest[id]; r == nil || r.Sequence() < sequence {
			ids = append(ids, id)
		}
	}
	return ids
}

// proved returns the time of a manifest without a missing offer; zero if a later offer shows that there is a newer manifest.
func (c *account) proved() time.Time {
	if c.manifest == nil || len(c.missing()) > 0 {
		return time.Time{}
	}
	for id, r := range c.newest {
		if _, listed := c.listed[id]; !listed && !r.Withdrawn() && r.Sequence() > c.manifest.Sequence() {
			return time.Time{}
		}
	}
	return c.manifest.Issued()
}

// prove compares the answers of a query for one provider with its manifest. It asks for what they lack: the keepers that answered,
// since filters left out most of it, then others. The offers that it finds join the results.
func (t *treeSearch) prove(ctx context.Context) (proved time.Time, why string) {
	provider := t.plan.Filter().Provider
	if provider == "" {
		return time.Time{}, ""
	}
	for _, g := range t.groups {
		for _, x := range g.answers {
			for _, m := range x.manifests {
				_, _ = t.intake.Put(m) // a later answer cannot go back behind it
			}
		}
	}
	var all []*account // the provider's own is the first
	for i := range t.groups {
		for _, c := range t.groups[i].cells {
			all = append(all, t.complement(ctx, &t.groups[i], c.Provider))
		}
	}
	at := slices.IndexFunc(all, func(c *account) bool { return c.of.Name.Provider == provider })
	all[0], all[at] = all[at], all[0]
	return verdict(all)
}

// complement compares the answers about one provider with its manifest: see prove.
func (t *treeSearch) complement(ctx context.Context, g *group, provider peer.ID) *account {
	c := t.accountOf(provider)
	var answered []peer.ID
	for _, x := range g.answers {
		answered = append(answered, x.from)
		c.add(t.Now(), slices.Concat(x.records, x.beyond))
		c.unread = max(c.unread, x.unread())
	}
	for _, other := range t.groups {
		for _, x := range other.answers {
			c.add(t.Now(), x.manifests)
		}
	}
	further := slices.DeleteFunc(t.askingOrder(g.set), func(id peer.ID) bool { return slices.Contains(answered, id) })
	further = further[:min(len(further), askedFurther)]
	if c.manifest == nil { // the provider may have none
		some := further[:min(len(further), 2)]
		t.complete(ctx, c, some)
		further = further[len(some):]
	}
	for some := range slices.Chunk(append(answered, further...), 2) {
		if len(c.missing()) == 0 || ctx.Err() != nil {
			break
		}
		t.complete(ctx, c, some)
	}
	q := cellQuery{plan: t.plan, cells: g.cells}
	for id := range c.listed {
		if r := c.newest[id]; r != nil && q.matches(r) {
			addNewest(t.results, []answer{{records: []*records.Record{r}}})
		}
	}
	return c
}

// verdict concludes from what is known of a provider, first, and of the peers that may be its delegates: the time since when no offer
// can be missing, zero for none, or why one is missing.
func verdict(all []*account) (proved time.Time, why string) {
	provider, proved := all[0].of.Name.Provider, all[0].proved()
	var named []peer.ID
	if m := all[0].manifest; m != nil {
		named = m.Delegates()
	}
	for _, c := range all {
		id, of := c.of.Name.Provider, "the provider itself"
		if id != provider {
			of = "its delegate " + id.String()
		}
		n, at, isNamed := len(c.missing())-c.unread, c.proved(), slices.Contains(named, id)
		named = slices.DeleteFunc(named, func(other peer.ID) bool { return other == id })
		switch {
		case c.manifest == nil && isNamed:
			return time.Time{}, fmt.Sprintf("the provider names the delegate %s, and the keepers asked have no list of its offers: ask again", id)
		case c.manifest != nil && !c.manifest.Of(provider), c.manifest == nil && len(c.newest) == 0 && id != provider:
			continue // it was a delegate before
		case n > 0:
			return time.Time{}, fmt.Sprintf("%d of %d offers that %s lists are missing at the keepers asked: ask again", n, len(c.listed), of)
		case at.Before(proved):
			proved = at
		}
	}
	if len(named) > 0 {
		return time.Time{}, fmt.Sprintf("the provider has named %d more delegates meanwhile: ask again", len(named))
	}
	return proved, ""
}

// complete asks some keepers, at once, for the manifest and the records that an account lacks.
func (a *Asker) complete(ctx context.Context, c *account, from []peer.ID) {
	ctx, cancel := context.WithTimeout(ctx, a.Limits.Ask)
	defer cancel()
	ids := c.missing()
	replies := make([]versionReply, len(from))
	wire.Bounded(len(from), len(from), func(i int) { replies[i] = a.askVersion(ctx, from[i], c.of, ids...) })
	for _, r := range replies {
		if r.newest != nil {
			r.others = append(r.others, r.newest)
		}
		for _, other := range r.others {
			_, _ = a.intake.Put(other) // if the index is full, the next query asks again
		}
		c.add(a.Now(), r.others)
		c.unread = max(c.unread, r.unread)
	}
}

// readOthers verifies what a keeper knows of the other records of a resolution.
func (a *Asker) readOthers(envelopes [][]byte, provider peer.ID, ids []listedID) (others []*records.Record, unread int, err error) {
	for _, envelope := range envelopes {
		r, left, err := wire.Receive(a.Verifier, envelope, a.Now())
		switch {
		case err != nil:
			return nil, 0, err
		case left != nil:
			a.CountLeft(left)
			if wire.Unread(left) {
				unread++
			}
		case r.Name().Provider != provider || !slices.Contains(ids, r.Name().Listed()):
			return nil, 0, wire.Breach("record %s is not in the request", r.Name())
		default:
			others = append(others, r)
		}
	}
	return others, unread, nil
}

// serveOthers returns the newest versions of a provider's records with some ids.
func (a *Asker) serveOthers(provider peer.ID, ids []byte) (envelopes [][]byte, err error) {
	const size = len(listedID{})
	if len(ids)%size != 0 || len(ids) > records.MaxPerProvider*size {
		return nil, fault.Invalidf("ids", len(ids), "must have %d bytes for each of at most %d records", size, records.MaxPerProvider)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	newest := a.accountOf(provider).newest
	for id := range slices.Chunk(ids, size) {
		if r := newest[listedID(id)]; r != nil {
			envelopes = append(envelopes, r.Envelope())
		}
	}
	return envelopes, nil
}

// readManifests takes the manifests of a response that this peer's clock and version take for valid.
func (a *answer) readManifests(q cellQuery, resp *pb.QueryResponse, verifier wire.Opener, now time.Time) error {
	if n := len(resp.Manifests); n > wire.MaxManifests {
		return wire.Breach("%d manifests for a limit of %d", n, wire.MaxManifests)
	}
	for _, envelope := range resp.Manifests {
		switch r, left, err := wire.Receive(verifier, envelope, now); {
		case err != nil:
			return err
		case left != nil:
		case !r.Name().IsManifest() || !slices.ContainsFunc(q.cells, r.In):
			return wire.Breach("record %s instead of a manifest", r.Name())
		default:
			a.manifests = append(a.manifests, r)
		}
	}
	return nil
}

// manifestsIn returns the live manifests in those of the cells that are of providers.
func (a *Asker) manifestsIn(cells []records.CellKey) (list []*records.Record) {
	for _, id := range signersOf(cells) {
		for r := range a.Index.In(records.ProviderCell(id), a.Now()) {
			if r.Name().IsManifest() && len(list) < wire.MaxManifests && !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
	}
	return list
}

// delegates returns the delegates of a provider by the manifests in the answers of a group.
func (g *group) delegates(provider peer.ID) (ids []peer.ID) {
	for _, x := range g.answers {
		for _, m := range x.manifests {
			if m.Name().Provider == provider {
				ids = append(ids, m.Delegates()...)
			} else if m.Of(provider) {
				ids = append(ids, m.Name().Provider)
			}
		}
	}
	return ids
}

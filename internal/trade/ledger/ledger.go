// Package ledger is the book of the grants that one provider gave: who holds how many units of which offer, and
// until when.
//
// It is a pure state machine. Requests, terms and time are arguments, and a change either happens as a whole or is
// refused. The owner makes each change durable as one value before anybody hears of it. So the units granted and
// not free again never exceed the stock of an offer, as long as each change begins at the last durable value.
//
// Time is that of the provider's monotonic clock, and no time is durable. A grant ends one time to live after its
// last change, as the provider counts it, and its units are free again a twentieth of that time later. Its holder
// counts from before it asked, so the holder's end comes first, whatever the clocks of both say. Who loads a ledger
// gives each grant that it did not know its full time.
package ledger

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

const (
	HoldTime   = time.Minute // of units that are held and not confirmed
	MinTime    = time.Second // of a grant
	maxHolds   = 4           // unconfirmed grants of one address prefix
	maxEntries = 1000        // grants of all offers; ended ones are remembered while there is room

	MaxHandover  = 4 << 10   // bytes that the holder of one grant gets from a command of the provider
	maxHandovers = 256 << 10 // of all entries: the ledger is one value

	repeatTime = time.Minute // a buyer without an answer repeats its request for so long

	marginPart = 20 // of the time of a grant pass between its end and the next use of its units: one in so many
)

// Consumer is who asks.
type Consumer struct {
	ID     string // of the peer, authenticated
	Prefix string // of its address; empty: it is not counted
}

// Terms are those of the newest version of an offer.
type Terms struct {
	Key, Offer string
	Sequence   uint64
	Unit       string
	Total      uint32
	PerOne     uint32 // units of one consumer; 0: a quarter
	MaxTime    time.Duration
	Price      *float64
	Currency   string
	PriceUnit  string
}

// perOne is the share of one consumer, and perPrefix that of all consumers behind one address prefix: ids cost
// nothing, addresses do.
func (t *Terms) perOne() uint32 { return min(cmp.Or(t.PerOne, (t.Total+3)/4), t.Total) }

func (t *Terms) perPrefix() uint32 { return max(t.perOne(), t.Total/2) }

// Ledger is the state, and when its grants end. It is not safe for concurrent use.
type Ledger struct {
	state *pb.Ledger
	ends  map[uint64]time.Duration // by token: the end of the state that the entry has; none: it is over, and a command is owed
}

// New returns an empty ledger.
func New() *Ledger { return &Ledger{state: &pb.Ledger{}, ends: map[uint64]time.Duration{}} }

// Load returns the ledger of a durable state. Grants that before has in the same state keep their end; all others
// have their full time. Nil knows none.
func Load(state *pb.Ledger, before *Ledger, now time.Duration) *Ledger {
	l := &Ledger{state: proto.CloneOf(state), ends: make(map[uint64]time.Duration, len(state.GetEntries()))}
	for _, e := range l.state.GetEntries() {
		l.ends[e.Token] = now + spanOf(e)
		if known := before.entry(e.Token); known != nil && known.State == e.State && known.Changes == e.Changes {
			if l.ends[e.Token] = before.ends[e.Token]; l.ends[e.Token] == 0 {
				delete(l.ends, e.Token)
			}
		}
	}
	return l
}

// Merge returns the state that knows the grants of two ledgers of one provider, of before and after a move. One
// that both know is as its last change left it.
func Merge(a, b *pb.Ledger) *pb.Ledger {
	m := &pb.Ledger{LastToken: max(a.GetLastToken(), b.GetLastToken()), LongestMs: max(a.GetLongestMs(), b.GetLongestMs())}
	known := map[uint64]*pb.Entry{}
	for _, e := range slices.Concat(a.GetEntries(), b.GetEntries()) {
		if k := known[e.Token]; k == nil || k.Changes < e.Changes {
			known[e.Token] = proto.CloneOf(e)
		}
	}
	for _, token := range slices.Sorted(maps.Keys(known)) {
		m.Entries = append(m.Entries, known[token])
	}
	return m
}

// State returns the durable part. It belongs to the ledger.
func (l *Ledger) State() *pb.Ledger { return l.state }

// Clone returns a copy for a change that may fail.
func (l *Ledger) Clone() *Ledger {
	return &Ledger{state: proto.CloneOf(l.state), ends: maps.Clone(l.ends)}
}

// Entries returns the grants by token. They belong to the ledger.
func (l *Ledger) Entries() []*pb.Entry { return l.state.GetEntries() }

func timeOf(e *pb.Entry) time.Duration { return time.Duration(e.TtlMs) * time.Millisecond }

// spanOf is the full time of an entry in its state. One that has ended is remembered for its time again, and for repeatTime at least:
// a second effect of a repeated request would be paid twice.
func spanOf(e *pb.Entry) time.Duration {
	switch ttl := timeOf(e); e.State {
	case api.Grant_STATE_HELD:
		return min(ttl, HoldTime)
	case api.Grant_STATE_ACTIVE:
		return ttl
	case api.Grant_STATE_EXPIRED:
		if !e.Free {
			return ttl / marginPart
		}
	}
	return max(timeOf(e)+timeOf(e)/marginPart, repeatTime)
}

// Live reports whether a state gives the right to the units.
func Live(s api.Grant_State) bool {
	return s == api.Grant_STATE_HELD || s == api.Grant_STATE_ACTIVE
}

// counts reports whether the units of an entry are not free.
func (l *Ledger) counts(e *pb.Entry) bool {
	_, timed := l.ends[e.Token]
	return Live(e.State) || e.State == api.Grant_STATE_EXPIRED && timed && !e.Free
}

func (l *Ledger) entry(token uint64) *pb.Entry {
	if l == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(l.state.GetEntries(), token, func(e *pb.Entry, token uint64) int { return cmp.Compare(e.Token, token) })
	if !ok {
		return nil
	}
	return l.state.Entries[i]
}

// News returns the grants that began after an earlier state of the same ledger, and those that ended since.
func (l *Ledger) News(before *Ledger) (began, ended []*pb.Entry) {
	for _, e := range l.state.GetEntries() {
		known := before.entry(e.Token)
		if known == nil {
			began = append(began, e)
		}
		if !Live(e.State) && (known == nil || Live(known.State)) {
			ended = append(ended, e)
		}
	}
	for _, e := range before.state.GetEntries() {
		if Live(e.State) && l.entry(e.Token) == nil { // its margin is over too
			e = proto.CloneOf(e)
			e.State = api.Grant_STATE_EXPIRED
			ended = append(ended, e)
		}
	}
	return began, ended
}

// Used returns the units of an offer that are not free.
func (l *Ledger) Used(offer string) (units uint32) {
	for _, e := range l.state.GetEntries() {
		if e.OfferId == offer && l.counts(e) {
			units += e.Units
		}
	}
	return units
}

// Free returns the units that may be granted now.
func (l *Ledger) Free(t Terms) uint32 { return t.Total - min(l.Used(t.Offer), t.Total) }

// Most returns the units that a consumer may be granted now: its share, and that of its network, may be less than
// what is free.
func (l *Ledger) Most(by Consumer, t Terms) uint32 {
	own, near := l.taken(by, t.Offer)
	most := min(l.Free(t), t.perOne()-min(own, t.perOne()))
	if by.Prefix != "" {
		most = min(most, t.perPrefix()-min(near, t.perPrefix()))
	}
	return most
}

// taken returns the units of an offer that a consumer has, and those of all consumers in its network.
func (l *Ledger) taken(by Consumer, offer string) (own, near uint32) {
	for _, e := range l.state.GetEntries() {
		if e.OfferId != offer || !l.counts(e) {
			continue
		}
		if e.ConsumerId == by.ID {
			own += e.Units
		}
		if by.Prefix != "" && e.Prefix == by.Prefix {
			near += e.Units
		}
	}
	return own, near
}

// Left returns the time of a grant from now on; 0 for one that is not live.
func (l *Ledger) Left(token uint64, now time.Duration) time.Duration {
	e := l.entry(token)
	if e == nil || !Live(e.State) {
		return 0
	}
	return max(l.ends[token]-now, 0)
}

// Next returns the earliest end of a state; false for an empty ledger.
func (l *Ledger) Next() (at time.Duration, ok bool) {
	for _, end := range l.ends {
		if !ok || end < at {
			at, ok = end, true
		}
	}
	return at, ok
}

// Reserve grants units to a consumer, or holds them. The repetition of a request returns its grant, whatever became
// of it. issued is the wall clock, for people and for the first token. Errors, each with its numbers: Invalid;
// Conflict for another version, a higher price, a request id in other use, and too few free units; LimitReached for
// a share that is used up.
func (l *Ledger) Reserve(by Consumer, r *api.ReserveRequest, t Terms, now time.Duration, issued time.Time) (*pb.Entry, error) {
	units, ttl := max(r.GetUnits(), 1), cmp.Or(r.GetTtlMs(), uint64(t.MaxTime.Milliseconds()))
	if e := l.Get(by.ID, r.GetRequestId()); e != nil {
		if e.OfferId != t.Offer || e.Units != units {
			return nil, fault.Refused(fault.Conflict, "request_id", "names an earlier request, for %d of %s", e.Units, e.OfferId)
		}
		return e, nil
	}
	if err := l.admits(by, r, t, units, ttl); err != nil {
		return nil, err
	}
	l.makeRoom(by)
	l.state.LastToken = records.NextSequence(l.state.LastToken, issued)
	l.state.LongestMs = max(l.state.LongestMs, ttl)
	e := &pb.Entry{
		Token: l.state.LastToken, Key: t.Key, OfferId: t.Offer, ConsumerId: by.ID, Prefix: by.Prefix, Units: units, TtlMs: ttl,
		State: api.Grant_STATE_ACTIVE, RequestId: r.GetRequestId(), Sequence: t.Sequence, IssuedMs: uint64(max(issued.UnixMilli(), 0)),
		Price: t.Price, Currency: t.Currency, PriceUnit: t.PriceUnit,
	}
	if r.GetHold() {
		e.State = api.Grant_STATE_HELD
	}
	l.state.Entries = append(l.state.Entries, e)
	l.ends[e.Token] = now + spanOf(e)
	return e, nil
}

// admits refuses what the terms, the stock or the shares do not allow.
func (l *Ledger) admits(by Consumer, r *api.ReserveRequest, t Terms, units uint32, ttl uint64) error {
	switch {
	case r.GetSequence() != 0 && r.GetSequence() != t.Sequence:
		return fault.Refused(fault.Conflict, "sequence", "names version %d of the offer, and the newest is %d: read it again", r.GetSequence(), t.Sequence)
	case r.MaxPrice != nil && t.Price != nil && *t.Price > *r.MaxPrice:
		return fault.Refused(fault.Conflict, "max_price", "is %v, and the price is %v %s %s", *r.MaxPrice, *t.Price, t.Currency, t.PriceUnit)
	case ttl < uint64(MinTime.Milliseconds()) || ttl > uint64(t.MaxTime.Milliseconds()):
		return fault.Invalidf("ttl_ms", r.GetTtlMs(), "must be %d to %d", MinTime.Milliseconds(), t.MaxTime.Milliseconds())
	}
	var holds, entries, all uint64
	for _, e := range l.state.GetEntries() {
		mine := e.ConsumerId == by.ID
		sameNet := by.Prefix != "" && e.Prefix == by.Prefix
		if !l.counts(e) && e.Owed == 0 {
			continue
		}
		all++
		if mine || sameNet {
			entries++
		}
		if e.State == api.Grant_STATE_HELD && (mine || sameNet) {
			holds++
		}
	}
	own, near := l.taken(by, t.Offer)
	asked, free := uint64(units), l.Free(t)
	switch {
	case uint64(own)+asked > uint64(t.perOne()):
		return fault.Refused(fault.LimitReached, "units", "asks for %d %s: one consumer may have %d of %d, and you have %d", asked, t.Unit, t.perOne(), t.Total, own)
	case by.Prefix != "" && uint64(near)+asked > uint64(t.perPrefix()):
		return fault.Refused(fault.LimitReached, "units", "asks for %d %s: consumers in %s may have %d of %d together, and they have %d", asked, t.Unit, by.Prefix, t.perPrefix(), t.Total, near)
	case asked > uint64(free):
		return fault.Refused(fault.Conflict, "units", "asks for %d %s, and %d of %d are free", asked, t.Unit, free, t.Total)
	case r.GetHold() && holds >= maxHolds:
		return fault.Refused(fault.LimitReached, "hold", "is used up: %d grants of yours or of your network are held and not confirmed, at most %d may be", holds, maxHolds)
	case !share.Fits(entries, 1, maxEntries-min(all, maxEntries)):
		return fault.Refused(fault.LimitReached, "request_id", "names one grant too many: the provider has %d of at most %d, %d of them of you or your network", all, maxEntries, entries)
	}
	return nil
}

// makeRoom forgets a grant that was given back or taken, if there is no room for another one: of the asker or its
// network before those of others, so that a flood forgets its own, and of these the one whose memory ends first.
func (l *Ledger) makeRoom(by Consumer) {
	if len(l.state.GetEntries()) < maxEntries {
		return
	}
	near := func(e *pb.Entry) bool { return e.ConsumerId == by.ID || by.Prefix != "" && e.Prefix == by.Prefix }
	at := -1
	for i, e := range l.state.Entries {
		if l.counts(e) || e.Owed > 0 {
			continue
		}
		if at < 0 || near(e) && !near(l.state.Entries[at]) ||
			near(e) == near(l.state.Entries[at]) && l.ends[e.Token] < l.ends[l.state.Entries[at].Token] {
			at = i
		}
	}
	if at >= 0 {
		delete(l.ends, l.state.Entries[at].Token)
		l.state.Entries = slices.Delete(l.state.Entries, at, at+1)
	}
}

// Get returns the grant of a request; nil for an unknown one.
func (l *Ledger) Get(consumer, request string) *pb.Entry {
	i := slices.IndexFunc(l.state.GetEntries(), func(e *pb.Entry) bool {
		return request != "" && e.RequestId == request && e.ConsumerId == consumer
	})
	if i < 0 {
		return nil
	}
	return l.state.Entries[i]
}

// of returns the live grant of a consumer. A token of somebody else is as unknown as none.
func (l *Ledger) of(consumer string, token uint64, now time.Duration) (*pb.Entry, error) {
	e := l.entry(token)
	switch {
	case e == nil || e.ConsumerId != consumer:
		return nil, fault.Refused(fault.NotFound, "token", "%d names no grant of yours: it is over, or was never given", token)
	case !Live(e.State):
		return nil, ended(e)
	case now >= l.ends[token]:
		return nil, fault.Refused(fault.Gone, "token", "%d names a grant that has expired", token)
	}
	return e, nil
}

func ended(e *pb.Entry) error {
	why := map[api.Grant_State]string{api.Grant_STATE_EXPIRED: "expired", api.Grant_STATE_RELEASED: "was released", api.Grant_STATE_REVOKED: "was revoked"}[e.State]
	if e.Reason != "" {
		why += " (" + e.Reason + ")"
	}
	return &fault.Error{Kind: fault.Gone, Field: "token", Value: e.Token, Err: errors.New("names a grant that " + why)}
}

// Holder returns the live grant of a consumer, for a connection. Errors: NotFound, Gone.
func (l *Ledger) Holder(consumer string, token uint64, now time.Duration) (*pb.Entry, error) {
	return l.of(consumer, token, now)
}

// Extend gives a grant its time anew and confirms one that is held; with 0, the time it has. The repetition of a
// request changes nothing. Errors: NotFound and Gone; Invalid; Conflict for an offer with another price by now.
func (l *Ledger) Extend(consumer string, r *api.ExtendRequest, t Terms, now time.Duration) (*pb.Entry, error) {
	e, err := l.of(consumer, r.GetToken(), now)
	if err != nil {
		return nil, err
	}
	if r.GetRequestId() != "" && r.GetRequestId() == e.ChangeId {
		return e, nil
	}
	ttl := cmp.Or(r.GetTtlMs(), e.TtlMs)
	switch {
	case ttl < uint64(MinTime.Milliseconds()) || ttl > uint64(t.MaxTime.Milliseconds()):
		return nil, fault.Invalidf("ttl_ms", ttl, "must be %d to %d", MinTime.Milliseconds(), t.MaxTime.Milliseconds())
	case !samePrice(e, t):
		return nil, fault.Refused(fault.Conflict, "token", "%d has another price than version %d of the offer: reserve again", e.Token, t.Sequence)
	}
	e.TtlMs, e.ChangeId, l.state.LongestMs = ttl, r.GetRequestId(), max(l.state.LongestMs, ttl)
	l.enter(e, api.Grant_STATE_ACTIVE, now)
	return e, nil
}

func samePrice(e *pb.Entry, t Terms) bool {
	if e.Price == nil || t.Price == nil {
		return e.Price == t.Price
	}
	return *e.Price == *t.Price && e.Currency == t.Currency && e.PriceUnit == t.PriceUnit
}

// Confirm makes a grant active that is held: its holder uses it. The holder gets a text from the provider. Errors:
// NotFound and Gone; TooLarge for a text that has no room.
func (l *Ledger) Confirm(consumer string, token uint64, handover string, now time.Duration) (*pb.Entry, error) {
	e, err := l.of(consumer, token, now)
	if err != nil || e.State != api.Grant_STATE_HELD {
		return e, err
	}
	var own, all uint64
	for _, other := range l.state.GetEntries() {
		n := uint64(len(other.Handover))
		if all += n; other.ConsumerId == consumer {
			own += n
		}
	}
	if n := uint64(len(handover)); n > 0 && !share.Fits(own, n, maxHandovers-min(all, maxHandovers)) {
		return nil, fault.New("", fault.TooLarge, "the provider keeps %d of at most %d bytes for the holders of its grants, %d of them for you: no room for %d", all, maxHandovers, own, n)
	}
	e.Handover = handover
	l.enter(e, api.Grant_STATE_ACTIVE, now)
	return e, nil
}

// Begin notes, before a command of the provider works for a grant that is held, that its end owes a command too.
// Errors: NotFound and Gone; Exists for one that has begun: nobody knows how far it came.
func (l *Ledger) Begin(consumer string, token uint64, now time.Duration) (*pb.Entry, error) {
	e, err := l.of(consumer, token, now)
	if err == nil && e.Owed > 0 {
		return nil, fault.New("", fault.Exists, "the provider stopped while it prepared the grant")
	}
	if err == nil {
		e.Owed = 1
	}
	return e, err
}

// Settle notes that the command at the end of a grant has succeeded, or failed once more: after most attempts it
// owes none. Error: NotFound.
func (l *Ledger) Settle(token uint64, ok bool, most uint32) (*pb.Entry, error) {
	e := l.entry(token)
	if e == nil {
		return nil, fault.Refused(fault.NotFound, "token", "%d names no grant of this peer", token)
	}
	if e.Owed++; ok || e.Owed > most {
		e.Owed = 0
	}
	return e, nil
}

// enter gives an entry the full time of a state.
func (l *Ledger) enter(e *pb.Entry, s api.Grant_State, now time.Duration) {
	if e.State = s; !Live(s) {
		e.Handover = "" // it was for the holder
	}
	e.Changes++
	l.ends[e.Token] = now + spanOf(e)
}

// Release frees the units of a grant. It does not change a grant that has ended. Error: NotFound.
func (l *Ledger) Release(consumer string, token uint64, now time.Duration) (*pb.Entry, error) {
	e := l.entry(token)
	if e == nil || e.ConsumerId != consumer {
		return nil, fault.Refused(fault.NotFound, "token", "%d names no grant of yours: it is over, or was never given", token)
	}
	if Live(e.State) {
		l.enter(e, api.Grant_STATE_RELEASED, now)
	}
	return e, nil
}

// Revoke takes a grant from its holder. Errors: NotFound; Gone for one that has ended.
func (l *Ledger) Revoke(token uint64, reason string, now time.Duration) (*pb.Entry, error) {
	e := l.entry(token)
	switch {
	case e == nil:
		return nil, fault.Refused(fault.NotFound, "token", "%d names no grant of this peer", token)
	case !Live(e.State):
		return nil, ended(e)
	}
	e.Reason = reason
	l.enter(e, api.Grant_STATE_REVOKED, now)
	return e, nil
}

// Expire ends the states whose time is over, frees the units of grants that expired, and forgets the entries whose last state it
// was. One that owes a command is remembered. It reports whether the ledger changed.
func (l *Ledger) Expire(now time.Duration) bool {
	changed := false
	keep := l.state.GetEntries()[:0]
	for _, e := range l.state.GetEntries() {
		end, timed := l.ends[e.Token]
		if end > now {
			keep = append(keep, e)
			continue
		}
		if timed && Live(e.State) {
			changed = true
			e.TtlMs = uint64(spanOf(e).Milliseconds()) // a hold was shorter than the grant
			l.enter(e, api.Grant_STATE_EXPIRED, end)
			end = l.ends[e.Token]
		}
		if timed && end <= now && e.State == api.Grant_STATE_EXPIRED && !e.Free {
			changed, e.Free = true, true
			l.enter(e, e.State, end)
			end = l.ends[e.Token]
		}
		if end > now {
			keep = append(keep, e)
			continue
		}
		changed = changed || timed || e.Owed == 0
		delete(l.ends, e.Token)
		if e.Owed > 0 {
			keep = append(keep, e)
		}
	}
	clear(l.state.GetEntries()[len(keep):])
	l.state.Entries = keep
	return changed
}

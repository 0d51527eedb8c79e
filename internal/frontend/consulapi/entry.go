package consulapi

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Names of the keys beside a value. "\x00n" is after those that end with the value.
const (
	mark     = "\x00"
	heldMark = mark + "held"
	metaMark = mark + "meta"
	slowMark = mark + "slow"
	endMark  = mark + "n"
)

// entry is a key of Consul: what clients see, and the revisions of the keys of the group that it stands on.
type entry struct {
	key    string // of the client
	exists bool
	value  []byte

	flags, lockIndex uint64
	session          sessionID // that holds the key; zero: none
	delayed          bool      // a lock delay runs, if nobody holds the key
	created          int64
	modified         int64

	mod, metaMod, heldMod, slowMod int64 // 0: absent
	exact                          bool  // a change depends on the value's revision too
}

// pair is an entry in the JSON of Consul.
type pair struct {
	LockIndex   uint64
	Key         string
	Flags       uint64
	Value       []byte
	Session     string `json:",omitempty"`
	CreateIndex int64
	ModifyIndex int64
}

func (e *entry) pair() pair {
	p := pair{LockIndex: e.lockIndex, Key: e.key, Flags: e.flags, Session: e.session.String(), CreateIndex: e.created, ModifyIndex: e.modified}
	if len(e.value) > 0 {
		p.Value = e.value // Consul has null for an empty value
	}
	return p
}

// add takes over one key of the group. told is the session in the meta key.
func (e *entry) add(suffix string, kv *apiv1.KeyVal, told *string) {
	switch suffix {
	case "":
		e.exists, e.value, e.created, e.modified, e.mod = true, kv.GetValue(), kv.GetCreateRevision(), kv.GetModRevision(), kv.GetModRevision()
	case heldMark:
		e.session, e.heldMod = parseSession(string(kv.GetValue())), kv.GetModRevision()
	case metaMark:
		e.metaMod = kv.GetModRevision()
		_, _ = fmt.Sscan(string(kv.GetValue()), &e.flags, &e.lockIndex, told) // no session: the last one is missing
	case slowMark:
		e.delayed, e.slowMod = true, kv.GetModRevision()
	}
}

// grouping makes entries of the keys of a sorted range, as they come.
type grouping struct {
	prefix string
	last   *entry
	told   string // session in its meta key
	each   func(*entry) error
}

func (g *grouping) add(kv *apiv1.KeyVal) (err error) {
	key, suffix := strings.TrimPrefix(string(kv.GetKey()), g.prefix), ""
	if at := strings.Index(key, mark); at >= 0 {
		key, suffix = key[:at], key[at:]
	}
	if g.last == nil || g.last.key != key {
		err = g.end()
		g.last, g.told = &entry{key: key}, ""
	}
	g.last.add(suffix, kv, &g.told)
	return err
}

func (g *grouping) end() error {
	if g.last == nil {
		return nil
	}
	// The end of a session changes no key that clients see. It came after the last change and was a revision of its own,
	// so the number after the last change is below that of every later one.
	if g.told != "" && g.last.heldMod == 0 {
		g.last.modified++
	}
	return g.each(g.last)
}

// entries groups the keys of a sorted range.
func (s *Server) entries(kvs []*apiv1.KeyVal) (list []*entry) {
	g := grouping{prefix: s.Prefix, each: func(e *entry) error { list = append(list, e); return nil }}
	for _, kv := range kvs {
		_ = g.add(kv)
	}
	_ = g.end()
	return list
}

// group returns the key of the group for one of a client.
func (s *Server) group(key string) string { return s.Prefix + key }

// whole is the span of all keys of an entry.
func (s *Server) whole(key string) coord.Span {
	return coord.Span{From: s.group(key), To: s.group(key) + "\x01"}
}

// span is the span of one key, or of a prefix.
func (s *Server) span(key string, prefix bool) coord.Span {
	if prefix {
		return coord.Under(s.group(key))
	}
	return s.whole(key)
}

// how a range is read.
type how struct {
	at       int64 // revision; 0: the present
	local    bool  // from the nearest member: it may be old
	keysOnly bool
	before   func() error // each page; nil: nothing
}

// pages calls each for the pages of a span at one revision, which it returns. It keeps none.
func (s *Server) pages(ctx context.Context, span coord.Span, h how, each func([]*apiv1.KeyVal) error) (at int64, err error) {
	ask := span.Request(0)
	ask.Revision, ask.Local, ask.KeysOnly = h.at, h.local, h.keysOnly
	for {
		if h.before != nil {
			if err := h.before(); err != nil {
				return ask.Revision, err
			}
		}
		within, cancel := context.WithTimeout(ctx, answerWithin)
		page, err := coord.Range(within, s.Service, ask)
		cancel()
		if err == nil {
			err = each(page.GetKvs())
		}
		if err != nil || len(page.GetNext()) == 0 {
			return page.GetRevision(), err
		}
		ask.From, ask.Revision = page.GetNext(), page.GetRevision()
	}
}

// visit calls each for the entries of a span at one revision, which it returns, and keeps no more than a page of them.
func (s *Server) visit(ctx context.Context, span coord.Span, h how, each func(*entry) error) (at int64, err error) {
	g := grouping{prefix: s.Prefix, each: each}
	at, err = s.pages(ctx, span, h, func(kvs []*apiv1.KeyVal) error {
		for _, kv := range kvs {
			if err := g.add(kv); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = g.end()
	}
	return at, err
}

// read returns all keys of a span at one revision. It takes room for each page, of at most some bytes, before it reads
// it; a single key needs none while what was read is small.
func (l *ledger) read(span coord.Span, most int) (kvs []*apiv1.KeyVal, err error) {
	h := l.how
	h.before = func() error {
		if most == singleBytes && l.size <= access.Small {
			return nil
		}
		return l.room.To(l.ctx, l.size+most, patience)
	}
	l.how.at, err = l.s.pages(l.ctx, span, h, func(page []*apiv1.KeyVal) error {
		for _, kv := range page {
			l.size += len(kv.GetKey()) + len(kv.GetValue())
		}
		if l.size > maxAnswer {
			return tooLarge()
		}
		kvs = append(kvs, page...)
		return nil
	})
	return kvs, err
}

func tooLarge() error {
	return fault.New("", fault.TooLarge, "the answer exceeds %d bytes: ask for a longer prefix", maxAnswer)
}

// refused is the error of a change that the state of a key forbids.
type refused string

// Error implements error.
func (r refused) Error() string { return string(r) }

// staged is an entry before and after the changes of a request.
type staged struct{ before, now entry }

// ledger collects the changes of a request to entries, for one transaction.
type ledger struct {
	s       *Server
	ctx     context.Context
	room    *access.Growing // of the request
	size    int             // of what was read
	how     how
	entries map[string]*staged
	order   []string
	trees   []coord.Span // read as a whole
}

// change runs a request on a copy of the present entries, and executes what it changed in one transaction, again while
// others change them too. The first attempt trusts the nearest member, because the transaction proves what was read:
// only a refusal must be read anew. It returns the revision of the change, or of what was read, and whether it changed
// something.
func (s *Server) change(r *request, run func(*ledger) error) (revision int64, changed bool, err error) {
	ctx, cancel := bounded(r)
	defer cancel()
	for try := range maxTries {
		r.giveBack()
		l := &ledger{s: s, ctx: ctx, room: r.room, how: how{local: try == 0}, entries: map[string]*staged{}}
		err := run(l)
		steps := l.steps()
		if (err != nil || len(steps) == 0) && try == 0 {
			continue
		}
		if err != nil || len(steps) == 0 {
			return l.how.at, false, err
		}
		a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{Compare: l.guards(), Then: steps}))
		if err != nil {
			return 0, false, sessionError(err)
		}
		if a.GetTxn().GetSucceeded() {
			return a.GetTxn().GetHeader().GetRevision(), true, nil
		}
	}
	return 0, false, errContended
}

var errContended = fault.New("", fault.Conflict, "others change the same keys all the time: try again")

// maxTries bounds the repetitions of a change. Each one lost to a change of somebody else.
const maxTries = 64

// get returns the entry of a key for reading and changing.
func (l *ledger) get(key string) (*entry, error) {
	if st := l.entries[key]; st != nil {
		return &st.now, nil
	}
	if key == "" || strings.Contains(key, mark) {
		return nil, fault.Invalidf("key", nil, "must have a name without zero bytes")
	}
	kvs, err := l.read(l.s.whole(key), singleBytes)
	if err != nil {
		return nil, err
	}
	return l.add(&entry{key: key}, l.s.entries(kvs)), nil
}

// add takes over what was read of a key; none: it is absent.
func (l *ledger) add(e *entry, found []*entry) *entry {
	if len(found) > 0 {
		e = found[0]
	}
	st := &staged{*e, *e}
	l.entries[e.key], l.order = st, append(l.order, e.key)
	return &st.now
}

// guards hold while nothing changed that the changes depend on.
func (l *ledger) guards() (all []*apiv1.Compare) {
	for _, key := range l.order {
		st, name := l.entries[key], l.s.group(key)
		at := func(suffix string, mod int64) { all = append(all, coord.WhileAt(name+suffix, coord.Revision(mod))) }
		at(metaMark, st.before.metaMod)
		at(heldMark, st.before.heldMod)
		at(slowMark, st.before.slowMod)
		if st.now.exact {
			at("", st.before.mod)
		}
	}
	for _, span := range l.trees {
		from, to := span.Bounds()
		all = append(all, &apiv1.Compare{Operator: apiv1.Compare_LESS, Key: from, RangeEnd: to, Number: l.how.at + 1})
	}
	return all
}

// steps are the changes of the ledger.
func (l *ledger) steps() (all []*apiv1.TxnStep) {
	for _, key := range l.order {
		if st := l.entries[key]; st.now.modified != st.before.modified {
			all = append(all, l.s.steps(&st.before, &st.now)...)
		}
	}
	return all
}

// steps turn one entry into another.
func (s *Server) steps(before, now *entry) (all []*apiv1.TxnStep) {
	name := s.group(now.key)
	put := func(suffix string, value []byte, lease coord.LeaseID) {
		all = append(all, coord.PutStep(name+suffix, value, lease))
	}
	drop := func(suffix string, mod int64) {
		if mod > 0 {
			all = append(all, coord.Exactly(name+suffix).DeleteStep())
		}
	}
	if !now.exists {
		all = append(all, coord.Span{From: name, To: name + endMark}.DeleteStep())
		if before.session != (sessionID{}) { // otherwise a delay runs, and goes on
			drop(slowMark, before.slowMod)
		}
		return all
	}
	var lease coord.LeaseID
	if now.session.deletes() {
		lease = now.session.lease()
	}
	put("", now.value, lease)
	if now.flags|now.lockIndex != 0 || now.session != (sessionID{}) {
		put(metaMark, []byte(strings.TrimSpace(fmt.Sprint(now.flags, " ", now.lockIndex, " ", now.session))), lease)
	} else {
		drop(metaMark, before.metaMod)
	}
	switch {
	case now.session == before.session:
	case now.session == (sessionID{}):
		drop(heldMark, before.heldMod)
		drop(slowMark, before.slowMod)
	default:
		put(heldMark, []byte(now.session.String()), now.session.lease())
		if now.session.delay() > 0 {
			put(slowMark, nil, now.session.delayLease())
		}
	}
	return all
}

// set gives an entry a value after a change of who holds it. An entry that stays what it was has not changed, as in Consul.
func (e *entry) set(was entry, value []byte, flags uint64) {
	same := e.exists && bytes.Equal(e.value, value) && e.flags == flags && e.session == was.session && e.lockIndex == was.lockIndex
	if e.exists, e.value, e.flags = true, value, flags; !same {
		e.touch()
	}
}

// put gives an entry a value without regard to who holds it, which begins its lock index anew, as in Consul.
func (e *entry) put(value []byte, flags uint64) {
	was := *e
	e.lockIndex = 0
	e.set(was, value, flags)
}

// touch marks a change. Its revision is known after the transaction.
func (e *entry) touch() { e.modified = -1 }

// cas fails unless the entry was last modified at an index, or with 0 is absent.
func (e *entry) cas(index int64) error {
	e.exact = true
	if index == 0 && e.exists || index != 0 && (!e.exists || e.modified != index) {
		return refused("current modify index does not match")
	}
	return nil
}

// acquire gives the entry to a session, or fails.
func (e *entry) acquire(of string, value []byte, flags uint64) error {
	was := *e
	switch id := parseSession(of); {
	case e.session == (sessionID{}) && e.delayed:
		return refused("lock is delayed")
	case of == "":
		return errMissing
	case id == (sessionID{}):
		return errSession(of)
	case e.session == id:
	case e.session != (sessionID{}):
		return refused("lock is already held")
	default:
		e.session = id
		e.lockIndex++
	}
	e.set(was, value, flags)
	return nil
}

// release takes the entry from a session that holds it.
func (e *entry) release(id sessionID, value []byte, flags uint64) error {
	if !e.exists || e.session != id || id == (sessionID{}) {
		return refused("lock isn't held, or is held by another session")
	}
	was := *e
	e.session = sessionID{}
	e.set(was, value, flags)
	return nil
}

// remove deletes the entry.
func (e *entry) remove() {
	if e.exists {
		*e = entry{key: e.key, delayed: e.delayed, exact: e.exact, created: e.created} // which stays if it is written again at once
		e.touch()
	}
}

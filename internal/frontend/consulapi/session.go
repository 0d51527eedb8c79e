package consulapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/platform/share"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of sessions, those of Consul, and of those without a time to live.
const (
	minTTL       = 10 * time.Second
	maxTTL       = 24 * time.Hour
	defaultDelay = 15 * time.Second
	maxDelay     = time.Minute
	leastDelay   = 100 * time.Millisecond // a shorter one means none, and is none
	maxName      = 128                    // bytes: the record of a session stands in the name of its lease

	lastingTTL = time.Minute // of the lease of a session without a time to live
	renewEvery = 15 * time.Second
	maxLasting = coord.MaxKeepAlive / 2 // sessions without a time to live, at this peer
)

// sessionID is the id of a session in the form of a UUID, and says all that a change of a key needs to know of the session:
// 8 bytes are the id of its lease, an even number; the next one names its behavior, and the last 6 are its lock delay in milliseconds.
// The lease after its own one, if there is a delay, holds the marks of the delay.
type sessionID [16]byte

// newSession chooses an id.
func newSession(deletes bool, delay time.Duration) (id sessionID) {
	_, _ = rand.Read(id[:8]) // never fails
	id[0] &= 0x7f
	id[0] |= 0x40 // positive, and no small number
	id[7] &^= 1
	binary.BigEndian.PutUint64(id[8:], uint64(delay.Milliseconds()))
	id[8] = 0x80
	if deletes {
		id[8] |= 1
	}
	return id
}

// parseSession reads an id; zero for a text that is none.
func parseSession(text string) (id sessionID) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != len(id) {
		return sessionID{}
	}
	copy(id[:], b)
	if id.String() != text || id[8]&^1 != 0x80 || id[0]&0x80 != 0 || id[7]&1 != 0 {
		return sessionID{}
	}
	return id
}

// String returns the form of a UUID, and nothing for no session.
func (id sessionID) String() string {
	if id == (sessionID{}) {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func (id sessionID) lease() coord.LeaseID      { return coord.LeaseID(binary.BigEndian.Uint64(id[:8])) }
func (id sessionID) delayLease() coord.LeaseID { return id.lease() + 1 }
func (id sessionID) deletes() bool             { return id[8]&1 != 0 }
func (id sessionID) delay() time.Duration {
	return time.Duration(binary.BigEndian.Uint64(id[8:])&(1<<48-1)) * time.Millisecond
}

// errSession is the error of Consul for an id without a session.
func errSession(id string) error { return fmt.Errorf("invalid session %q", id) }

var errMissing = fault.New("", fault.Invalid, "missing session")

var errNoSession = errors.New("invalid session: it has ended, or is another caller's")

// sessionError turns the refusal of a lease into that of its session.
func sessionError(err error) error {
	if kind := fault.KindOf(err); strings.HasSuffix(fault.FieldOf(err), "lease") && (kind == fault.NotFound || kind == fault.Forbidden || kind == fault.Gone) {
		return errNoSession
	}
	return err
}

// session is a session in the JSON of Consul.
type session struct {
	ID            string
	Name          string
	Node          string
	LockDelay     time.Duration // nanoseconds
	Behavior      string
	TTL           string
	NodeChecks    []string
	ServiceChecks []string
	CreateIndex   uint64
	ModifyIndex   uint64
}

// record is the name of a session's lease: time to live, node, delay and behavior as in the id, name. Leases of delays have another.
const (
	recordMark = "consul-session "
	delayMark  = "consul-delay"
)

func (s *session) record(id sessionID) string {
	return recordMark + strings.Join([]string{hex.EncodeToString(id[8:]), cmp.Or(s.TTL, "-"), s.Node, s.Name}, " ")
}

// sessionOf reads the session of a lease; nil: it is none.
func sessionOf(l *apiv1.LeaseState) *session {
	text, ok := strings.CutPrefix(l.GetApplication(), recordMark)
	parts := strings.SplitN(text, " ", 4)
	if !ok || len(parts) < 4 || len(parts[0]) != 16 || l.GetId() <= 0 {
		return nil
	}
	var id sessionID
	binary.BigEndian.PutUint64(id[:8], uint64(l.GetId()))
	if _, err := hex.Decode(id[8:], []byte(parts[0])); err != nil || parseSession(id.String()) != id {
		return nil
	}
	if _, err := time.ParseDuration(parts[1]); err != nil && parts[1] != "-" {
		return nil
	}
	s := &session{
		ID: id.String(), Name: parts[3], Node: parts[2], LockDelay: id.delay(), Behavior: "release", TTL: strings.Trim(parts[1], "-"),
		NodeChecks: []string{nodeCheck}, ServiceChecks: []string{}, CreateIndex: max(l.GetGranted(), 1), ModifyIndex: max(l.GetGranted(), 1),
	}
	if id.deletes() {
		s.Behavior = "delete"
	}
	return s
}

// nodeCheck is the check of every node: its peer lives.
const nodeCheck = "serfHealth"

// duration reads a duration as Consul does: a text, or a number of nanoseconds, which below 1000 are seconds.
type duration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *duration) UnmarshalJSON(text []byte) (err error) {
	var v time.Duration
	if n, numeric := strconv.ParseInt(string(text), 10, 64); numeric == nil {
		if v = time.Duration(n); n < 1000 {
			v *= time.Second
		}
	} else if word := strings.Trim(string(text), `"`); word != "" {
		v, err = time.ParseDuration(word)
	}
	if *d = duration(v); err != nil || v < 0 {
		return fault.Invalidf("body", string(text), "has the invalid duration %s: it must be such as 10s", text)
	}
	return nil
}

// wanted is a request for a session.
type wanted struct {
	Name, Node, Behavior, TTL string
	LockDelay                 *duration
	Checks, NodeChecks        []string
	ServiceChecks             []json.RawMessage
	ID                        string
	scope
}

// session checks a request as Consul does.
func (w *wanted) session(peer string) (s session, id sessionID, ttl time.Duration, err error) {
	delay := defaultDelay
	if w.LockDelay != nil {
		if delay = min(time.Duration(*w.LockDelay), maxDelay); 0 < delay && delay < leastDelay {
			delay = 0
		}
	}
	refuse := func(field string, value any, text string, args ...any) (session, sessionID, time.Duration, error) {
		return session{}, sessionID{}, 0, fault.Invalidf(field, value, text, args...)
	}
	if w.TTL != "" && w.TTL != "0s" {
		if ttl, err = time.ParseDuration(w.TTL); err != nil || ttl < minTTL || ttl > maxTTL {
			return refuse("TTL", w.TTL, "must be from %v to 24h", minTTL)
		}
		ttl = min(ttl, maxTTL-delay) // that of the lease of the delay ends as late as a lease can
	}
	switch {
	case w.Behavior != "" && w.Behavior != "release" && w.Behavior != "delete":
		return refuse("Behavior", w.Behavior, "must be release or delete")
	case w.Node != "" && w.Node != peer:
		return refuse("Node", w.Node, "must be this peer's: ask the peer whose node it is")
	case w.ID != "":
		return refuse("ID", w.ID, "is chosen by the group: leave it out")
	case len(w.Name) > maxName || strings.ContainsFunc(w.Name, func(c rune) bool { return c < ' ' }):
		return refuse("Name", nil, "must be one line of at most %d bytes", maxName)
	case len(w.ServiceChecks) > 0:
		return refuse("ServiceChecks", nil, "is not supported here: a session lives as long as it is renewed, or as its node")
	}
	for _, check := range append(w.Checks, w.NodeChecks...) {
		if check != nodeCheck {
			return refuse("Checks", check, "can only be %s: a session lives as long as it is renewed, or as its node", nodeCheck)
		}
	}
	id = newSession(w.Behavior == "delete", delay)
	s = session{Name: w.Name, Node: peer}
	if ttl > 0 {
		s.TTL = w.TTL
	}
	return s, id, cmp.Or(ttl, lastingTTL), nil
}

// createSession grants the leases of a session.
func (s *Server) createSession(r *request) error {
	var w wanted
	if err := s.object(r, &w); err != nil {
		return err
	}
	err := r.none(w.scope)
	if err != nil {
		return err
	}
	made, id, ttl, err := w.session(s.Peer)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(r)
	defer cancel()
	owner, err := s.Owner(ctx)
	if err != nil {
		return err
	}
	if id.delay() > 0 { // first: a session without it would have no delay
		if err := s.grant(ctx, id.delayLease(), ttl+id.delay(), delayMark); err != nil {
			return err
		}
	}
	err = s.grant(ctx, id.lease(), ttl, made.record(id))
	if err == nil && made.TTL == "" {
		if err = s.lasting.add(id.lease(), owner); err != nil {
			s.revoke(ctx, id.lease())
		}
	}
	if err != nil {
		s.revoke(ctx, id.delayLease())
		return err
	}
	return s.answer(r, 1, struct{ ID string }{id.String()})
}

func (s *Server) grant(ctx context.Context, id coord.LeaseID, ttl time.Duration, name string) error {
	_, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseGrantRequest{Id: int64(id), TtlMs: ttl.Milliseconds(), Application: name}))
	return err
}

// revoke ends a lease that may have ended. Otherwise it ends by itself, later.
func (s *Server) revoke(ctx context.Context, id coord.LeaseID) {
	_, _ = s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseRevokeRequest{Id: int64(id)}))
}

// destroySession ends a session. The lock delay of the keys that it held begins now.
func (s *Server) destroySession(r *request) error {
	id := parseSession(r.PathValue("id"))
	if id == (sessionID{}) {
		return s.answer(r, 1, true) // as in Consul
	}
	ctx, cancel := bounded(r)
	defer cancel()
	_, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseRevokeRequest{Id: int64(id.lease())}))
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	if err == nil {
		s.lasting.drop(id.lease())
	}
	if err == nil && id.delay() > 0 {
		if err := s.delayFromNow(ctx, id); err != nil {
			s.Logger.Debug("a lock delay lasts longer", "error", err) // until the lease of the delay ends by itself
		}
	}
	return s.answer(r, 1, true)
}

// delayFromNow puts the marks of a session's lock delay under a lease that ends after the delay.
func (s *Server) delayFromNow(ctx context.Context, id sessionID) error {
	l, err := s.lease(ctx, id.delayLease())
	if err != nil {
		return err
	}
	if keys := l.GetKeys(); len(keys) > 0 {
		fresh := newSession(false, 0).delayLease()
		if err := s.grant(ctx, fresh, id.delay(), delayMark); err != nil {
			return err
		}
		steps := make([]*apiv1.TxnStep, len(keys))
		for n, key := range keys {
			steps[n] = coord.PutStep(key, nil, fresh) // nobody else may take it away: the delay runs
		}
		if _, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.TxnRequest{Then: steps})); err != nil {
			return err
		}
	}
	s.revoke(ctx, id.delayLease())
	return nil
}

func (s *Server) lease(ctx context.Context, id coord.LeaseID) (*apiv1.LeaseState, error) {
	a, err := s.Service.Read(ctx, coord.QuestionOf("", &apiv1.LeaseTimeToLiveRequest{Id: int64(id)}))
	return a.GetLeaseTimeToLive().GetLease(), err
}

// renewSession gives a session its whole time to live again.
func (s *Server) renewSession(r *request) error {
	id := parseSession(r.PathValue("id"))
	ctx, cancel := bounded(r)
	defer cancel()
	if id != (sessionID{}) {
		a, err := s.Service.Execute(ctx, coord.CommandOf("", &apiv1.LeaseKeepAliveRequest{Id: int64(id.lease()), Ids: []int64{int64(id.delayLease())}}))
		if err != nil {
			return err
		}
		if a.GetKeepAlive().GetTtlMs() == 0 {
			id = sessionID{}
		}
	}
	if id != (sessionID{}) {
		l, err := s.lease(ctx, id.lease())
		if err == nil {
			return s.answer(r, 1, []*session{sessionOf(l)})
		}
		if fault.KindOf(err) != fault.NotFound {
			return err
		}
	}
	return fault.New("", fault.NotFound, "Session id '%s' not found", r.PathValue("id"))
}

// sessionInfo answers a list with the session, or with none.
func (s *Server) sessionInfo(r *request) error {
	list := []*session{}
	if id := parseSession(r.PathValue("id")); id != (sessionID{}) {
		ctx, cancel := bounded(r)
		defer cancel()
		l, err := s.lease(ctx, id.lease())
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return err
		}
		if one := sessionOf(l); one != nil && one.ID == id.String() {
			list = append(list, one)
		}
	}
	return s.answer(r, 1, list)
}

// listSessions answers the sessions that the caller may use: those of its name, or without a name those of all callers of this front without one.
func (s *Server) listSessions(r *request) error {
	ctx, cancel := bounded(r)
	defer cancel()
	return s.render(r, 1, pageBytes, func() (any, error) { return s.sessions(ctx, r.PathValue("node")) })
}

// sessions lists those of a node, or of all.
func (s *Server) sessions(ctx context.Context, node string) (list []*session, err error) {
	list = []*session{}
	err = leases(ctx, s.Service, "", func(l *apiv1.LeaseState) {
		if one := sessionOf(l); one != nil && (node == "" || one.Node == node) {
			list = append(list, one)
		}
	})
	return list, err
}

// leases calls f with all leases that an owner may use.
func leases(ctx context.Context, plane coord.Service, owner string, f func(*apiv1.LeaseState)) error {
	for after := uint64(0); ; {
		a, err := plane.Read(ctx, coord.QuestionOf(owner, &apiv1.ListLeasesRequest{After: after}))
		if err != nil || len(a.GetListLeases().GetLeases()) == 0 {
			return err
		}
		for _, l := range a.GetListLeases().GetLeases() {
			after = l.GetGranted()
			f(l)
		}
	}
}

// lasting keeps the sessions of this peer's node that have no time to live: the peer renews them for their owners.
// They live as long as the node. Each owner has a share of them.
type lasting struct {
	plane coord.Service
	peer  string

	mu     sync.Mutex
	owners map[coord.LeaseID]string // nil before the group told those of an earlier run
}

func (k *lasting) add(id coord.LeaseID, owner string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !hasRoom(k.owners, owner) {
		return fault.New("", fault.LimitReached, "this peer keeps %d of %d sessions without a TTL, and the rest is for others: give sessions a TTL", len(k.owners), maxLasting)
	}
	if k.owners == nil {
		return fault.New("", fault.Unavailable, "this peer does not know its sessions yet: try again, or give the session a TTL")
	}
	k.owners[id] = owner
	return nil
}

// hasRoom reports whether an owner may have one more of the sessions without a TTL.
func hasRoom(owners map[coord.LeaseID]string, owner string) bool {
	own := uint64(0)
	for _, of := range owners {
		if of == owner {
			own++
		}
	}
	return share.Fits(own, 1, uint64(max(maxLasting-len(owners), 0)))
}

func (k *lasting) drop(id coord.LeaseID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.owners, id)
}

// renew renews all, in one call for each owner, and forgets those that have ended.
func (k *lasting) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := k.recall(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	of := map[string][]int64{}
	for id, owner := range k.owners {
		of[owner] = append(of[owner], int64(id), int64(id)+1)
	}
	k.mu.Unlock()
	var failed atomic.Pointer[error] // of one owner: the others' sessions go on
	together(maps.Keys(of), func(owner string) {
		ids := of[owner]
		a, err := k.plane.Execute(ctx, coord.CommandOf(owner, &apiv1.LeaseKeepAliveRequest{Id: ids[0], Ids: ids[1:]}))
		if err != nil {
			failed.Store(&err)
			return
		}
		for n, left := range append([]int64{a.GetKeepAlive().GetTtlMs()}, a.GetKeepAlive().GetTtlsMs()...) {
			if n%2 == 0 && left == 0 {
				k.drop(coord.LeaseID(ids[n]))
			}
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// recall finds the sessions of an earlier run of this peer, once. Callers of other fronts may give their leases the
// same name: those of nobody here are left alone.
func (k *lasting) recall(ctx context.Context) error {
	k.mu.Lock()
	known := k.owners != nil
	k.mu.Unlock()
	if known {
		return nil
	}
	found := map[coord.LeaseID]string{}
	err := leases(ctx, k.plane, coord.Everybody, func(l *apiv1.LeaseState) {
		one, owner := sessionOf(l), l.GetClientId()
		if one == nil || one.Node != k.peer || one.TTL != "" || !principals.IsNamed(owner) && owner != principals.OfFront(Front, k.peer) {
			return
		}
		if hasRoom(found, owner) {
			found[coord.LeaseID(l.GetId())] = owner
		}
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owners = found
	return nil
}

package offers

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const modelServices = 3

// model is the specification of a registry: a map.
type model struct {
	live map[string]modelService

	// seen has all versions that left a registry. One sequence of one service always has one digest. A new
	// version has a higher sequence than all before.
	seen map[version][32]byte
	last map[string]uint64

	// handedOut has the end of each version's ack timeout. The scheduler's tests cover clocks that are set
	// back.
	handedOut map[version]time.Time
}

type modelService struct {
	offer   records.Offer
	created time.Time
	current *records.Record
}

func newModel() *model {
	return &model{
		live:      map[string]modelService{},
		seen:      map[version][32]byte{},
		last:      map[string]uint64{},
		handedOut: map[version]time.Time{},
	}
}

// see checks a version from the registry.
func (m *model) see(t require.TestingT, r *records.Record) {
	v := versionOf(r)
	if digest, ok := m.seen[v]; ok {
		require.Equal(t, digest, r.Digest(), "%v: one sequence, two contents", v)
		return
	}
	m.seen[v] = r.Digest()
	m.last[v.id] = max(m.last[v.id], v.sequence)
}

// fresh checks a version that must be newer than all seen ones.
func (m *model) fresh(t require.TestingT, r *records.Record) {
	require.Greater(t, r.Sequence(), m.last[r.Name().ID], "the sequence of %s went back", r.Name().ID)
	m.see(t, r)
}

// made checks a version from Register, Update or Withdraw.
func (m *model) made(t require.TestingT, r *records.Record, now time.Time) {
	m.fresh(t, r)
	m.handedOut[versionOf(r)] = now.Add(ackTimeout)
}

// free ends the ack timeout of a version that Due returned or replaced.
func (m *model) free(t require.TestingT, r *records.Record, now time.Time) {
	require.False(t, now.Before(m.handedOut[versionOf(r)]), "%v is announced by its maker", versionOf(r))
	delete(m.handedOut, versionOf(r))
}

// system is a registry with its model, crashes and a jumping clock.
type system struct {
	config   Config
	fs       *vfs.MemFS
	registry *Registry
	model    *model
	now      time.Time
}

func (s *system) open(t require.TestingT) {
	var err error
	s.config.FS = s.fs
	s.registry, err = Open(s.config, s.now)
	require.NoError(t, err)
	clear(s.model.handedOut)
	for v, task := range s.registry.scheduler.tasks {
		require.False(t, task.due.After(s.now), "%v is not due at once", v)
	}
}

func drawOffer(t *rapid.T) records.Offer {
	o := offer(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "id"))
	o.Metadata.Version = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
	o.Metadata.Type = rapid.SampledFrom([]string{"relay", "relay", "relay", "proxy", "Not Valid"}).Draw(t, "type")
	switch rapid.IntRange(0, 3).Draw(t, "place") {
	case 1:
		return at(o, 52.52, 13.40)
	case 2:
		return at(o, 52.53, 13.41)
	case 3:
		return at(o, 48.85, 2.35)
	}
	return o
}

func (s *system) register(t *rapid.T) {
	offers := rapid.SliceOfN(rapid.Custom(drawOffer), 0, 4).Draw(t, "offers")
	accepted, errs := s.registry.Register(offers, s.now)
	for i, o := range offers {
		var want error
		switch _, exists := s.model.live[o.ID]; {
		case exists:
			want = fault.Exists
		case len(s.model.live) >= modelServices:
			want = fault.LimitReached
		case o.Metadata.Type == "Not Valid":
			want = fault.Invalid
		}
		require.ErrorIs(t, errs[i], want)
		if want == nil {
			s.model.made(t, accepted[i], s.now)
			s.model.live[o.ID] = modelService{o, s.now, accepted[i]}
		}
	}
}

func (s *system) update(t *rapid.T) {
	o := drawOffer(t)
	r, err := s.registry.Update(o, s.now)
	was, exists := s.model.live[o.ID]
	switch {
	case !exists:
		require.ErrorIs(t, err, fault.NotFound)
	case o.Metadata.Type == "Not Valid":
		require.ErrorIs(t, err, fault.Invalid)
	default:
		require.NoError(t, err)
		s.model.made(t, r, s.now)
		s.model.live[o.ID] = modelService{o, was.created, r}
	}
}

func (s *system) withdraw(t *rapid.T) {
	id := drawOffer(t).ID
	r, err := s.registry.Withdraw(id, s.now)
	was, exists := s.model.live[id]
	if !exists {
		require.ErrorIs(t, err, fault.NotFound)
		return
	}
	require.NoError(t, err)
	require.True(t, r.Withdrawn())
	require.False(t, r.Expires().Before(was.current.Expires()))
	s.model.made(t, r, s.now)
	delete(s.model.live, id)
}

// report reports the outcome of new versions, in time or after Due may have returned them again. It is less
// than a day late: later, a retry would concern a lapsed version.
func (s *system) report(t *rapid.T) {
	made := slices.SortedFunc(maps.Keys(s.model.handedOut), func(a, b version) int {
		return cmp.Or(strings.Compare(a.id, b.id), cmp.Compare(a.sequence, b.sequence))
	})
	made = slices.DeleteFunc(made, func(v version) bool { return s.now.After(s.model.handedOut[v].Add(time.Hour)) })
	if len(made) == 0 {
		t.Skip("nothing is handed out")
	}
	v, on := rapid.SampledFrom(made).Draw(t, "made"), rapid.IntRange(0, 2).Draw(t, "on")
	s.registry.Announced(records.Name{Provider: s.registry.self, ID: v.id}, v.sequence, records.Stored{On: on, Of: 2}, s.now)
	delete(s.model.handedOut, v)
	next, ok := s.registry.NextDue()
	require.True(t, ok)
	if on < 2 {
		require.False(t, next.After(s.now.Add(backoffMin)), "its first retry is soon")
	}
}

// announce fetches due versions and reports some outcomes.
func (s *system) announce(t *rapid.T) {
	limit := rapid.IntRange(0, 12).Draw(t, "limit")
	due := s.registry.Due(s.now, limit)
	require.LessOrEqual(t, len(due), limit)
	for _, r := range due {
		require.False(t, r.Expired(s.now))
		id := r.Name().ID
		if was, ok := s.model.live[id]; ok && !r.Withdrawn() {
			if r.Sequence() != was.current.Sequence() {
				s.model.free(t, was.current, s.now)
				s.model.fresh(t, r)
				was.current = r
				s.model.live[id] = was
			}
			require.Equal(t, was.current.Digest(), r.Digest(), "only the newest version is announced")
		} else {
			require.True(t, r.Withdrawn(), "a withdrawn service is not announced")
		}
		s.model.see(t, r)
		s.model.free(t, r, s.now)
		s.registry.Announced(r.Name(), r.Sequence(), records.Stored{On: rapid.IntRange(0, 2).Draw(t, "on"), Of: 2}, s.now)
	}
	next, ok := s.registry.NextDue()
	behind := s.registry.scheduler.lastNow.After(s.now) // a small step back of the clock delays due versions
	if rest := ok && !next.After(s.now); rest || behind {
		return
	}
	for _, r := range s.registry.List() {
		_, err := records.Open("test", r.Envelope(), s.now)
		require.NoError(t, err, "with no due version, peers accept all live versions")
	}
}

func (s *system) restart(t *rapid.T) {
	require.NoError(t, s.registry.Close())
	s.open(t)
}

// crash loses all or some unsynced data.
func (s *system) crash(t *rapid.T) {
	after := s.fs.CrashClone(vfs.CrashCloneCfg{
		UnsyncedDataPercent: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "unsynced kept"),
		RNG:                 rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)),
	})
	require.NoError(t, s.registry.Close())
	s.fs = after
	s.open(t)
}

func (s *system) check(t *rapid.T) {
	list := s.registry.List()
	require.Len(t, list, len(s.model.live))
	require.Equal(t, len(list), s.registry.Len())
	require.True(t, slices.IsSortedFunc(list, func(a, b *records.Record) int { return strings.Compare(a.Name().ID, b.Name().ID) }))
	versions := 0
	for _, r := range list {
		id := r.Name().ID
		want, ok := s.model.live[id]
		require.True(t, ok)
		// A refresh that Due made but did not return is newer than all seen versions.
		require.GreaterOrEqual(t, r.Sequence(), want.current.Sequence())
		s.model.see(t, r)
		o, ok := s.registry.Offer(id)
		require.True(t, ok)
		require.Equal(t, want.offer, o)
		wantCreated := want.created
		if wantCreated.After(r.Issued()) {
			wantCreated = r.Issued()
		}
		require.Equal(t, wantCreated, created(r))
	}
	for _, service := range s.registry.services {
		versions += len(service.versions())
	}
	require.Len(t, s.registry.scheduler.tasks, versions, "every version is scheduled, and nothing else")
	require.Equal(t, versions, s.registry.scheduler.queue.Len())
	s.checkHandedOut(t)
}

// checkHandedOut: each existing version is due again in the end.
func (s *system) checkHandedOut(t *rapid.T) {
	next, ok := s.registry.NextDue()
	for v, until := range s.model.handedOut {
		if s.registry.services[v.id].version(v.sequence) == nil {
			delete(s.model.handedOut, v) // superseded
			continue
		}
		require.True(t, ok)
		require.False(t, next.After(until), "%v is handedOut until %v, next is %v", v, until, next)
	}
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := config(t, nil)
		c.MaxServices = modelServices
		s := &system{config: c, fs: vfs.NewCrashableMem(), model: newModel(), now: epoch()}
		s.open(t)
		defer func() { require.NoError(t, s.registry.Close()) }()
		t.Repeat(map[string]func(*rapid.T){
			"register": s.register,
			"update":   s.update,
			"withdraw": s.withdraw,
			"report":   s.report,
			"announce": s.announce,
			"restart":  s.restart,
			"crash":    s.crash,
			"wait":     func(t *rapid.T) { s.now = s.now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "s")) * time.Second) },
			"sleep":    func(t *rapid.T) { s.now = s.now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "h")) * time.Hour) },
			"set back": func(t *rapid.T) {
				s.now = s.now.Add(-time.Duration(rapid.IntRange(1, 5000).Draw(t, "min")) * time.Minute)
				clear(s.model.handedOut)
			},
			"": s.check,
		})
	})
}

package registry

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// dumb is an instance in a simple registry that examines all instances all the
// time.
type dumb struct {
	spec     instance.Spec
	lease    string
	since    time.Time // of its registration
	override instance.Status
	check    instance.Status
	starting bool
	heard    bool
	beaten   bool      // by a heartbeat since its last change
	quiet    time.Time // start of its silence
	status   instance.Status
}

func (d *dumb) beat(now time.Time) {
	d.heard, d.quiet = true, now
	if d.spec.Check == nil {
		d.starting = false
	}
}

// stays reports whether no silence removes it.
func (d *dumb) stays() bool {
	return d.spec.RemoveAfter == instance.Never || d.spec.Lasting && !d.beaten
}

func (d *dumb) look(now time.Time) {
	quiet := now.Sub(d.quiet) >= d.spec.UnhealthyAfter
	d.status = instance.StatusUp
	if d.spec.Check != nil {
		d.status = d.check
	} else if !d.heard {
		d.status = instance.StatusUnknown
	}
	if d.starting {
		d.status = instance.StatusStarting
	}
	if quiet && (d.status != instance.StatusDown) {
		d.status = instance.StatusUnhealthy
	}
	if d.override != instance.StatusUnknown {
		d.status = d.override
	}
}

// model runs a registry beside the simple one.
type model struct {
	config   Config
	r        *Registry
	f        *follower
	now      time.Time
	dumb     map[string]*dumb
	gone     map[string]time.Time // by lease
	restarts int
}

const modelMax = 4

func newModel(t *rapid.T) *model {
	m := &model{config: config(vfs.NewMem()), now: epoch(), dumb: make(map[string]*dumb), gone: make(map[string]time.Time)}
	m.config.MaxInstances = modelMax
	m.f = follow(t, &m.config)
	m.open(t)
	return m
}

func (m *model) open(t *rapid.T) {
	m.config.Random = rand.NewChaCha8([32]byte{byte(m.restarts)})
	var err error
	m.r, err = Open(m.config, m.now)
	require.NoError(t, err)
}

func drawID(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "id")
}

func (m *model) register(t *rapid.T) {
	id := drawID(t)
	reg := registration(id)
	if rapid.Bool().Draw(t, "checked") {
		reg = checked(id)
		reg.Spec.Check.Endpoint = rapid.SampledFrom([]string{"/", "/x"}).Draw(t, "endpoint")
	}
	reg.Spec.UnhealthyAfter = time.Duration(rapid.IntRange(1, 5).Draw(t, "unhealthy")) * time.Second
	reg.Spec.RemoveAfter = reg.Spec.UnhealthyAfter + time.Duration(rapid.IntRange(0, 5).Draw(t, "remove"))*time.Second
	switch rapid.IntRange(0, 5).Draw(t, "removal") {
	case 0:
		reg.Spec.RemoveAfter = instance.Never
	case 1, 2:
		reg.Spec.Lasting = true // counts with a check
	}
	reg.Strict = rapid.Float64().Draw(t, "strict") < 0.1
	if rapid.Bool().Draw(t, "starting") {
		reg.Status = instance.StatusStarting
	}
	out, err := m.r.Register(reg, m.now)
	require.NoError(t, reg.Normalize())
	d := m.dumb[id]
	switch {
	case d != nil && reg.Strict:
		require.ErrorIs(t, err, fault.Exists)
		return
	case d == nil && len(m.dumb) == modelMax:
		require.ErrorIs(t, err, fault.PoolExhausted)
		return
	}
	require.NoError(t, err)
	require.Equal(t, d == nil, out.Created)
	if d == nil {
		d = &dumb{lease: out.Lease, since: m.now}
		m.dumb[id] = d
		delete(m.gone, id)
	}
	d.beaten = d.beaten && d.spec.Equal(reg.Spec)
	same := d.spec.Check != nil && reg.Spec.Check != nil && *d.spec.Check == *reg.Spec.Check
	d.spec = reg.Spec
	d.beat(m.now)
	d.starting = reg.Status == instance.StatusStarting
	if !same || d.starting {
		d.check = instance.StatusUnknown
	}
	d.look(m.now)
}

func (m *model) deregister(t *rapid.T) {
	id := drawID(t)
	_, err := m.r.Deregister(registration(id).Key, m.now)
	if m.dumb[id] == nil {
		require.ErrorIs(t, err, fault.NotFound)
		return
	}
	require.NoError(t, err)
	m.bury(id)
}

func (m *model) bury(id string) {
	m.gone[m.dumb[id].lease], m.gone[id] = m.now, m.now
	delete(m.dumb, id)
}

func (m *model) heartbeat(t *rapid.T) {
	id := drawID(t)
	d := m.dumb[id]
	ref, buried := instances.Ref{Key: registration(id).Key}, m.gone[id]
	if d != nil && rapid.Bool().Draw(t, "by lease") {
		ref = instances.Ref{Lease: d.lease}
	}
	b := m.r.Heartbeat([]instances.Ref{ref}, m.now)[0]
	switch {
	case d != nil:
		require.NoError(t, b.Err)
		d.beat(m.now)
		d.beaten = true
		d.look(m.now)
		require.Equal(t, d.status, b.Status)
	case !buried.IsZero():
		require.ErrorIs(t, b.Err, fault.Gone)
		require.Equal(t, buried, fault.ValueOf(b.Err))
	default:
		require.ErrorIs(t, b.Err, fault.NotFound)
	}
}

func (m *model) report(t *rapid.T) {
	id := drawID(t)
	passing := rapid.Bool().Draw(t, "passing")
	found := rapid.SampledFrom([]instance.Status{instance.StatusUnknown, instance.StatusUp, instance.StatusDown}).Draw(t, "status")
	d := m.dumb[id]
	require.Equal(t, d != nil && d.spec.Check != nil, m.r.Report(registration(id).Key, passing, found, m.now))
	if d == nil || d.spec.Check == nil {
		return
	}
	if passing {
		d.beat(m.now)
	}
	if found != instance.StatusUnknown {
		d.check = found
	}
	if found == instance.StatusUp {
		d.starting = false
	}
	d.look(m.now)
}

func (m *model) setStatus(t *rapid.T) {
	id := drawID(t)
	s := instance.Status(rapid.IntRange(0, 4).Draw(t, "status"))
	i, err := m.r.SetStatus(registration(id).Key, s, m.now)
	d := m.dumb[id]
	if d == nil {
		require.ErrorIs(t, err, fault.NotFound)
		return
	}
	require.NoError(t, err)
	if s == instance.StatusUp {
		s = instance.StatusUnknown
	}
	if d.override != s {
		d.override = s
		d.look(m.now)
	}
	require.Equal(t, d.status, i.Status)
}

func (m *model) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 8000).Draw(t, "ms")) * time.Millisecond)
}

func (m *model) expire(t *rapid.T) {
	next := m.r.Expire(m.now)
	for id, d := range m.dumb {
		d.look(m.now)
		if !d.stays() && m.now.Sub(d.quiet) >= d.spec.RemoveAfter {
			m.bury(id)
		}
	}
	require.Equal(t, len(m.dumb) == 0, next.IsZero())
	for _, d := range m.dumb {
		due := d.quiet.Add(d.spec.UnhealthyAfter)
		if !due.After(m.now) {
			due = d.quiet.Add(d.spec.RemoveAfter)
		}
		require.False(t, next.After(due) && !d.stays(), "wakes in time")
		require.True(t, next.After(m.now), "does not spin")
	}
}

func (m *model) restart(t *rapid.T) {
	require.NoError(t, m.r.Close())
	m.restarts++
	_, last := m.r.All()
	m.open(t)
	clear(m.gone)
	for _, d := range m.dumb {
		d.heard, d.beaten, d.starting, d.check, d.quiet = false, false, false, instance.StatusUnknown, m.now
		d.look(m.now)
	}
	all, _ := m.r.All()
	clear(m.f.seen)
	for _, i := range all {
		require.Greater(t, i.Revision, last)
		last = i.Revision
		m.f.seen[i.Key] = i
	}
}

func (m *model) compare(t *rapid.T) {
	m.f.agrees(t, m.r)
	all, _ := m.r.All()
	require.True(t, slices.IsSortedFunc(all, func(a, b *instance.Instance) int { return strings.Compare(a.ID, b.ID) }))
	require.Len(t, all, len(m.dumb))
	for _, i := range all {
		d := m.dumb[i.ID]
		require.NotNil(t, d, i.ID)
		require.Equal(t, d.spec, i.Spec)
		require.Equal(t, d.lease, i.Lease)
		require.Equal(t, d.since, i.RegisteredAt)
		require.Equal(t, d.override, i.Override)
		require.Equal(t, d.status.String(), i.Status.String(), i.ID)
		heard, ok := m.r.LastBeat(i.Key)
		require.Equal(t, d.heard, ok)
		if ok {
			require.Equal(t, d.quiet, heard)
		}
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		defer func() { require.NoError(t, m.r.Close()) }()
		t.Repeat(map[string]func(*rapid.T){
			"":           m.compare,
			"register":   m.register,
			"register2":  m.register,
			"deregister": m.deregister,
			"heartbeat":  m.heartbeat,
			"report":     m.report,
			"setStatus":  m.setStatus,
			"pass":       m.pass,
			"pass2":      m.pass,
			"expire":     m.expire,
			"restart":    m.restart,
		})
	})
}

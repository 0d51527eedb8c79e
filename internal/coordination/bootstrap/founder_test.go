package bootstrap

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// street connects the founders of one bubble. Messages take 10 ms.
type street struct {
	mu    sync.Mutex
	doors map[peer.ID]*Founder
	cut   map[peer.ID]bool // unreachable
}

// post is the street from the view of one peer.
type post struct {
	street *street
	self   peer.ID
}

func (p post) Send(to peer.ID, m *groupv1.BootstrapMessage) {
	time.AfterFunc(10*time.Millisecond, func() {
		p.street.mu.Lock()
		door := p.street.doors[to]
		if p.street.cut[to] || p.street.cut[p.self] {
			door = nil
		}
		p.street.mu.Unlock()
		if door != nil {
			door.Deliver(p.self, m, false)
		}
	})
}

func (p post) ConnectedPeers() []peer.ID {
	p.street.mu.Lock()
	defer p.street.mu.Unlock()
	var all []peer.ID
	for id := range p.street.doors {
		all = append(all, id)
	}
	return all
}

func newStreet() *street {
	return &street{doors: make(map[peer.ID]*Founder), cut: make(map[peer.ID]bool)}
}

// options returns the options of the i-th peer on the given disk.
func (s *street) options(t testing.TB, c court, i int, fs vfs.FS) Options {
	store, err := OpenStore(fs, testPlace(), c.ids[i], c.network)
	require.NoError(t, err)
	return Options{
		Network: c.network, Key: c.keys[i], Store: store, RaftID: uint64(100 + i),
		Transport: post{s, c.ids[i]}, Rand: rand.New(rand.NewPCG(uint64(i), 3)), Now: time.Now,
	}
}

// move starts a founder. The returned function stops it and returns its error.
func (s *street) move(t testing.TB, o Options) (*Founder, func() error) {
	f, err := New(o)
	require.NoError(t, err)
	s.mu.Lock()
	s.doors[f.self] = f
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return f, func() error {
		cancel()
		s.mu.Lock()
		delete(s.doors, f.self)
		s.mu.Unlock()
		defer o.Store.Close()
		return <-done
	}
}

// within waits for a channel to close.
func within(t testing.TB, d time.Duration, closed <-chan struct{}) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(d):
		require.FailNow(t, "took too long")
	}
}

func TestFoundersFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCourt(t, 3), newStreet()
		var founders []*Founder
		for i := range 4 { // the fourth is not on the list
			f, stop := s.move(t, s.options(t, c, i, vfs.NewMem()))
			defer func() { require.NoError(t, stop()) }()
			founders = append(founders, f)
		}
		time.Sleep(time.Second)
		st := founders[0].Status()
		require.Equal(t, Settling, st.Phase)
		require.Equal(t, c.ids[:3], st.Visible)
		require.Equal(t, 2, st.Quorum)
		require.Equal(t, Searching, founders[3].Status().Phase)
		require.NotEmpty(t, founders[3].Status().Abstains)

		groups := make(map[GroupID]bool)
		for _, f := range founders {
			within(t, 30*time.Second, f.Founded())
			cert, ok := f.Certificate()
			require.True(t, ok)
			require.NoError(t, c.network.Verify(cert))
			require.Len(t, cert.Membership.Voters, 3)
			groups[cert.GroupID()] = true
			synctest.Wait()
			require.Equal(t, Done, f.Status().Phase)
			require.Zero(t, f.Status().Refused)
		}
		require.Len(t, groups, 1)
	})
}

func TestFounderRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCourt(t, 1), newStreet()
		fs := vfs.NewMem()
		f, stop := s.move(t, s.options(t, c, 0, fs))
		within(t, time.Second, f.Founded())
		first, _ := f.Certificate()
		require.NoError(t, stop())

		f, stop = s.move(t, s.options(t, c, 0, fs))
		within(t, time.Millisecond, f.Founded())
		second, _ := f.Certificate()
		require.Equal(t, first, second)

		// A late peer receives the certificate after the bootstrap.
		late, stopLate := s.move(t, s.options(t, c, 1, vfs.NewMem()))
		within(t, time.Minute, late.Founded())
		require.NoError(t, stopLate())
		require.NoError(t, stop())
	})
}

// TestLatecomerOfThree: two of three bootstrap without the third, which learns of the group later.
func TestLatecomerOfThree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCourt(t, 3), newStreet()
		s.cut[c.ids[0]] = true
		var founders []*Founder
		for i := range 3 {
			f, stop := s.move(t, s.options(t, c, i, vfs.NewMem()))
			defer func() { require.NoError(t, stop()) }()
			founders = append(founders, f)
		}
		within(t, time.Minute, founders[1].Founded())
		within(t, time.Minute, founders[2].Founded())
		cert, _ := founders[1].Certificate()
		require.Len(t, cert.Membership.Voters, 2)
		require.Equal(t, Gathering, founders[0].Status().Phase)

		s.mu.Lock()
		s.cut[c.ids[0]] = false
		s.mu.Unlock()
		within(t, 5*time.Second, founders[0].Founded())
		third, _ := founders[0].Certificate()
		require.Equal(t, cert.GroupID(), third.GroupID())
	})
}

func TestConflictIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCourt(t, 3), newStreet()
		second := c
		second.charter.Nonce[5] = 9
		ours, theirs := c.certificate(t, 0, 1), second.certificate(t, 1, 2)
		fs := vfs.NewMem()
		f, stop := s.move(t, s.options(t, c, 0, fs))
		require.ErrorIs(t, f.Offer([]byte("x"), false), fault.Invalid)
		require.NoError(t, f.Offer(ours.Encode(), false))
		require.NoError(t, f.Offer(theirs.Encode(), false))
		within(t, time.Second, f.Conflicted())
		require.NoError(t, stop())

		f, stop = s.move(t, s.options(t, c, 0, fs))
		within(t, time.Millisecond, f.Conflicted())
		r, ok := f.Conflict()
		require.True(t, ok)
		require.Equal(t, Conflict{ours, theirs}, r)
		require.NoError(t, stop())
	})
}

// TestDiskFailureEndsRun: no message leaves the peer after a failed write.
func TestDiskFailureEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newCourt(t, 3), newStreet()
		d := &disk{MemFS: vfs.NewCrashableMem()}
		heard := make(chan *groupv1.BootstrapMessage, 100)
		o := s.options(t, c, 1, d)
		o.Transport = listener(heard)
		f, stop := s.move(t, o)
		synctest.Wait()
		require.NotEmpty(t, heard, "hellos")
		for len(heard) > 0 {
			<-heard
		}
		d.failAt = 1
		f.Deliver(c.ids[0], encode(c.network.ID(), prepare{Ballot{Round: 1, Peer: c.ids[0]}}), false)
		synctest.Wait()
		require.ErrorIs(t, stop(), errDisk)
		require.Empty(t, heard)
	})
}

// listener records sent messages.
type listener chan *groupv1.BootstrapMessage

func (l listener) Send(_ peer.ID, m *groupv1.BootstrapMessage) { l <- m }
func (l listener) ConnectedPeers() []peer.ID                   { return nil }

// TestDeliverNeverBlocks floods a founder that does not run.
func TestDeliverNeverBlocks(t *testing.T) {
	c, s := newCourt(t, 3), newStreet()
	var logged bytes.Buffer
	o := s.options(t, c, 1, vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	f, err := New(o)
	require.NoError(t, err)
	for range 2 * inboxLength {
		f.Deliver(c.ids[0], encode(c.network.ID(), prepare{Ballot{Round: 1, Peer: c.ids[0]}}), false)
		f.Deliver(c.ids[1], encode(c.network.ID(), hello{}), false) // from itself
		f.Deliver(c.ids[2], encode(NetworkID{}, hello{}), false)
	}
	require.Len(t, f.inbox, inboxLength)
	require.EqualValues(t, 2*inboxLength, f.Status().Refused)
	require.Equal(t, 1, bytes.Count(logged.Bytes(), []byte("level=WARN")), "one warning for a peer")
	require.Contains(t, logged.String(), "ours is "+c.network.ID().String())
}

// TestOtherNetworks: peers that bootstrapped alone meet without a warning; a listed founder of another network
// is a configuration error.
func TestOtherNetworks(t *testing.T) {
	c, s := newCourt(t, 3), newStreet()
	var logged bytes.Buffer
	o := s.options(t, c, 0, vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	f, err := New(o)
	require.NoError(t, err)
	stranger := newCourt(t, 4).ids[3]
	f.Deliver(stranger, encode(NetworkID{1}, hello{}), false)
	require.Empty(t, logged.String())
	require.Zero(t, f.Status().Refused)
	require.Empty(t, f.inbox)
	f.Deliver(c.ids[1], encode(NetworkID{1}, hello{}), false)
	require.Contains(t, logged.String(), "level=WARN")
	require.EqualValues(t, 1, f.Status().Refused)
}

func TestOptionsRefused(t *testing.T) {
	c, s := newCourt(t, 3), newStreet()
	good := s.options(t, c, 1, vfs.NewMem())
	tests := map[string]func(*Options){
		"founders":  func(o *Options) { o.Network.Founders = nil },
		"key":       func(o *Options) { o.Key = nil },
		"voters":    func(o *Options) { o.Voters = 2 },
		"store":     func(o *Options) { o.Key = c.keys[0] },
		"messenger": func(o *Options) { o.Transport = nil },
		"rand":      func(o *Options) { o.Rand = nil },
		"now":       func(o *Options) { o.Now = nil },
	}
	for field, spoil := range tests {
		o := good
		spoil(&o)
		_, err := New(o)
		require.ErrorIs(t, err, fault.Invalid)
		require.Equal(t, field, fault.FieldOf(err))
	}
}

func TestSilence(t *testing.T) {
	c, s := newCourt(t, 3), newStreet()
	fs := vfs.NewMem()
	o := s.options(t, c, 1, fs)
	require.Empty(t, o.abstains(c.ids[1]))
	o.RaftID = 0
	require.Contains(t, o.abstains(c.ids[1]), "founds no group")
	require.NoError(t, o.Store.Close())
	require.NoError(t, fs.RemoveAll("/var"))
	require.Contains(t, s.options(t, c, 1, fs).abstains(c.ids[1]), "forgot")
	require.Contains(t, s.options(t, c, 3, vfs.NewMem()).abstains(c.ids[3]), "not among")
}

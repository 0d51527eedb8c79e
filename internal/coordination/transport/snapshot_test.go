package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// inMemory keeps the state of a snapshot in its Data.
type inMemory struct{}

func (inMemory) State(snap *raftpb.Snapshot) (io.ReadCloser, error) {
	state := snap.GetData()
	snap.Data = nil // it travels once
	return io.NopCloser(bytes.NewReader(state)), nil
}

func (inMemory) Write(snap *raftpb.Snapshot, state io.WriterTo) error {
	var b bytes.Buffer
	if _, err := state.WriteTo(&b); err != nil {
		return err
	}
	snap.Data = b.Bytes()
	return nil
}

// shelf is a Snapshots with room for one state.
type shelf struct {
	state []byte
	fail  error // at the end of Write
	delay time.Duration

	mu      sync.Mutex // guards all below
	written []byte
	failed  []error
	writing int // at once
	most    int
}

func (s *shelf) State(*raftpb.Snapshot) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(s.state)), nil
}

func (s *shelf) Write(_ *raftpb.Snapshot, state io.WriterTo) error {
	s.enter(1)
	defer s.enter(-1)
	var b bytes.Buffer
	_, err := state.WriteTo(&b)
	time.Sleep(s.delay)
	err = errors.Join(err, s.fail)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = append(s.failed, err)
		return err
	}
	s.written = b.Bytes()
	return nil
}

func (s *shelf) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing += n
	s.most = max(s.most, s.writing)
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// A state arrives whole, from memory or from a store, and both sides report it to Raft.
func TestSnapshotArrives(t *testing.T) {
	for name, size := range map[string]int{"empty": 0, "small": 10, "one chunk": chunkSize, "large": 3<<20 + 17} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				state := noise(size)
				shelves := []*shelf{{state: state}, {}, nil}
				w := newCluster(t, 3, func(i int, _ *member, c *Config) {
					if shelves[i] != nil {
						c.Snapshots = shelves[i]
					}
				})
				one := w.members[0]
				one.Send([]*raftpb.Message{snapshotOf(1, 2, []byte("members")), snapshotOf(1, 3, nil)})
				settle(10 * time.Second)
				require.Equal(t, []bool{true, true}, one.sent())
				require.True(t, bytes.Equal(state, shelves[1].written))
				got := w.members[1].take()
				require.Len(t, got, 1)
				require.Equal(t, uint64(9), got[0].GetSnapshot().GetMetadata().GetIndex())
				require.Equal(t, "members", string(got[0].GetSnapshot().GetData()))
				got = w.members[2].take()
				require.Len(t, got, 1)
				require.True(t, bytes.Equal(state, got[0].GetSnapshot().GetData()))

				w.members[2].Send([]*raftpb.Message{snapshotOf(3, 1, state)})
				settle(10 * time.Second)
				require.True(t, bytes.Equal(state, shelves[0].written))
			})
		})
	}
}

// Each failed snapshot is reported once, and not received.
func TestSnapshotFailures(t *testing.T) {
	large := noise(2 << 20)
	for name, tc := range map[string]struct {
		edit   func(i int, s *shelf, c *Config)
		before func(w *cluster)
		when   time.Duration // after it was sent, do after
		after  func(w *cluster)
	}{
		"too large for the receiver": {edit: func(i int, _ *shelf, c *Config) { c.Limits.MaxSnapshot = 1<<20 + int64(1-i)<<22 }},
		"too large for the sender":   {edit: func(i int, _ *shelf, c *Config) { c.Limits.MaxSnapshot = 1<<20 + int64(i)<<22 }},
		"the disk fails":             {edit: func(i int, s *shelf, _ *Config) { s.fail = errors.New("disk") }},
		"no member here":             {before: func(w *cluster) { w.group.set(2, "") }},
		"cut off":                    {after: func(w *cluster) { w.wire.cut.Store(true) }},
		"cut off in the middle":      {when: 100 * time.Millisecond, after: func(w *cluster) { w.wire.cut.Store(true) }},
		"removed in the middle": {when: 100 * time.Millisecond, after: func(w *cluster) {
			w.group.set(1, "")
			w.members[1].Recheck()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				shelves := []*shelf{{state: large}, {}}
				w := newCluster(t, 2, func(i int, _ *member, c *Config) {
					c.Snapshots = shelves[i]
					if tc.edit != nil {
						tc.edit(i, shelves[i], c)
					}
				})
				if tc.before != nil {
					tc.before(w)
				}
				w.members[0].Send([]*raftpb.Message{snapshotOf(1, 2, nil)})
				if tc.after != nil {
					time.Sleep(tc.when)
					tc.after(w)
				}
				settle(2 * time.Minute)
				require.Equal(t, []bool{false}, w.members[0].sent())
				require.Empty(t, w.members[1].take())
				require.Empty(t, shelves[1].written)
				require.Empty(t, w.members[1].inbound)
			})
		})
	}
}

// A second snapshot to the same member fails at once.
func TestOneSnapshotAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newCluster(t, 2, nil)
		w.members[0].Send([]*raftpb.Message{snapshotOf(1, 2, noise(1<<20)), snapshotOf(1, 2, nil)})
		settle(10 * time.Second)
		require.Equal(t, []bool{false, true}, w.members[0].sent())
		require.Equal(t, 1, w.members[0].counts.of("dropped.snapshot.busy"))
		require.Len(t, w.members[1].take(), 1)
	})
}

// Of two senders the later one wins, after the first has released the disk.
func TestLaterSnapshotWins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		disk := &shelf{delay: time.Second}
		w := newCluster(t, 3, func(i int, _ *member, c *Config) {
			if i == 1 {
				c.Snapshots = disk
			}
		})
		w.members[0].Send([]*raftpb.Message{snapshotOf(1, 2, noise(2<<20))})
		settle(100 * time.Millisecond)
		w.members[2].Send([]*raftpb.Message{snapshotOf(3, 2, []byte("later"))})
		settle(time.Minute)
		require.Equal(t, []bool{false}, w.members[0].sent())
		require.Equal(t, []bool{true}, w.members[2].sent())
		require.Equal(t, "later", string(disk.written))
		require.Len(t, disk.failed, 1)
		require.Equal(t, 1, disk.most)
	})
}

func snapshotLane(h *groupv1.MemberHello) { h.Kind = groupv1.StreamKind_STREAM_KIND_SNAPSHOT }

// An endless state is cut off by size, by time, and by stall.
func TestNeverEndingSnapshot(t *testing.T) {
	chunk := func(n int) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(n)), make([]byte, n)...) }
	for name, tc := range map[string]struct {
		chunk []byte
		pause time.Duration
		ends  time.Duration // about
	}{
		"a flood":   {chunk(chunkSize), 0, 3 * time.Second},
		"a trickle": {chunk(1), time.Second, time.Minute},
		"a stall":   {chunk(1), time.Hour, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				disk := new(shelf)
				w := newCluster(t, 2, func(_ int, _ *member, c *Config) {
					c.Snapshots, c.Limits.MaxSnapshot, c.Limits.SnapshotTime = disk, 8<<20, time.Minute
				})
				begin := time.Now()
				s := enter(t, w, snapshotLane)
				_, err := s.Write(frameOf(t, snapshotOf(1, 2, nil)))
				broken := make(chan struct{})
				go func() {
					defer close(broken)
					b, err := io.ReadAll(s)
					assert.Empty(t, b)
					assert.Error(t, err, "reset")
				}()
				for over := false; !over && err == nil; {
					_, err = s.Write(tc.chunk)
					select {
					case <-time.After(tc.pause):
					case <-broken:
						over = true
					}
				}
				<-broken
				require.InDelta(t, tc.ends.Seconds(), time.Since(begin).Seconds(), 2.5)
				settle(time.Second)
				require.Len(t, disk.failed, 1)
				require.Empty(t, w.members[1].take())
			})
		})
	}
}

// An unusable snapshot never reaches Raft.
func TestMalformedSnapshots(t *testing.T) {
	for name, m := range map[string]*raftpb.Message{
		"no snapshot":      message(raftpb.MsgSnap, 1, 2),
		"no configuration": func() *raftpb.Message { m := snapshotOf(1, 2, nil); m.Snapshot.Metadata.ConfState = nil; return m }(),
		"no index":         func() *raftpb.Message { m := snapshotOf(1, 2, nil); m.Snapshot.Metadata.Index = nil; return m }(),
		"not a snapshot":   message(raftpb.MsgHeartbeat, 1, 2),
		"from another":     snapshotOf(3, 2, nil),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				disk := new(shelf)
				w := newCluster(t, 2, func(_ int, _ *member, c *Config) { c.Snapshots = disk })
				s := enter(t, w, snapshotLane)
				_, err := s.Write(append(frameOf(t, m), 0, 0, 0, 0))
				require.NoError(t, err)
				ended(t, s)
				require.Equal(t, 1, w.members[1].counts.of("refused.message"))
				require.Empty(t, w.members[1].take())
				require.Nil(t, disk.written)
			})
		})
	}
}

// A stream without the end of the state is not a snapshot.
func TestTruncatedSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		disk := new(shelf)
		w := newCluster(t, 2, func(_ int, _ *member, c *Config) { c.Snapshots = disk })
		s := enter(t, w, snapshotLane)
		_, err := s.Write(append(frameOf(t, snapshotOf(1, 2, nil)), 0, 0, 0, 1, 'x'))
		require.NoError(t, err)
		require.NoError(t, s.CloseWrite())
		ended(t, s)
		require.Len(t, disk.failed, 1)
		require.ErrorIs(t, disk.failed[0], io.ErrUnexpectedEOF)
		require.Empty(t, w.members[1].take())
	})
}

// Package recent remembers what mattered at this peer within the last hour: the leader, the voters, conditions, ended
// instances, lost locks, offers, grants and lost peers. A note says what changed and why, and names neither leases nor
// principals, so everybody who may read the peer's state may read it.
package recent

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/platform/clean"
)

// Bounds of the memory. Where it is full, the kind of notes with most of it makes room: what strangers cause pushes
// nothing else out.
const (
	// MaxNotes is the number of notes that a peer remembers, the last ones.
	MaxNotes = 500
	maxBytes = 128 << 10 // of the notes' texts together
	maxText  = 400       // bytes of one text
	keep     = time.Hour
)

// Memory is a ring of notes. It is safe for concurrent use.
type Memory struct {
	now func() time.Time

	mu      sync.Mutex
	notes   []discovery.Note // oldest first, each later than the one before
	bytes   int
	shares  map[string]int // of the memory, by kind: see share
	led     bool           // a leader was seen; see LocksLost
	changed chan struct{}  // closed by the next note
}

// New returns an empty memory.
func New(now func() time.Time) *Memory {
	return &Memory{now: now, shares: map[string]int{}, changed: make(chan struct{})}
}

// Note remembers what changed.
func (m *Memory) Note(kind, subject, format string, args ...any) {
	m.NoteSince(time.Time{}, kind, subject, format, args...)
}

// NoteSince is Note for what happened at a time; zero: nobody knows when.
func (m *Memory) NoteSince(since time.Time, kind, subject, format string, args ...any) {
	n := discovery.Note{Kind: kind, Subject: clean.Text(subject, maxText), Text: clean.Text(fmt.Sprintf(format, args...), maxText)}
	m.mu.Lock()
	defer m.mu.Unlock()
	n.At = m.now().UTC()
	if last := len(m.notes) - 1; last >= 0 && !n.At.After(m.notes[last].At) {
		n.At = m.notes[last].At.Add(1) // a time is a position: readers continue after it
	}
	if !since.IsZero() && n.At.Sub(since) > every { // what the first look finds has one time
		n.Since = since.UTC()
	}
	m.notes = append(m.notes, n)
	m.bytes += size(n)
	m.shares[kind] += share(n)
	for n.At.Sub(m.notes[0].At) >= keep {
		m.drop(0)
	}
	for len(m.notes) > MaxNotes || m.bytes > maxBytes {
		most := kind
		for _, k := range slices.Sorted(maps.Keys(m.shares)) {
			if m.shares[k] > m.shares[most] {
				most = k
			}
		}
		m.drop(slices.IndexFunc(m.notes, func(n discovery.Note) bool { return n.Kind == most }))
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Memory) drop(at int) {
	n := m.notes[at]
	m.bytes -= size(n)
	m.shares[n.Kind] -= share(n)
	m.notes = slices.Delete(m.notes, at, at+1)
}

// Since returns the notes after a time, oldest first, at most of the last hour. The channel is closed by the next note.
func (m *Memory) Since(after time.Time) ([]discovery.Note, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if oldest := m.now().Add(-keep); after.Before(oldest) {
		after = oldest
	}
	first, _ := slices.BinarySearchFunc(m.notes, after, func(n discovery.Note, after time.Time) int {
		if n.At.After(after) {
			return 1
		}
		return -1
	})
	return slices.Clone(m.notes[first:]), m.changed
}

func size(n discovery.Note) int { return len(n.Kind) + len(n.Subject) + len(n.Text) }

// share is what a note takes of both bounds.
func share(n discovery.Note) int { return size(n) + maxBytes/MaxNotes }

// Package mirror has the command that copies keys or services from one system to another, one way: the way in from etcd, Consul
// and Kubernetes, and the way out. Both ends are named by what they speak, so this program's fronts are ends like the others.
//
// It compares states, not events: a round lists both ends, and puts or removes what differs. The next round begins when the
// source says that something changed, or after a time.
package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	maxEntries = 100_000          // of one end
	maxBytes   = 256 << 20        // of the values of one end
	roundTime  = 5 * time.Minute  // of one round
	retryFirst = time.Second      // after a failed round; twice as long after the next
	retryMost  = 30 * time.Second // between failed rounds
)

// entry is one key or service.
type entry struct {
	value  []byte // of a key; the form of a service that all ends share
	flags  uint64 // of a key of Consul
	bound  bool   // to a lease or session of its holder: it would outlive that one elsewhere
	status string // of a service; it is no part of what makes entries equal, because each round says it again
}

func (e entry) equals(o entry) bool { return e.flags == o.flags && bytes.Equal(e.value, o.value) }

// source is the end that is read.
type source interface {
	// list returns all entries and their version.
	list(ctx context.Context) (entries map[string]entry, version uint64, err error)
	// changed waits until entries may have changed since a version, or until ctx ends.
	changed(ctx context.Context, since uint64) error
	close()
}

// target is the end that is written.
type target interface {
	source
	// put writes an entry. same: the target has an equal one, which it renews if it lapses.
	put(ctx context.Context, name string, e entry, same bool) error
	remove(ctx context.Context, name string) error
}

// mirror copies from a source to a target.
type mirror struct {
	con      *term.Console
	from     source
	to       target
	every    time.Duration // at least between rounds, and at most while the source is silent
	prune    bool          // removes what the source lacks, whoever wrote it
	restless bool          // entries of the target lapse when nobody renews them, and it lists only what a mirror wrote

	copied map[string][sha256.Size]byte // written in this run and still listed, with the sums of their values
	last   result                       // without what was done
	failed bool
}

// result counts what a round found and did.
type result struct{ Entries, Copied, Removed, Kept, Bound int }

// run copies in rounds until ctx ends. With once it ends after the first one.
func (m *mirror) run(ctx context.Context, once bool) error {
	m.copied = make(map[string][sha256.Size]byte)
	wait := retryFirst
	for {
		version, err := m.round(ctx)
		switch {
		case ctx.Err() != nil:
			return fault.Wrap("", ctx.Err())
		case once:
			return err
		case err != nil:
			m.con.Say("the round failed, and is repeated in %v: %v", wait, err)
			m.failed = true
			if !pause.For(ctx, wait) {
				return fault.Wrap("", ctx.Err())
			}
			wait = min(2*wait, retryMost)
			continue
		}
		wait = retryFirst
		began := time.Now()
		silent, cancel := context.WithTimeout(ctx, m.every)
		if m.restless {
			<-silent.Done()
		} else if err := m.from.changed(silent, version); err != nil && silent.Err() == nil {
			m.con.Say("changes are looked for every %v, because the source does not tell them: %s", m.every, fault.Message(err))
		}
		cancel()
		pause.For(ctx, min(m.every, time.Second)-time.Since(began)) // a busy source costs at most a round a second
	}
}

// round makes the target equal to the source, and returns the version of the source. It removes what an earlier round wrote and the
// source has no more. What others wrote it removes only with prune, and nothing where the source is empty: an empty list is often a fault.
func (m *mirror) round(ctx context.Context) (version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	want, version, err := m.from.list(ctx)
	if err != nil {
		return 0, fault.In("--from", err)
	}
	have, _, err := m.to.list(ctx)
	if err != nil {
		return 0, fault.In("--to", err)
	}
	r := result{Entries: len(want)}
	maps.DeleteFunc(want, func(_ string, e entry) bool {
		if e.bound {
			r.Bound++
		}
		return e.bound
	})
	maps.DeleteFunc(m.copied, func(name string, _ [sha256.Size]byte) bool {
		_, listed := have[name]
		return !listed
	})
	var refused failures
	for _, name := range slices.Sorted(maps.Keys(want)) {
		e := want[name]
		old, ok := have[name]
		same := ok && old.equals(e)
		if same && !m.restless {
			m.copied[name] = sha256.Sum256(e.value)
			continue
		}
		if err := m.to.put(ctx, name, e, same); err != nil {
			if refused.add(name, err) {
				continue
			}
			return 0, refused.err()
		}
		if m.copied[name] = sha256.Sum256(e.value); !same {
			r.Copied++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; wanted {
			continue
		}
		sum, own := m.copied[name]
		own = own && sum == sha256.Sum256(have[name].value) // somebody else wrote it since
		if r.Entries == 0 || have[name].bound || !own && !m.restless && !m.prune {
			r.Kept++
			continue
		}
		if err := m.to.remove(ctx, name); err != nil {
			if refused.add(name, err) {
				continue
			}
			return 0, refused.err()
		}
		delete(m.copied, name)
		r.Removed++
	}
	m.say(r)
	return version, refused.err()
}

// failures are the entries that the target refused. The others are copied all the same.
type failures struct {
	n     int
	first error
}

// add counts a refused entry. It returns false after an error that all others would have, too.
func (f *failures) add(name string, err error) (goOn bool) {
	if f.n++; f.first == nil {
		f.first = fault.New("", fault.KindOf(err), "%s: %s", name, fault.Message(err))
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		return false
	}
	return true
}

func (f *failures) err() error {
	if f.n == 0 {
		return nil
	}
	return fault.New("--to", fault.KindOf(f.first), "refuses %d of them, the first is %w", f.n, f.first)
}

// say tells of a round that did something, or found another state than the last one.
func (m *mirror) say(r result) {
	state := result{Entries: r.Entries, Kept: r.Kept, Bound: r.Bound}
	if state == m.last && r.Copied+r.Removed == 0 && !m.failed {
		return
	}
	m.last, m.failed = state, false
	m.con.Say("%d at the source: %d copied, %d removed, %d left out because a lease or session ends them, %d more at the target",
		r.Entries, r.Copied, r.Removed, r.Bound, r.Kept)
	if r.Entries == 0 && r.Kept > 0 {
		m.con.Say("the source is empty, so nothing is removed: remove it by hand if that is meant")
	}
}

// fits refuses a list that takes too much memory.
func fits(n, size int) error {
	if n > maxEntries || size > maxBytes {
		return fault.New("", fault.LimitReached, "has more than %d entries or %d MiB: copy it in parts, with --prefix", maxEntries, maxBytes>>20)
	}
	return nil
}

package coordination

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/disk"
	"github.com/blackhole/blackhole/pkg/fault"
)

// goroutines owns the goroutines of a plane. None starts after the end, and Close waits for all.
type goroutines struct {
	context.Context
	cancel context.CancelFunc

	mu   sync.Mutex // guards additions to work, and the end of the context
	work sync.WaitGroup
}

func newGoroutines() *goroutines {
	l := new(goroutines)
	l.Context, l.cancel = context.WithCancel(context.Background())
	return l
}

// start runs work in a goroutine; false after the end.
func (l *goroutines) start(work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		return false
	}
	l.work.Go(work)
	return true
}

// end ends the context; work.Wait waits for the goroutines.
func (l *goroutines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel()
}

// failure keeps the errors that end this peer, or its member alone. It is safe for concurrent use.
type failure struct {
	config  Config
	full    func() // called once if the member stops at a full disk; nil: that is fatal where other errors are
	ended   sync.Once
	stopped atomic.Pointer[error]
}

// fatal reports the first error that ends the peer. A full disk stops the member alone.
func (f *failure) fatal(err error) {
	switch {
	case f.full != nil && disk.Full(err):
		f.stop(err)
	case err != nil:
		f.ended.Do(func() { f.config.Fatal(err) })
	}
}

// stop ends this peer's part as a member, after a disk error, for a damaged disk, or when its state contradicts the
// group's. Such a member must neither vote nor acknowledge anything. The peer goes on as a client of the other members.
// A member whose disk is full starts again from it once there is room, see Seat.awaitRoom; every other disk stays for
// the operator. It may be called from a goroutine of the member: plane.work closes the member.
//
// A program that cannot read the group's entries or its disk must end instead: another version can go on from there.
func (f *failure) stop(err error) {
	if fault.KindOf(err) == fault.Unsupported {
		f.fatal(err)
		return
	}
	again := f.full != nil && disk.Full(err)
	is := fault.ProblemOf(err)
	is.Effect = "this peer is no member of the group until its restart"
	switch {
	case again:
		is.What, is.Effect = "the disk of "+f.config.Dir+" is full: "+is.What, "this peer is no member of the group"
		is.Remedy = fmt.Sprintf("Make room: the member goes on by itself when %d MiB are free (`df -h %s`)", f.config.room()>>20, f.config.Dir)
		err = is.Err(fault.Unavailable, err)
	case is.Remedy == "":
		is.Remedy = "See member_stopped in docs/operations.md for this cause"
	}
	if err == nil || !f.stopped.CompareAndSwap(nil, &err) {
		return
	}
	f.config.Conditions.Raise(condition.MemberStopped, is)
	if again {
		f.full()
	}
}

// because returns the reason for which the member takes no part; empty if it does.
func (f *failure) because() string { return f.problem().What }

// problem is because with what helps.
func (f *failure) problem() fault.Problem {
	if err := f.stopped.Load(); err != nil {
		return fault.ProblemOf(*err)
	}
	return fault.Problem{}
}

package coordination

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/pkg/fault"
)

// failure keeps the errors that end this peer, or its member alone. It is safe for concurrent use.
type failure struct {
	config  Config
	ended   sync.Once
	stopped atomic.Pointer[error]
}

// fatal reports the first error that ends the peer.
func (f *failure) fatal(err error) {
	if err != nil {
		f.ended.Do(func() { f.config.Fatal(err) })
	}
}

// stop ends this peer's part as a member, after a disk error, for a damaged disk, or when its state contradicts the
// group's. Such a member must neither vote nor acknowledge anything. The peer goes on as a client of the other members,
// and its disk stays for the operator. It may be called from a goroutine of the member: see checkStopped.
//
// A program that cannot read the group's entries or its disk must end instead: another version can go on from there.
func (f *failure) stop(err error) {
	if fault.KindOf(err) == fault.Unsupported {
		f.fatal(err)
		return
	}
	if err == nil || !f.stopped.CompareAndSwap(nil, &err) {
		return
	}
	f.config.Logger.Error("this peer is no member of the coordination group until a restart", "error", err)
	f.config.Conditions.Raise(condition.MemberStopped, "this peer is no member of the coordination group until a restart: %v", err)
}

// because returns the reason for which the member takes no part; empty if it does.
func (f *failure) because() string {
	if err := f.stopped.Load(); err != nil {
		return (*err).Error()
	}
	return ""
}

// checkStopped closes a member that has stopped. A stalled disk may never answer, so this happens beside the caller.
func (l *local) checkStopped() bool {
	if l.plane.failed.because() == "" {
		return false
	}
	l.plane.life.start(l.retire) // during Close there is no need
	return true
}

// retire ends this member without a successor. The peer goes on as a client.
func (l *local) retire() {
	p := l.plane
	p.here.Store(nil)
	p.routing.Wake()
	ctx, cancel := context.WithCancel(p.life)
	cancel() // no member can take over
	if err := l.close(ctx); err != nil {
		p.config.Logger.Warn("closing the old group membership failed", "error", err)
	}
}

package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/coordination/member"
	"github.com/blackhole/blackhole/internal/coordination/pause"
	"github.com/blackhole/blackhole/internal/platform/condition"
)

const (
	measuring = 10 * time.Second // between two looks at the room for keys
	spaceLow  = 0.8              // share of it that begins the condition
	spaceFree = 0.75             // share that ends it
)

// WatchSpace keeps the condition space_low of a member until ctx ends. Its operator has time to act before writes fail.
func WatchSpace(ctx context.Context, at *member.Member, conditions *condition.Set) {
	defer conditions.Clear(condition.SpaceLow) // a client does not know
	for pause.For(ctx, measuring) {
		var s machine.Space
		at.View(func(m *machine.Machine) { s = machine.SpaceOf(m) })
		switch {
		case s.Used >= spaceLow:
			conditions.Raise(condition.SpaceLow, "the keys of the group use over %d %% of their room, and writes fail when it is full%s: "+
				"delete keys, or raise coordination.limits.keys and .bytes at the voters", int(spaceLow*100), largest(s))
		case s.Used < spaceFree:
			conditions.Clear(condition.SpaceLow)
		}
	}
}

// largest names the owner with the most bytes in keys without a lease.
func largest(s machine.Space) string {
	if s.Most == "" {
		return ""
	}
	return fmt.Sprintf("; most keys without a lease belong to %s", s.Most)
}

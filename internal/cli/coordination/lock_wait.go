package coordination

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
)

// tellAfter is the time that lock waits in silence.
const tellAfter = time.Second

// tellHolders writes once on standard error who holds a lock that this program waits for, after tellAfter. Without an
// answer it writes nothing: the call for the lock reports what is wrong. The returned function ends it, and waits for that.
func tellHolders(ctx context.Context, con *term.Console, c *client.Client, name string, own client.LeaseID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		silent := time.NewTimer(tellAfter)
		defer silent.Stop()
		select {
		case <-ctx.Done():
			return
		case <-silent.C:
		}
		states, _, err := c.Coordination().Locks(ctx, client.LockQuery{Name: name})
		if err == nil && len(states) == 1 {
			con.Say("waiting for the lock %s: %s", name, standing(states[0], own))
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// standing tells who holds a lock, for how long, and how many wait before a lease.
func standing(l client.LockState, own client.LeaseID) string {
	var holders []string
	for _, c := range l.Holding {
		who := term.OrDash(c.Holder)
		if c.Application != "" {
			who = c.Application + " of " + who
		}
		if since := Age(c.Age.Seconds()); since != "-" {
			who += " for " + since
		}
		holders = append(holders, who)
	}
	before := 0
	for before < len(l.Waiting) && l.Waiting[before].Lease != own {
		before++
	}
	text := "held by " + strings.Join(holders, ", ")
	if len(holders) == 0 {
		text = "nobody holds it"
	}
	switch before {
	case 0:
		return text + "; next in line"
	default:
		return fmt.Sprintf("%s; %d before this one", text, before)
	}
}

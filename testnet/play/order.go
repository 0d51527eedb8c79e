package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/network"
)

// verbs lists the orders to a running testnet.
func verbs() []string { return []string{"status", "load", "kill", "pause", "heal", "add"} }

const orderHelp = `Gives an order to the running testnet. PEER is peer-1, peer-2, ...

  status              what every peer knows and uses
  load [SECONDS]      questions to all peers without a pause (default 5 s)
  kill PEER...        SIGKILL, like a crash
  pause PEER...       SIGSTOP: connections stay open, and nothing answers
  heal [PEER...]      start killed peers again, and continue paused ones (default all)
  add                 start one more peer

The peers share one loopback, so no packets between two of them can be cut here:
pause is the nearest to a cut, seen from the others. The scenarios of
"testnet nemesis -scenario partition" and "testnet lab" cut real networks.

`

// parseOrder reads the flags and the arguments of an order.
func parseOrder(c call) (dir string, rest []string, err error) {
	f, verb, args := c.flags(orderHelp), c.name, c.args
	f.StringVar(&dir, "at", "", "`directory` that the testnet prints; needed if several run")
	for { // flags may follow arguments
		if err := f.Parse(args); err != nil {
			return "", nil, usageError{err}
		}
		if f.NArg() == 0 {
			break
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
	switch {
	case len(rest) == 0 && slices.Contains([]string{"kill", "pause"}, verb):
		err = fault.Invalidf("PEER", "", "%s needs the name of a peer, such as peer-1", verb)
	case len(rest) > 0 && slices.Contains([]string{"status", "add"}, verb):
		err = fault.Invalidf("arguments", rest, "%s has none, not %q", verb, rest)
	}
	return dir, rest, err
}

// order gives an order to a running testnet.
func order(ctx context.Context, c call) (held bool, err error) {
	err = give(ctx, c)
	if fault.KindOf(err) == fault.Invalid {
		err = usageError{err}
	}
	return true, err
}

// answers counts the answers of one load.
type answers struct {
	mu         sync.Mutex
	complete   []time.Duration
	incomplete int
	failed     int
	because    error // the last failure
}

// ask asks all peers for GPUs until the end of the time, and describes their answers.
func ask(ctx context.Context, peers []*network.Peer, length time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var (
		all  answers
		work sync.WaitGroup
	)
	for _, p := range peers {
		work.Go(func() {
			for ctx.Err() == nil {
				all.note(ctx, p)
			}
		})
	}
	work.Wait()
	return all.describe(len(peers), length)
}

func (a *answers) note(ctx context.Context, p *network.Peer) {
	began := time.Now()
	answer, err := p.Offers().Query(ctx, query.Query{Type: "compute", Limit: 10})
	took := time.Since(began)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil && ctx.Err() != nil: // the time is over
	case err != nil:
		a.failed, a.because = a.failed+1, err
	case !answer.Complete:
		a.incomplete++
	default:
		a.complete = append(a.complete, took)
	}
}

func (a *answers) describe(peers int, length time.Duration) string {
	text := fmt.Sprintf("%d peers asked for %v: %d complete answers, %d incomplete, %d failed\n",
		peers, length, len(a.complete), a.incomplete, a.failed)
	if n := len(a.complete); n > 0 {
		slices.Sort(a.complete)
		text += fmt.Sprintf("half of them within %v, 99 of 100 within %v\n",
			a.complete[(n-1)/2].Round(time.Microsecond), a.complete[(n-1)*99/100].Round(time.Microsecond))
	}
	if a.because != nil {
		text += fmt.Sprintf("the last failure: %v\n", a.because)
	}
	return text
}

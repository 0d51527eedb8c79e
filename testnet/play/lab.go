package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lab"
)

// laboratory is the command line of the lab: networks of namespaces.
type laboratory struct {
	lab.Config
	scenarios []lab.Scenario
	runs      int
	parallel  int
	must      bool
}

// playLab plays scenarios of real networks. It holds if all properties held, and also
// on a machine that cannot run the lab, unless -must is set.
func playLab(ctx context.Context, c call) (held bool, err error) {
	l, err := parseLab(c)
	if err != nil {
		return false, err
	}
	if err := lab.Available(); err != nil {
		fmt.Fprintf(c.stdout, "skipped: this machine cannot run the lab: %v\n", err)
		return !l.must, nil
	}
	return l.run(ctx, c.stdout)
}

// parseLab reads and validates the command line. It fails with Invalid, naming the flag.
func parseLab(c call) (l laboratory, err error) {
	about := "Plays real networks out of Linux network namespaces and checks them. Needs root, ip(8), nft(8) and /dev/net/tun.\n\nScenarios:"
	for _, s := range lab.Scenarios() {
		about += fmt.Sprintf("\n  %-15s %s", s.Name, s.About)
	}
	f := c.flags(about)
	names := f.String("scenario", "all", "comma-separated `names`, or all")
	f.BoolVar(&l.Short, "short", false, "fewer peers and shorter times")
	f.IntVar(&l.runs, "runs", 1, "of each scenario")
	f.IntVar(&l.parallel, "parallel", 1, "scenarios beside each other; their output follows when they end")
	f.BoolVar(&l.must, "must", false, "fail on a machine that cannot run the lab")
	f.StringVar(&l.Dir, "data", "", "`directory` for data and logs (default a temporary one)")
	err = c.parse(f, func() (err error) {
		if l.runs < 1 || l.runs > 1000 {
			return fault.Invalidf("-runs", l.runs, "must be 1 to 1000, not %d", l.runs)
		}
		if l.parallel < 1 || l.parallel > 16 {
			return fault.Invalidf("-parallel", l.parallel, "must be 1 to 16, not %d", l.parallel)
		}
		l.scenarios, err = chosen(*names)
		return err
	})
	return l, err
}

// chosen returns the scenarios of a list of names.
func chosen(list string) ([]lab.Scenario, error) {
	all := lab.Scenarios()
	if list == "all" {
		return all, nil
	}
	var known []string
	for _, s := range all {
		known = append(known, s.Name)
	}
	var some []lab.Scenario
	for _, name := range strings.Split(list, ",") {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fault.Invalidf("-scenario", name, "must be all or of %s", strings.Join(known, ", "))
		}
		some = append(some, all[i])
	}
	return some, nil
}

// run reports whether every property held in every run.
func (l *laboratory) run(ctx context.Context, people io.Writer) (held bool, err error) {
	var done func(bool)
	if l.Dir, l.Binary, done, err = workshop(ctx, "lab", l.Dir); err != nil {
		return false, err
	}
	defer func() { done(held) }()
	var (
		all  sync.WaitGroup
		mu   sync.Mutex // guards held, and people where several play
		room = make(chan struct{}, l.parallel)
	)
	held = true
	for i := range l.runs {
		for _, s := range l.scenarios {
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				var told bytes.Buffer // a scenario is read at one go
				out := people
				if l.parallel > 1 {
					out = &told
				}
				ok := l.play(ctx, s, i+1, out)
				mu.Lock()
				defer mu.Unlock()
				held = held && ok
				_, _ = told.WriteTo(people) // who does not read has the exit code
			})
		}
	}
	all.Wait()
	if ctx.Err() != nil {
		return false, fault.Wrap("testnet.lab", ctx.Err())
	}
	return held, nil
}

// play reports whether every property held in one run of a scenario. After the end of ctx it plays nothing.
func (l *laboratory) play(ctx context.Context, s lab.Scenario, run int, people io.Writer) bool {
	if ctx.Err() != nil {
		return false
	}
	fmt.Fprintf(people, "\n%s, run %d of %d: %s\n", s.Name, run, l.runs, s.About)
	c := l.Config
	c.Progress = people
	r, err := lab.Run(ctx, c, s)
	if err != nil {
		r.Broken = append(r.Broken, err.Error())
		fmt.Fprintln(people, err)
	}
	if r.Held() {
		fmt.Fprintf(people, "ok       %s, %.0f s\n", s.Name, r.Seconds)
	} else {
		fmt.Fprintf(people, "FAILED   %s, %.0f s, %d broken; data and logs are in %s\n", s.Name, r.Seconds, len(r.Broken), r.Data)
	}
	return r.Held()
}

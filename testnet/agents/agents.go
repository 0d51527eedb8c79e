// Package agents plays scripted agents that change files which they share, while some freeze beyond the end of
// their holds, some die, and the leader of the group is killed again and again. It plays one script with several
// ways to hold files and to share them, and counts by reading the files at the end which edits were lost.
package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/await"
)

const (
	maxFiles = 3                // of one edit
	longest  = 5 * time.Minute  // wait of an agent for its files; a longer one counts as a deadlock
	think    = 2 * time.Second  // at most, between the reading of files and their change
	heading  = "made by nobody" // of each file
	first    = 40               // lines of each file at the beginning
	cycle    = 25               // attempts of all agents, of which one freezes, one dies holding, and one dies in its push
)

// Config is the size of a run.
type Config struct {
	Agents, Files int
	Edits         int // lines, each in one file; the agents end when they are accepted
	Seed          uint64
	TTL           time.Duration // of a hold, whole seconds
	Dir           string        // existing; each way makes a folder in it
	Binary        string        // blackholed, for the hook of the repository
	Progress      io.Writer
}

// Way is how agents hold files and share them.
type Way struct {
	Locks, Files string // for people
	locks        locks
	store        store
}

// locks is a way to hold files.
type locks interface {
	// take waits until the agent holds all files, and returns their tokens.
	take(ctx context.Context, a *agent, files []string) (map[string]int64, error)
	// keep makes the hold last longer, if that is possible now.
	keep(ctx context.Context, a agent, files []string)
	release(ctx context.Context, a *agent, files []string) error
	// who tells who holds files, for people.
	who(ctx context.Context, files []string) string
	// left counts the files that are held, or waited for, when everybody has gone.
	left(ctx context.Context) (int, error)
}

// store is a way to share files.
type store interface {
	// read returns the texts of files.
	read(ctx context.Context, a *agent, files []string) (map[string]string, error)
	// write changes files that the agent has read, at the end of e.pause.
	write(ctx context.Context, a *agent, e edit) (verdict, error)
	// check reads all files, and counts accepted changes of a file whose token was below the last one.
	check(ctx context.Context, files []string) (texts map[string]string, older int, err error)
}

// edit is a change of some files: one line more in each.
type edit struct {
	line   string
	texts  map[string]string
	tokens map[string]int64
	pause  func(context.Context) error
	dies   bool // in the push
}

type verdict int

const (
	accepted verdict = iota
	refused          // a later token was there
	changed          // since the agent has read it
	unknown          // the agent died before the answer
)

// agent is one agent. One goroutine uses it.
type agent struct {
	index int
	name  string // another one when it returned as a stranger
	clone string // folder
	reads int
	peer  int // that it asks next
	rng   *rand.Rand
	done  int // accepted pushes
}

// run is one way at play.
type run struct {
	Config
	Way
	files []string

	mu      sync.Mutex // guards all below
	row     Row
	begun   int              // attempts
	sure    map[string]bool  // file and line that were accepted
	perhaps map[string]bool  // whose agent died
	newest  map[string]int64 // accepted token of each file
	waits   []time.Duration  // for files
}

// Play lets agents work in a way until all edits are accepted, and reads what became of them.
func Play(ctx context.Context, c Config, w Way) (Row, error) {
	r := &run{
		Config: c, Way: w, files: names(c.Files), row: Row{Locks: w.Locks, Files: w.Files},
		sure: map[string]bool{}, perhaps: map[string]bool{}, newest: map[string]int64{},
	}
	began := time.Now()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var team sync.WaitGroup
	for i := range c.Agents {
		team.Go(func() {
			a := &agent{index: i, name: fmt.Sprintf("agent-%02d", i), rng: rand.New(rand.NewPCG(c.Seed, uint64(i))), peer: i}
			if err := r.work(ctx, a); err != nil {
				stop(fmt.Errorf("%s: %w", a.name, err))
			}
		})
	}
	team.Wait()
	if err := context.Cause(ctx); err != nil {
		return r.row, err
	}
	r.row.Seconds = time.Since(began).Seconds()
	err := await.Until(ctx, longest, "nobody holds a file", func(ctx context.Context) (err error) {
		if r.row.Left, err = w.locks.left(ctx); err == nil && r.row.Left > 0 {
			err = fault.New("agents.Play", fault.Conflict, "%d are held", r.row.Left)
		}
		return err
	})
	if err != nil && r.row.Left == 0 {
		return r.row, err
	}
	return r.row, r.judge(ctx)
}

// names are the files.
func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("file-%04d.txt", i))
	}
	return all
}

// begins is the text of a file before any edit. Edits stand in its middle, so that those of two agents seldom meet.
func begins() string { return strings.Repeat(heading+"\n", first) }

// work is the life of an agent: it ends when all edits are accepted and one of its own is.
func (r *run) work(ctx context.Context, a *agent) error {
	for ctx.Err() == nil {
		attempt, more := r.next(a)
		if !more {
			return nil
		}
		if err := r.attempt(ctx, a, attempt); err != nil {
			return err
		}
	}
	return nil
}

// next numbers an attempt.
func (r *run) next(a *agent) (attempt int, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.done > 0 && len(r.sure) >= r.Edits {
		return 0, false
	}
	r.begun++
	return r.begun, true
}

// choose draws files: every other one of a fifth of them, so that agents meet, or wanted ones alone.
func (r *run) choose(a *agent, wanted bool) (files []string) {
	for range 1 + a.rng.IntN(maxFiles) {
		of := len(r.files)
		if wanted || a.rng.IntN(2) == 0 {
			of = max(of/5, 1)
		}
		files = append(files, r.files[a.rng.IntN(of)])
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// attempt takes files, changes them and gives them back, or meets its fate.
func (r *run) attempt(ctx context.Context, a *agent, number int) error {
	fate := number % cycle
	files := r.choose(a, fate == 7)
	var tokens map[string]int64
	take := func() (err error) {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, longest)
		defer cancel()
		if tokens, err = r.locks.take(bounded, a, files); err != nil && bounded.Err() != nil && ctx.Err() == nil {
			err = fault.New("agents.take", fault.Timeout, "a deadlock, or a hold without end: %v not within %v: %s: %w",
				files, longest, r.locks.who(ctx, files), err)
		}
		r.waited(time.Since(began))
		return err
	}
	if err := take(); err != nil {
		return err
	}
	abandon := r.keep(ctx, *a, files)
	defer func() { abandon() }()
	e := edit{line: fmt.Sprintf("%s %d", a.name, number), tokens: tokens, dies: fate == 20, pause: func(context.Context) error { return nil }}
	switch fate {
	case 7: // it freezes after it has read, and then writes what it read
		r.count(&r.row.Frozen)
		e.pause = func(ctx context.Context) error {
			abandon()
			return r.freeze(ctx, tokens)
		}
	case 14: // it dies, and returns as somebody else
		r.count(&r.row.Died)
		a.name = fmt.Sprintf("agent-%02d-%d", a.index, number)
		return nil
	case 16: // it dies, and returns under its name: what it holds is its own
		r.count(&r.row.Died)
		abandon()
		if err := take(); err != nil {
			return err
		}
		e.tokens, abandon = tokens, r.keep(ctx, *a, files)
	}
	for {
		texts, err := r.store.read(ctx, a, files)
		if err == nil {
			err = await.Pause(ctx, time.Duration(a.rng.Int64N(int64(think))))
		}
		if err != nil {
			return err
		}
		e.texts = make(map[string]string)
		for file, text := range texts {
			e.texts[file] = insert(text, e.line, a.rng)
		}
		v, err := r.store.write(ctx, a, e)
		if err != nil {
			return err
		}
		if v == changed {
			r.count(&r.row.Changed)
			e.pause = func(context.Context) error { return nil }
			continue
		}
		r.note(a, e, v)
		abandon()
		if v == unknown { // dead, it returns as somebody else
			a.name = fmt.Sprintf("agent-%02d-%d", a.index, number)
			return nil
		}
		return r.locks.release(ctx, a, files)
	}
}

// keep makes a hold last until the caller abandons it, which waits.
func (r *run) keep(ctx context.Context, a agent, files []string) (abandon func()) {
	life, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for await.Pause(life, r.TTL/3) == nil {
			r.locks.keep(ctx, a, files) // a call under way ends before a release
		}
	}()
	return func() {
		end()
		<-done
	}
}

// freeze lasts longer than a hold, even if a new leader gives it its whole time again, and until somebody else has
// changed a file: then the change of who froze must be refused. Not all files find somebody.
func (r *run) freeze(ctx context.Context, tokens map[string]int64) error {
	for limit := time.Now().Add(12 * r.TTL); time.Now().Before(limit); {
		if err := await.Pause(ctx, 2*r.TTL); err != nil {
			return err
		}
		r.mu.Lock()
		late := false
		for file, token := range tokens {
			late = late || r.newest[file] > token
		}
		r.mu.Unlock()
		if late {
			break
		}
	}
	return nil
}

// insert puts a line somewhere into a text.
func insert(text, line string, rng *rand.Rand) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(slices.Insert(lines, rng.IntN(len(lines)), line+"\n"), "")
}

func (r *run) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

func (r *run) waited(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = append(r.waits, d)
}

// note keeps how an edit ended.
func (r *run) note(a *agent, e edit, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch v {
	case accepted:
		a.done++
		r.row.Pushes++
		if r.Progress != nil && r.row.Pushes%100 == 0 {
			fmt.Fprintf(r.Progress, "%s, %s: %d of %d edits\n", r.Locks, r.Way.Files, len(r.sure), r.Edits)
		}
	case refused:
		r.row.Refused++
	case unknown:
		r.row.Died++
	}
	for file := range e.texts {
		switch v {
		case accepted:
			r.sure[file+" "+e.line] = true
			r.newest[file] = max(r.newest[file], e.tokens[file])
		case unknown:
			r.perhaps[file+" "+e.line] = true
		}
	}
}

// judge reads the files.
func (r *run) judge(ctx context.Context) error {
	texts, older, err := r.store.check(ctx, r.files)
	if err != nil {
		return err
	}
	r.row.Older = older
	found := map[string]bool{}
	for file, text := range texts {
		for line := range strings.Lines(text) {
			if line = strings.TrimSuffix(line, "\n"); line == heading {
				continue
			}
			key := file + " " + line
			if found[key] || !r.sure[key] && !r.perhaps[key] {
				r.row.Foreign++ // twice, or refused
			}
			found[key] = true
		}
	}
	r.row.Found = len(found)
	for key := range r.perhaps {
		if found[key] {
			r.sure[key] = true
		}
	}
	r.row.Edits = len(r.sure)
	for key := range r.sure {
		if !found[key] {
			r.row.Lost++
		}
	}
	slices.Sort(r.waits)
	if n := len(r.waits); n > 0 {
		r.row.WaitMedian, r.row.WaitLongest = r.waits[n/2].Seconds(), r.waits[n-1].Seconds()
	}
	if len(texts) != len(r.files) {
		return errors.New("agents: files are missing")
	}
	return nil
}

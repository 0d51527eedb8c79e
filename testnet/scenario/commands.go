package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/script"
)

const (
	callLimit = 5 * time.Second
	workers   = 4
	lockTTL   = 5 * time.Second
)

// commands are the words of a script, beside those of testscript. PEER is a name of the script, "any" for one of those that
// run beside the first. $PEER is its address for gRPC, $PEER_data its directory, $PEER_id its id; $leader is the name of the
// leader of the last group. The condition [chance] holds every other time.
//
//	peer PEER [join]       start a peer, alone or with the addresses of all others; an instance registers at it
//	connect PEER...        give the peer all addresses at its next start
//	alone PEER...          from its next start on the peer gets no addresses, and listens where it does now
//	sigkill PEER...        a crash
//	sigterm PEER...        an end in order
//	crash PEER LEAST MOST  kill, wait at random, and start again
//	start PEER...          start an ended peer on its data
//	wipe PEER...           remove what an ended peer knows of the group
//	pause LEAST MOST       wait, at random
//	one VOTERS [SURVIVOR]  wait until all running peers have one group; meanwhile empty the other groups, as an operator does
//	apart PEER PEER        the two have different groups
//	meet begin|end         bracket the time in which groups become one
//	everywhere             wait until every running peer finds the instance of every peer
//	clients                take and give back one lock at any running peer, until the end
//	settle                 end the clients, and judge what they held
//	token PEER [higher]    take and give back a lock; higher: its token is above all of token and lock before
//	[!] lock PEER          take another lock and keep it, with a higher token; !: it is held by someone
//	reads PEER OF          ask PEER for the instance of OF again and again
//	answered               end reads: no answer lacked it
//	until REGEXP ARGS...   run blackholed until it succeeds and prints it
//	fails REGEXP ARGS...   run blackholed, which must fail and print it
//	fill                   write as many events as the group keeps: its history would grow for long otherwise
//	load                   all kinds of clients at every running peer, until flat
//	flat LENGTH            look at what the peers hold under load, which must stay flat, and end it
//
// A house is a network of peers that know each other before they start, on hosts of their own if this machine can: [lan] holds.
//
//	house PEERS FOUNDERS   peer-1 and so on, with identities
//	storm WITHIN MOST      start all at times of the seed; up to MOST die soon and come back
//	applications PREFIX WITHIN N [MOVERS LEAVERS]   in the background PREFIX-00 and so on register at any peer, some elsewhere later
//	move APPLICATION...    register again at any peer
//	depart WITHIN APPLICATION...   in the background they leave through any peer
//	cut                    cut the hosts in two
//	mend                   wait for the applications, and end the cut
//	known                  wait for the applications, and until all peers have what these were told
func (r *run) commands() script.Words {
	each := func(f func(*member) error) func([]string) error {
		return func(args []string) error {
			for _, name := range args {
				m, err := r.named(name)
				if err == nil {
					err = f(m)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
	}
	plain := map[string]func([]string) error{
		"peer":       func(args []string) error { return r.add(args[0], len(args) > 1) },
		"connect":    each(func(m *member) error { m.joined = true; return nil }),
		"alone":      each(alone),
		"sigkill":    each(func(m *member) error { r.halt(m, true); return nil }),
		"sigterm":    each(func(m *member) error { r.halt(m, false); return nil }),
		"start":      each(r.start),
		"crash":      r.crash,
		"wipe":       each(func(m *member) error { return os.RemoveAll(filepath.Join(m.peer().Data, "coordination")) }),
		"pause":      r.pause,
		"apart":      r.apart,
		"meet":       r.meet,
		"everywhere": func([]string) error { return r.everywhere() },
		"clients":    r.clients,
		"settle":     r.settle,
		"token":      r.token,
		"reads":      r.reads,
		"answered":   r.answered,
		"until":      func(args []string) error { return r.until(args[0], args[1:]) },
		"fails":      func(args []string) error { return r.fails(args[0], args[1:]) },
		"house":      r.house, "storm": r.storm, "applications": r.applications, "move": r.move, "depart": r.depart,
		"fill": r.fill, "load": r.load, "flat": r.flat,
		"cut": r.cut, "mend": r.mend, "known": r.known,
	}
	words := script.Words{
		"one": func(ts *testscript.TestScript, _ bool, args []string) {
			if len(args) == 0 {
				ts.Fatalf("one needs a number of voters")
			}
			g, err := r.oneOf(args)
			ts.Check(err)
			for _, m := range r.all {
				if m.peer().ID.String() == g.Leader {
					ts.Setenv("leader", m.name)
				}
			}
			ts.Setenv("group", g.ID)
			ts.Setenv("incarnation", fmt.Sprint(g.Incarnation))
		},
		"lock": func(ts *testscript.TestScript, neg bool, args []string) {
			if len(args) == 0 {
				ts.Fatalf("lock needs a peer")
			}
			ts.Check(r.lock(args[0], neg))
		},
	}
	least := map[string]int{"peer": 1, "crash": 3, "pause": 2, "apart": 2, "meet": 1, "token": 1, "reads": 2, "until": 2, "fails": 2, "house": 2, "storm": 2, "applications": 3, "depart": 1, "flat": 1}
	for name, do := range plain {
		words.Add(name, least[name], do)
		plainly := words[name]
		words[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			plainly(ts, neg, args)
			for _, m := range r.all {
				if m.Network == nil {
					continue
				}
				ts.Setenv(m.name, m.peer().GRPC)
				ts.Setenv(m.name+"_data", m.peer().Data)
				ts.Setenv(m.name+"_id", m.peer().ID.String())
			}
		}
	}
	return words
}

func alone(m *member) error {
	m.joined = false
	m.home, _, _ = strings.Cut(m.peer().Listen[0], "/p2p/")
	return nil
}

// named returns a peer by its name.
func (r *run) named(name string) (*member, error) {
	if name == "any" && len(r.all) > 1 {
		return r.all[1+r.rng.IntN(len(r.all)-1)], nil
	}
	for _, m := range r.all {
		if m.name == name {
			return m, nil
		}
	}
	return nil, fault.Invalidf("PEER", name, "no peer has this name")
}

func (r *run) crash(args []string) error {
	m, err := r.named(args[0])
	if err != nil {
		return err
	}
	r.halt(m, true)
	return errors.Join(r.pause(args[1:]), r.start(m))
}

func (r *run) pause(args []string) error {
	least, err := time.ParseDuration(args[0])
	most, wrong := time.ParseDuration(args[1])
	if err := errors.Join(err, wrong); err != nil {
		return fault.As("pause", fault.Invalid, err)
	}
	return await.Pause(r.ctx, least+time.Duration(r.rng.Int64N(int64(most-least))))
}

// oneOf is one, with orders to all groups but that of the survivor. Orders fail while groups change.
func (r *run) oneOf(args []string) (coord.GroupState, error) {
	voters, err := strconv.Atoi(args[0])
	if err != nil {
		return coord.GroupState{}, fault.As("one", fault.Invalid, err)
	}
	if len(args) == 1 {
		return r.one(voters, func(context.Context) error { return nil })
	}
	survivor, err := r.named(args[1])
	if err != nil {
		return coord.GroupState{}, err
	}
	return r.one(voters, func(ctx context.Context) error {
		for _, m := range r.living() {
			if m != survivor {
				_ = empty(ctx, m.peer(), survivor.peer())
			}
		}
		return nil
	})
}

func (r *run) apart(args []string) error {
	a, err := r.named(args[0])
	b, wrong := r.named(args[1])
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	one, err := a.peer().Coordination().Group(r.ctx)
	other, wrong := b.peer().Coordination().Group(r.ctx)
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	if one.ID == "" || one.ID == other.ID {
		return fault.New("apart", fault.Conflict, "both have group %.8s", one.ID)
	}
	return nil
}

func (r *run) meet(args []string) error {
	if r.met.to = r.now(); args[0] == "begin" {
		r.met.from, r.met.to = r.now(), time.Hour
	}
	return nil
}

func (r *run) clients([]string) error {
	working, stop := context.WithCancel(r.ctx)
	var work sync.WaitGroup
	for i := range workers {
		rng := rand.New(rand.NewPCG(r.Seed, uint64(100+i)))
		work.Go(func() { r.work(working, rng) })
	}
	former := r.end
	r.end = func() {
		stop()
		work.Wait()
		if former != nil {
			former()
		}
	}
	return nil
}

// settle lets the clients go on for two seconds, ends them, and applies the rules of locks.
func (r *run) settle([]string) error {
	if err := await.Pause(r.ctx, 2*time.Second); err != nil {
		return err
	}
	r.end()
	r.end = nil
	if wrong := check(r.holds, r.met); len(wrong) > 0 {
		return fault.New("settle", fault.Conflict, "%s", strings.Join(wrong, "\n"))
	}
	if len(r.holds) == 0 {
		return fault.New("settle", fault.NotFound, "no client got the lock")
	}
	return nil
}

func (r *run) token(args []string) error {
	m, err := r.named(args[0])
	if err != nil {
		return err
	}
	s, err := m.peer().Locks().Session(r.ctx, client.TTL(lockTTL))
	if err != nil {
		return err
	}
	held, err := s.Lock(r.ctx, "token")
	if err == nil {
		err = held.Unlock(r.ctx)
	}
	if err := errors.Join(err, s.Close(r.ctx)); err != nil {
		return err
	}
	return r.higher(held.Token(), len(args) > 1)
}

func (r *run) higher(token fence.Token, must bool) error {
	if must && token <= r.last {
		return fault.New("token", fault.Conflict, "%d after %d", token, r.last)
	}
	r.last = max(r.last, token)
	return nil
}

func (r *run) lock(name string, held bool) error {
	m, err := r.named(name)
	if err != nil {
		return err
	}
	s, err := m.peer().Locks().Session(r.ctx, client.TTL(lockTTL)) // it ends with its peer
	if err != nil {
		return err
	}
	if held {
		if _, err := s.TryLock(r.ctx, "kept"); !errors.Is(err, client.ErrNotAcquired) {
			return fault.New("lock", fault.Conflict, "the lock was free: %v", err)
		}
		return s.Close(r.ctx)
	}
	got, err := s.Lock(r.ctx, "kept")
	if err != nil {
		return err
	}
	return r.higher(got.Token(), true)
}

// reads asks a peer for the instance of another one until answered, which fails if an answer lacked it.
func (r *run) reads(args []string) error {
	m, err := r.named(args[0])
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { // answered ends it
		asked, lacking := 0, 0
		for ctx.Err() == nil {
			got, err := m.peer().Services().Discover(ctx, instance.Query{Name: instance.Name{Service: "app"}, Selector: instance.Selector{AnyStatus: true}})
			if ctx.Err() != nil {
				break
			}
			if asked++; err != nil || !has(got, args[1]) {
				lacking++
			}
			_ = await.Pause(ctx, 5*time.Millisecond) // the loop checks the context
		}
		if asked == 0 || lacking > 0 {
			done <- fault.New("reads", fault.Conflict, "%d of %d answers of %s lacked the instance of %s", lacking, asked, m.name, args[1])
			return
		}
		done <- nil
	}()
	r.answers = func() error { stop(); return <-done }
	return nil
}

func (r *run) answered([]string) error {
	end := r.answers
	r.answers = nil
	return end()
}

func has(r instance.Result, id string) bool {
	for _, i := range r.Instances {
		if i.ID == id {
			return true
		}
	}
	return false
}

func (r *run) blackholed(ctx context.Context, args []string) (string, error) {
	out, err := exec.CommandContext(ctx, r.Binary, args...).CombinedOutput()
	return string(out), err
}

func (r *run) until(want string, args []string) error {
	pattern, err := regexp.Compile(want)
	if err != nil {
		return fault.As("until", fault.Invalid, err)
	}
	return await.Until(r.ctx, r.Bound, strings.Join(args, " "), func(ctx context.Context) error {
		out, err := r.blackholed(ctx, args)
		if err == nil && !pattern.MatchString(out) {
			err = fault.New("until", fault.Unavailable, "no %q", want)
		}
		if err != nil {
			return fault.New("until", fault.Unavailable, "%w: %s", err, out)
		}
		return nil
	})
}

func (r *run) fails(want string, args []string) error {
	out, err := r.blackholed(r.ctx, args)
	if err == nil || !regexp.MustCompile(want).MatchString(out) {
		return fault.New("fails", fault.Conflict, "%v, and no %q: %s", err, want, out)
	}
	return nil
}

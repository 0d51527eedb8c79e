package nemesis

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/lan"
	"github.com/blackhole/blackhole/testnet/process"
)

// Ground is the hosts of the peers. A LAN is one.
type Ground interface {
	Places(n int) ([]process.Place, error)
	Dial(i int) func(ctx context.Context, network, address string) (net.Conn, error)
	Cut(from, to int) // drops what one host sends to another, until Mend
	Mend(from, to int)
	Lose(part float64) // of all packets; 0: as before
	Close()
}

// Stage is what a larger play brings along. The zero Stage is a LAN.
type Stage struct {
	Ground   Ground
	Adapt    func(i int, s *process.Spec)    // changes the start of peer i
	Launched func(i int, p *process.Process) // hears of every process of peer i
	Enough   int                             // peers that each must know at the start; 0: all
	Idle     int                             // so many of the last peers have no clients
	// Beside plays beside load and faults, and ends with ctx.
	Beside func(ctx context.Context, s *Scene) error
}

// Scene is what a play beside the load knows of the run.
type Scene struct{ run *run }

// Now is the time since the start of the run.
func (s *Scene) Now() time.Duration { return s.run.now() }

// Say tells one line of progress.
func (s *Scene) Say(format string, args ...any) { s.run.say(format, args...) }

// Client creates a client of peer i. It outlives the processes of the peer.
func (s *Scene) Client(i int) (*operator.Client, error) { return s.run.client(s.run.peers[i]) }

// IDs are the peer ids, in the order of the peers.
func (s *Scene) IDs() []string { return s.run.ids }

// Troubled reports whether peer i is under a fault, or may still suffer from one.
func (s *Scene) Troubled(i int) bool { return s.run.peers[i].troubled.Load() }

// Calm is the time since the last fault of peer i, or since the start; 0 during one.
func (s *Scene) Calm(i int) time.Duration {
	p := s.run.peers[i]
	if p.troubled.Load() {
		return 0
	}
	return s.run.now() - time.Duration(p.healed.Load())
}

// Answers are the times of questions for offers.
type Answers struct {
	Asked    int            `json:"asked"`
	Second   int            `json:"second"` // answered within 1 s
	Five     int            `json:"five"`   // answered within 5 s
	Failed   int            `json:"failed"` // without an answer within 10 s
	Troubled int            `json:"troubled"`
	Slowest  float64        `json:"slowest"` // seconds
	Reasons  map[string]int `json:"reasons"` // of incomplete answers
	Later    map[string]int `json:"later"`   // answers after a second or never, by peer
	Late     []string       `json:"late,omitempty"`
}

const mostLate = 40 // lines about late answers

// answers collects Answers.
type answers struct {
	mu  sync.Mutex // guards all
	all Answers
}

// note counts a question. Those at a peer under a fault count for themselves.
func (a *answers) note(from string, at, took time.Duration, troubled bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if troubled {
		a.all.Troubled++
		return
	}
	a.all.Asked++
	a.all.Slowest = max(a.all.Slowest, took.Seconds())
	switch {
	case err != nil:
		a.all.Failed++
	case took <= time.Second:
		a.all.Second++
		a.all.Five++
	case took <= 5*time.Second:
		a.all.Five++
	}
	if err != nil || took > time.Second {
		if a.all.Later == nil {
			a.all.Later = make(map[string]int)
		}
		a.all.Later[from]++
	}
	if (err != nil || took > 5*time.Second) && len(a.all.Late) < mostLate {
		a.all.Late = append(a.all.Late, fmt.Sprintf("%.1f s: %s after %.1f s: %v", at.Seconds(), from, took.Seconds(), err))
	}
}

func (a *answers) counts() Answers {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	all.Reasons, all.Later = maps.Clone(a.all.Reasons), maps.Clone(a.all.Later)
	return all
}

// incomplete counts an answer by the reason that it gives.
func (a *answers) incomplete(reason string) {
	words := strings.Fields(reason)
	for i, w := range words { // numbers, times and names differ from answer to answer
		if strings.ContainsAny(w, "0123456789") {
			words[i] = "N"
		}
	}
	reason = strings.Join(words, " ")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all.Reasons == nil {
		a.all.Reasons = make(map[string]int)
	}
	if a.all.Reasons[reason] == 0 && len(a.all.Reasons) >= mostLate {
		reason = "others"
	}
	a.all.Reasons[reason]++
}

// settle chooses the ground: that of the stage, or a LAN, or this machine.
func (r *run) settleDown(n int) error {
	if r.Stage != nil {
		r.ground, r.split = r.Stage.Ground, true
		return nil
	}
	l, err := lan.New(n)
	r.ground, r.split = l, err == nil // without a LAN all peers are on loopback, and nothing is cut
	if err != nil {
		if fault.KindOf(err) != fault.Unsupported {
			return err
		}
		r.report.Skipped = append(r.report.Skipped, "partitions: "+err.Error())
	}
	return nil
}

// clients are the peers that clients use.
func (r *run) clients() []*peer {
	if r.Stage == nil {
		return r.peers
	}
	return r.peers[:len(r.peers)-r.Stage.Idle]
}

// pace is how much longer clients of a larger play pause: they share the machine with more peers.
func (r *run) pace() int {
	if r.Stage == nil {
		return 1
	}
	return len(r.peers)
}

// beside starts the play of the stage. stop ends it.
func (r *run) beside(ctx context.Context) (stop func() error) {
	if r.Stage == nil || r.Stage.Beside == nil {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Stage.Beside(ctx, &Scene{r}) }()
	return func() error {
		cancel()
		return <-ended
	}
}

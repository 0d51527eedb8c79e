package trade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/clean"
	"github.com/blackhole/blackhole/internal/platform/script"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// Hooks are the commands of a seller, with their arguments; nil: none. They come from the settings of the peer alone:
// no caller of an API names one. Each gets an occasion, as JSON, on its standard input.
//
// A grant that is held becomes active in this order, each step after the one before is durable:
//
//   - OnPay agrees: it ends with 0. With payCode its output is the terms of the provider, and the grant stays held:
//     the same request may bring a proof. It may run again for a request that it has accepted, after a crash.
//   - The ledger notes that the end of the grant owes a command. Nothing has run for a grant that is not durable.
//   - OnGrant runs, once at most. Its output is what the holder gets.
//   - The grant is active, and its holder hears so.
//
// A failure revokes the grant; the first line of standard error is the reason. So does a restart between the note and
// the end, as soon as somebody asks, and else the hold ends by itself. OnEnd runs after the end of each grant that was
// noted, whatever ended it, until it succeeds or has failed maxTries times: at least once, also after a failed OnGrant.
type Hooks struct {
	OnPay, OnGrant, OnEnd []string
	Limit                 time.Duration // of one run
}

const (
	payCode  = 42 // of OnPay: payment is required. Shells and interpreters end with 1, 2 and from 126 on by themselves
	maxHooks = 8  // commands at a time before grants, and as many after them. One consumer or address has few grants held
	maxTries = 8  // of OnEnd, over some four minutes
	maxProof = 4 << 10
)

// occasion is what a command learns.
type occasion struct {
	Hook    string          `json:"hook"` // on_pay, on_grant or on_end
	Offer   string          `json:"offer"`
	Request string          `json:"request_id"` // of the reservation; for on_pay also of an extension
	Grant   json.RawMessage `json:"grant"`      // as over REST; held until on_grant has succeeded
	Signed  []byte          `json:"signed"`     // a SignedGrant
	Proof   []byte          `json:"proof,omitempty"`
}

// hooks owns the commands that run.
type hooks struct {
	Hooks
	granter       *granter
	signed        func(*pb.Entry) (*pb.SignedGrant, error)
	run           func(ctx context.Context, argv []string, in []byte) (script.Result, error)
	logger        *slog.Logger
	before, after chan struct{} // places of commands

	life   context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	mu     sync.Mutex
	jobs   map[jobName]*job // guarded by mu
}

// jobName names a grant, and says whether the job is about its extension. So the ledger bounds the jobs.
type jobName struct {
	token     uint64
	extension bool
}

type job struct {
	request string // that began it, of an extension
	done    chan struct{}
	entry   *pb.Entry // this and err are set before done is closed
	err     error
}

func newHooks(h Hooks, g *granter, signed func(*pb.Entry) (*pb.SignedGrant, error), logger *slog.Logger) (*hooks, error) {
	for name, argv := range map[string][]string{"trade.on_pay": h.OnPay, "trade.on_grant": h.OnGrant, "trade.on_end": h.OnEnd} {
		if len(argv) == 0 {
			continue
		}
		if _, err := exec.LookPath(argv[0]); err != nil {
			return nil, fault.Invalidf(name, argv[0], "%w", err)
		}
	}
	all := &hooks{
		Hooks: h, granter: g, signed: signed, logger: logger,
		before: make(chan struct{}, maxHooks), after: make(chan struct{}, maxHooks), jobs: map[jobName]*job{},
	}
	all.run = func(ctx context.Context, argv []string, in []byte) (script.Result, error) {
		return script.Run(ctx, argv, nil, in, ledger.MaxHandover)
	}
	all.life, all.cancel = context.WithCancel(context.Background())
	return all, nil
}

// gates reports whether grants begin held, because commands come before they are active.
func (h *hooks) gates() bool { return len(h.OnPay) > 0 || h.works() }

func (h *hooks) works() bool { return len(h.OnGrant) > 0 || len(h.OnEnd) > 0 }

// once does something for a grant, unless it is being done: all callers share the outcome.
func (h *hooks) once(name jobName, request string, do func() (*pb.Entry, error)) *job {
	h.mu.Lock()
	defer h.mu.Unlock()
	j := h.jobs[name]
	if j == nil {
		j = &job{request: request, done: make(chan struct{})}
		h.jobs[name] = j
		h.work.Go(func() {
			j.entry, j.err = do()
			h.mu.Lock()
			delete(h.jobs, name)
			h.mu.Unlock()
			close(j.done)
			if h.life.Err() == nil {
				h.sweep() // the grant may have ended meanwhile
			}
		})
	}
	return j
}

func (j *job) await(ctx context.Context) (*pb.Entry, error) {
	select {
	case <-j.done:
		return j.entry, j.err
	case <-ctx.Done():
		return nil, fault.New("", fault.Unavailable, "the provider still prepares the grant: repeat the request")
	}
}

// activate makes a grant active that is held, and leaves another one as it is. It may come back revoked.
func (h *hooks) activate(ctx context.Context, e *pb.Entry, proof []byte) (*pb.Entry, error) {
	switch {
	case e.State != api.Grant_STATE_HELD:
		return e, nil
	case !h.gates():
		return h.granter.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Confirm(e.ConsumerId, e.Token, "", now)
		})
	}
	return h.once(jobName{token: e.Token}, "", func() (*pb.Entry, error) {
		return h.prepare(e.ConsumerId, e.Token, proof)
	}).await(ctx)
}

// extend asks whether an active grant may be extended.
func (h *hooks) extend(ctx context.Context, e *pb.Entry, r *api.ExtendRequest) error {
	if len(h.OnPay) == 0 || r.GetRequestId() != "" && r.GetRequestId() == e.ChangeId {
		return nil
	}
	e = proto.CloneOf(e)
	e.TtlMs = cmp.Or(r.GetTtlMs(), e.TtlMs)
	j := h.once(jobName{e.Token, true}, r.GetRequestId(), func() (*pb.Entry, error) {
		if err := enter(h.life, h.before); err != nil {
			return nil, err
		}
		defer func() { <-h.before }()
		return nil, h.pay(e, r.GetRequestId(), nil)
	})
	if j.request != r.GetRequestId() {
		return fault.Refused(fault.LimitReached, "request_id",
			"names a second extension of the grant while another one is under way: try again later")
	}
	_, err := j.await(ctx)
	return err
}

// enter takes a place, which the caller frees.
func enter(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.New("", fault.Unavailable, "%d commands of the provider run: try again later", maxHooks)
	}
}

// prepare takes a held grant through the steps of Hooks. It alone works on the grant.
func (h *hooks) prepare(consumer string, token uint64, proof []byte) (*pb.Entry, error) {
	ctx, cancel := context.WithTimeout(h.life, ledger.HoldTime)
	defer cancel()
	if err := enter(ctx, h.before); err != nil {
		return nil, err
	}
	defer func() { <-h.before }()
	e, err := h.granter.current.Load().Holder(consumer, token, h.granter.now())
	if err != nil || e.State != api.Grant_STATE_HELD { // an earlier copy of the request got it
		return e, err
	}
	err = h.pay(e, e.RequestId, proof)
	if err != nil && fault.KindOf(err) != fault.Forbidden { // a proof may still come, or come again
		return nil, err
	}
	var handover string
	if err == nil && h.works() {
		_, err = h.granter.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Begin(consumer, token, now)
		})
		if err == nil {
			handover, _, err = h.call("on_grant", h.OnGrant, e, e.RequestId, proof)
		}
	}
	if err == nil {
		e, err = h.settle(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Confirm(consumer, token, handover, now)
		})
	}
	switch fault.KindOf(err) {
	case fault.Forbidden, fault.Timeout, fault.Exists, fault.TooLarge:
		reason := clean.Text(fault.Message(err), maxReason)
		return h.settle(ctx, false, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
			return l.Revoke(token, reason, now)
		})
	}
	return e, err
}

// pay asks OnPay. Errors: PaymentRequired with the terms; those of call.
func (h *hooks) pay(e *pb.Entry, request string, proof []byte) error {
	terms, code, err := h.call("on_pay", h.OnPay, e, request, proof)
	if code != payCode {
		return err
	}
	if terms == "" {
		return fault.New("", fault.Forbidden, "the provider asks for a payment without terms")
	}
	return &fault.Error{
		Kind: fault.PaymentRequired, Field: "proof", Value: []byte(terms),
		Err: errors.New("is not there or not enough: the provider asks for a payment, see its terms"),
	}
}

// settle makes a change after a command has run, as soon as the ledger can be written.
func (h *hooks) settle(
	ctx context.Context, grant bool, apply func(*ledger.Ledger, time.Duration) (*pb.Entry, error),
) (*pb.Entry, error) {
	for {
		e, err := h.granter.do(ctx, grant, apply)
		if kind := fault.KindOf(err); err == nil || kind != fault.Unavailable && kind != fault.LimitReached {
			return e, err
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// sweep starts OnEnd for the grants that have ended and owe it, each after what still runs for it. The granter calls it
// at its start and after each change of the ledger.
func (h *hooks) sweep() {
	for _, e := range h.granter.current.Load().Entries() {
		if e.Owed > 0 && !ledger.Live(e.State) {
			h.once(jobName{token: e.Token}, "", func() (*pb.Entry, error) { return nil, h.finish(e.Token) })
		}
	}
}

// finish runs OnEnd until it owes nothing.
func (h *hooks) finish(token uint64) error {
	for pause := lookAgain; ; pause *= 2 {
		e := entryOf(h.granter.current.Load(), token)
		if e.GetOwed() == 0 {
			return nil
		}
		if err := enter(h.life, h.after); err != nil {
			return err
		}
		_, _, failed := h.call("on_end", h.OnEnd, e, e.RequestId, nil)
		now, err := h.settle(h.life, false, func(l *ledger.Ledger, _ time.Duration) (*pb.Entry, error) {
			return l.Settle(token, failed == nil, maxTries)
		})
		<-h.after
		if err == nil && now.Owed == 0 {
			if failed != nil {
				h.logger.Error("on_end is not tried again: see what it left behind",
					"token", token, "offer", e.OfferId, "tries", maxTries)
			}
			return nil
		}
		select {
		case <-time.After(pause):
		case <-h.life.Done():
			return h.life.Err()
		}
	}
}

// call runs a command for a grant, and returns what it wrote and its code: 0, or payCode of on_pay. Errors: Forbidden
// with the words of the command, or without what only its operator should learn; Timeout; Unavailable while the peer
// stops.
func (h *hooks) call(
	name string, argv []string, e *pb.Entry, request string, proof []byte,
) (out string, code int, err error) {
	if len(argv) == 0 {
		return "", 0, nil
	}
	signed, err := h.signed(e)
	if err != nil {
		return "", 0, err
	}
	grant := &api.Grant{}
	o := occasion{Hook: name, Offer: e.OfferId, Request: request, Proof: proof}
	err = proto.Unmarshal(signed.GetGrant(), grant)
	if err == nil {
		o.Grant, err = protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(grant)
	}
	if err == nil {
		o.Signed, err = proto.Marshal(signed)
	}
	var in []byte
	if err == nil {
		in, err = json.Marshal(o)
	}
	if err != nil {
		return "", 0, fault.As("", fault.Internal, err)
	}
	ctx, cancel := context.WithTimeout(h.life, h.Limit)
	defer cancel()
	done, err := h.run(ctx, argv, in)
	words, _, _ := strings.Cut(strings.TrimSpace(string(done.Err)), "\n")
	out = strings.TrimRight(string(done.Out), "\n")
	kind, why := fault.Forbidden, ""
	switch {
	case h.life.Err() != nil:
		return "", 0, fault.New("", fault.Unavailable, "the provider is shutting down")
	case fault.KindOf(err) == fault.Timeout:
		kind, why = fault.Timeout, "took longer than "+h.Limit.String()
	case err != nil:
		why = "did not run"
	case done.Code != 0 && (done.Code != payCode || name != "on_pay"):
		why = "failed"
	case len(done.Out) > ledger.MaxHandover:
		why = "wrote too much"
	case clean.Lines(out, ledger.MaxHandover) != out:
		why = "wrote something else than text"
	default:
		return out, done.Code, nil
	}
	h.logger.Warn("a command for a grant failed", "command", name, "token", e.Token, "offer", e.OfferId, "consumer", e.ConsumerId,
		"why", why, "code", done.Code, "error", err, "stderr", clean.Text(string(done.Err), maxReason))
	if why != "failed" || words == "" {
		words = name + " of the provider " + why
	}
	return "", 0, fault.New("", kind, "%s", words)
}

package gossip

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// outcome is what became of a message: see Recorder.
type outcome string

const (
	accepted   outcome = "accepted"
	stale      outcome = "stale"
	forged     outcome = "forged"
	wrongTopic outcome = "wrong_topic"
	oversize   outcome = "oversize"
	throttled  outcome = "throttled"
	dropped    outcome = "dropped"
)

// validation is what pubsub is told. Only what no honest peer forwards is rejected, which
// counts against the sender; what honest peers may forward in good faith is ignored.
func (o outcome) validation() pubsub.ValidationResult {
	switch o {
	case accepted:
		return pubsub.ValidationAccept
	case stale, throttled:
		return pubsub.ValidationIgnore
	default:
		return pubsub.ValidationReject
	}
}

const (
	providerRate  = 20  // updates of one provider a second, all its services together
	providerBurst = 200 // a peer that announces many services at once

	// A peer to which we have no stream back has no score, so pubsub cannot turn it away.
	// This many rejected messages, and then one in ten seconds, are looked at anyway.
	faultRate  = 0.1
	faultBurst = 16

	buckets = 4096 // peers remembered on each of the two accounts; the longest unseen is forgotten

	// relayWindow is how long after its issue a version that is known already is still
	// passed on, as it may have come by a keeper just before. Pubsub remembers messages
	// for that long, so that a later replay of what everybody has goes no further than one
	// peer. The provider's clock may be slow.
	relayWindow = seenTTL + records.ClockSkew
)

// own marks a message of this peer, which needs no judgement. It is never seen in a
// message from the network: pubsub clears that field.
type own struct{}

// validator judges messages. It is safe for concurrent use and holds no lock while it verifies.
type validator struct {
	Config
	providers *rateLimiters // updates, by provider
	senders   *rateLimiters // rejected messages, by the peer that sent them
}

func newValidator(c Config) *validator {
	return &validator{
		Config:    c,
		providers: newRateLimiters(providerRate, providerBurst),
		senders:   newRateLimiters(faultRate, faultBurst),
	}
}

// validate is a pubsub.ValidatorEx. It leaves the record of an accepted message in its
// ValidatorData.
func (v *validator) validate(_ context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
	if _, ok := m.ValidatorData.(own); ok || v.Others(m.GetTopic()) {
		return pubsub.ValidationAccept
	}
	r, o := v.validateRecord(from, m)
	if o.validation() == pubsub.ValidationReject {
		v.senders.take(from, v.Now())
	}
	v.Recorder.Received(string(o))
	if o == accepted {
		m.ValidatorData = r
	}
	return o.validation()
}

// validateRecord gives the record with accepted, and nil with anything else. Of the checks, the
// cheap come first, and those that cost a provider something only after its signature:
// nobody can spend what is not his.
func (v *validator) validateRecord(from peer.ID, m *pubsub.Message) (*records.Record, outcome) {
	now := v.Now()
	switch {
	case v.senders.empty(from, now):
		return nil, throttled
	case len(m.GetData()) > records.MaxSize:
		return nil, oversize
	case len(m.ProtoReflect().GetUnknown()) > 0:
		return nil, forged // ballast that the message id does not cover and that we would forward
	}
	r, err := v.Verifier.Open(m.GetData(), now)
	switch {
	case fault.KindOf(err) == fault.Conflict:
		return nil, stale
	case err != nil:
		return nil, forged
	case !belongsTo(m.GetTopic(), r):
		return nil, wrongTopic
	case v.stale(r, now):
		return nil, stale
	case !v.providers.take(r.Name().Provider, now):
		return nil, throttled
	}
	return r, accepted
}

// belongsTo reports whether a record belongs to the topic of that name.
func belongsTo(topic string, r *records.Record) bool {
	for _, t := range TopicsOf(r) {
		if t.String() == topic {
			return true
		}
	}
	return false
}

// stale reports whether a record is no news to this peer.
func (v *validator) stale(r *records.Record, now time.Time) bool {
	known, ok := v.Known(r.Name())
	if !ok {
		return false
	}
	order := records.Compare(r, known)
	return order < 0 || order == 0 && now.Sub(r.Issued()) > relayWindow
}

// rateLimiters are token buckets of peers, boundedly many.
type rateLimiters struct {
	limit   rate.Limit
	burst   int
	buckets *lru.Cache[peer.ID, *rate.Limiter]
}

func newRateLimiters(limit rate.Limit, burst int) *rateLimiters {
	b, err := lru.New[peer.ID, *rate.Limiter](buckets)
	if err != nil {
		panic("gossip: " + err.Error()) // impossible: the size is a positive constant
	}
	return &rateLimiters{limit: limit, burst: burst, buckets: b}
}

// take takes a token of a peer, and reports whether there was one.
func (a *rateLimiters) take(id peer.ID, now time.Time) bool {
	b, ok := a.buckets.Get(id)
	if !ok {
		b = rate.NewLimiter(a.limit, a.burst)
		if first, ok, _ := a.buckets.PeekOrAdd(id, b); ok {
			b = first
		}
	}
	return b.AllowN(now, 1)
}

// empty reports whether a peer has no token left. It makes no account.
func (a *rateLimiters) empty(id peer.ID, now time.Time) bool {
	b, ok := a.buckets.Peek(id)
	return ok && b.TokensAt(now) < 1
}

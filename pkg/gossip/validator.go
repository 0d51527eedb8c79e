package gossip

import (
	"context"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/time/rate"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// outcome is the result of a message's validation: see Config.Received.
type outcome string

const (
	accepted   outcome = "accepted"
	stale      outcome = "stale"
	forged     outcome = "forged"
	wrongTopic outcome = "wrong_topic"
	oversize   outcome = "oversize"
	newer      outcome = "newer"
	foreign    outcome = "other_network"
	invalid    outcome = "invalid"
	altered    outcome = "altered"
	throttled  outcome = "throttled"
	queueFull  outcome = "queue_full"
	dropped    outcome = "dropped"
)

// validation returns the result for pubsub. A rejected message counts against the sender, so only
// messages that no honest peer forwards are rejected. Messages that an honest peer may forward in
// good faith are ignored: a later version may read what this one does not. They end here, because
// without their place and expiry nothing would stop a replay. A record that needs features of a
// later version is accepted: its core is known.
func (o outcome) validation() pubsub.ValidationResult {
	switch o {
	case accepted:
		return pubsub.ValidationAccept
	case stale, throttled, newer, foreign, invalid:
		return pubsub.ValidationIgnore
	default:
		return pubsub.ValidationReject
	}
}

const (
	providerRate  = 20  // changes per second of one provider, all its services together
	providerBurst = 200 // a provider may announce many services at once
	copies        = 2   // messages of one change, at a follower of both topics

	// Without a stream to a peer pubsub keeps no score of it and cannot refuse it. The
	// validator accepts this many rejected messages, and then one in ten seconds.
	faultRate  = 0.1
	faultBurst = 16

	buckets = 4096 // tracked providers, and tracked senders; the least recently seen is dropped

	// relayWindow is the time after its issue in which a known version is still forwarded: it may
	// just have arrived from a keeper. Pubsub remembers message ids for the same time, so a later
	// replay of a known record ends at the first peer. The provider's clock may be slow.
	relayWindow = seenTTL + records.ClockSkew
)

// own marks a message of this peer, which needs no validation. Pubsub clears the field in messages
// from the network.
type own struct{}

// validator validates messages. It is safe for concurrent use and holds no lock during a
// verification.
type validator struct {
	Config
	providers *rateLimiters // updates by provider
	senders   *rateLimiters // rejected messages by sender
}

func newValidator(c Config) *validator {
	return &validator{
		Config:    c,
		providers: newRateLimiters(copies*providerRate, copies*providerBurst),
		senders:   newRateLimiters(faultRate, faultBurst),
	}
}

// validate is a pubsub.ValidatorEx. It stores the record of an accepted message in its
// ValidatorData.
func (v *validator) validate(_ context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
	if _, ok := m.ValidatorData.(own); ok {
		return pubsub.ValidationAccept
	}
	r, o := v.validateRecord(from, m)
	if o.validation() == pubsub.ValidationReject {
		v.senders.take(from, v.Now())
	}
	v.Received(string(o))
	if o == accepted {
		m.ValidatorData = r
	}
	return o.validation()
}

// validateRecord returns the record with accepted, and nil with any other outcome. Cheap checks
// come first. Checks against a provider's rate come after its signature, so that no other peer can
// use up the rate.
func (v *validator) validateRecord(from peer.ID, m *pubsub.Message) (*records.Record, outcome) {
	now := v.Now()
	switch {
	case v.senders.empty(from, now):
		return nil, throttled
	case len(m.GetData()) > records.MaxSize:
		return nil, oversize
	case len(m.ProtoReflect().GetUnknown()) > 0:
		return nil, altered // bytes outside the message id that this peer would forward
	}
	r, err := v.Verifier.Open(m.GetData(), now)
	switch {
	case err == nil:
	case fault.KindOf(err) == fault.Conflict:
		return nil, stale
	case records.OfOtherNetwork(err):
		return nil, foreign
	case fault.KindOf(err) == fault.Unsupported:
		return nil, newer
	case records.Blameless(err):
		return nil, invalid
	default:
		return nil, forged
	}
	switch {
	case !v.belongsTo(m.GetTopic(), r):
		return nil, wrongTopic
	case v.stale(r, now):
		return nil, stale
	case !v.providers.take(r.Name().Provider, now):
		return nil, throttled
	}
	return r, accepted
}

// belongsTo reports whether a record belongs to a topic.
func (v *validator) belongsTo(topic string, r *records.Record) bool {
	return slices.ContainsFunc(topicsOf(r), func(t Topic) bool { return t.In(v.Network) == topic })
}

// stale reports whether this peer knows the record or a newer version already.
func (v *validator) stale(r *records.Record, now time.Time) bool {
	known, ok := v.Known(r.Name())
	if !ok {
		return false
	}
	order := records.Compare(r, known)
	return order < 0 || order == 0 && now.Sub(r.Issued()) > relayWindow
}

// rateLimiters are token buckets of a bounded number of peers.
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

// take takes a token of a peer. It reports false for an empty bucket.
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

// empty reports whether a peer's bucket is empty. It creates no bucket.
func (a *rateLimiters) empty(id peer.ID, now time.Time) bool {
	b, ok := a.buckets.Peek(id)
	return ok && b.TokensAt(now) < 1
}

package gossip

import (
	"log/slog"
	"time"

	"github.com/blackhole/blackhole/pkg/records"
)

// Recorder receives what the operator's metrics count. Its methods must not block.
type Recorder interface {
	// Received counts one message from the network by what became of it:
	//
	//   - accepted: fresh, forwarded and handed to the Sink;
	//   - stale: authentic, but lapsed, not valid yet, or no news;
	//   - forged: no honest peer makes or forwards such bytes;
	//   - wrong_topic: a record on a topic that is not its own;
	//   - oversize: above records.MaxSize;
	//   - throttled: beyond the rate of its provider, from a peer with too much on its
	//     account, or while the queue of messages to validate was full;
	//   - dropped: accepted and forwarded, but the Sink was too slow for it.
	Received(outcome string)
}

// Config are the parts and settings of the package. Options needs Verifier, New needs Sink.
type Config struct {
	// Verifier opens records; shared with the other roads by which records come, it makes
	// sure that each is verified once.
	Verifier *records.Verifier
	// Sink takes every accepted record, once for each followed topic that carries it. It is
	// called from several goroutines. It must not block for long (what does not fit into
	// the topic's buffer meanwhile is lost), and must not call release or Close.
	Sink func(*records.Record)
	// Known gives the freshest version this peer has of a service, tombstones included.
	// It is called for each message, so it must be fast. Nil: nothing is known.
	Known func(records.Name) (*records.Record, bool)
	// Now is the time; nil is time.Now.
	Now      func() time.Time
	Logger   *slog.Logger // nil: silent
	Recorder Recorder     // nil: nothing is recorded
	// Others reports whether a topic is somebody else's who shares the PubSub, has a validator for it,
	// and joins no topic without; nil: none is.
	Others func(topic string) bool
	// Loopback says that all peers may share one address, as on one machine or behind one
	// router. It turns off the penalty for peers of one address.
	Loopback bool
}

func (c *Config) setDefaults() {
	if c.Known == nil {
		c.Known = func(records.Name) (*records.Record, bool) { return nil, false }
	}
	if c.Others == nil {
		c.Others = func(string) bool { return false }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Recorder == nil {
		c.Recorder = nopRecorder{}
	}
}

type nopRecorder struct{}

func (nopRecorder) Received(string) {}

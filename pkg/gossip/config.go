package gossip

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

// Config configures the package. Both functions need Network, Options needs Verifier, New needs Sink.
type Config struct {
	Network network.Name // names the protocol and all topics
	// Verifier verifies records. Shared with the other sources of records, it verifies each record
	// once.
	Verifier *records.Verifier
	// Sink receives every accepted record, once for each followed topic with the record. Several
	// goroutines call it. A slow Sink loses messages above the topic's buffer. It must not call
	// release or Close.
	Sink func(*records.Record)
	// Known returns the newest version of a service on this peer, tombstones included. The
	// validator calls it for each message: a slow Known delays all messages. Nil means no known
	// records.
	Known func(records.Name) (*records.Record, bool)
	// Now returns the time; nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil logs nothing
	// Received counts one message from the network by its outcome. It must not block. Nil counts nothing. The outcomes are:
	//
	//   - accepted: fresh, forwarded and delivered to the Sink;
	//   - stale: authentic, but expired, not valid yet, or not newer than the known version;
	//   - forged: no record with a valid signature of its provider;
	//   - altered: bytes beside the record, which nobody signed;
	//   - newer: signed in a later format, which this version does not read;
	//   - other_network: a record of another network;
	//   - invalid: signed against the rules of this version;
	//   - wrong_topic: a record on a topic of other records;
	//   - oversize: above records.MaxSize;
	//   - throttled: above the rate of its provider, or from a peer with too many rejected
	//     messages;
	//   - queue_full: not validated, because this peer was too slow;
	//   - dropped: accepted and forwarded, but the Sink was too slow.
	Received func(outcome string)
	// Lost is told the topic of each message with the outcome queue_full or dropped. It must not block. Nil tells nobody.
	Lost func(Topic)
	// Loopback allows all peers to share one address, on one machine or behind one router: it
	// disables the penalty for peers with equal addresses.
	Loopback bool
}

func (c *Config) setDefaults() {
	if c.Known == nil {
		c.Known = func(records.Name) (*records.Record, bool) { return nil, false }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Received == nil {
		c.Received = func(string) {}
	}
	if c.Lost == nil {
		c.Lost = func(Topic) {}
	}
}

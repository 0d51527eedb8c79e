package coordination

import (
	"time"

	"github.com/blackhole/blackhole/internal/coordination/transport"
)

// Recorder counts for the operator's metrics. Its methods must not block.
type Recorder interface {
	transport.Recorder
	// Took receives the duration of a step: "commit", from a proposal at the leader to its result, or "fsync", one sync of
	// the log.
	Took(step string, d time.Duration)
	// Led counts a leader that this peer had not followed before.
	Led()
	// Compared counts a comparison of the members' states at this leader: "equal", "odd", "split", or "missing", when a
	// member gave no hash and the others agree.
	Compared(outcome string)
}

func (c *Config) compared(outcome string) {
	if c.Recorder != nil {
		c.Recorder.Compared(outcome)
	}
}

func (c *Config) committed(d time.Duration) {
	if c.Recorder != nil {
		c.Recorder.Took("commit", d)
	}
}

func (c *Config) led() {
	if c.Recorder != nil {
		c.Recorder.Led()
	}
}

// synced returns the receiver of the log's syncs; nil without a recorder.
func (c *Config) synced() func(time.Duration) {
	if c.Recorder == nil {
		return nil
	}
	return func(d time.Duration) { c.Recorder.Took("fsync", d) }
}

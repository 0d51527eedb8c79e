package daemon

import (
	"log/slog"
	"net"
	"time"

	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	fewestCallers = 64      // connections of callers on a system with few descriptors
	mostCallers   = 1 << 14 // and on one with many
)

// callers bounds the connections of callers of HTTP and gRPC, together and for each client. Without a bound, they could
// take the descriptors that Raft, the storage, other peers and health need.
type callers struct {
	pool    *access.Pool
	lines   *access.Limiter
	log     *slog.Logger
	refused func()
}

// newCallers returns callers that may have a quarter of the descriptors. It calls refused for each refused connection.
func newCallers(descriptors uint64, log *slog.Logger, refused func()) *callers {
	most := min(max(descriptors/4, fewestCallers), mostCallers)
	return &callers{pool: access.NewPool(int(most)), lines: access.NewLimiter(refusalsPerMinute, 0), log: log, refused: refused}
}

// on bounds the connections of a listener; nil stays nil.
func (c *callers) on(l net.Listener) net.Listener {
	if l == nil {
		return nil
	}
	return c.pool.Listener(l, func(err error) {
		c.refused()
		if c.lines.Take("", 1, time.Now()) == nil {
			c.log.Warn("refused a connection of a caller", "reason", fault.Message(err))
		}
	})
}

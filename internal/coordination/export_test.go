package coordination

import (
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/coordination/routing"
)

// DialBy makes calls to other members go over dial instead of the host.
func (c *Config) DialBy(dial func(peer.ID) (routing.Remote, error)) { c.dial = dial }

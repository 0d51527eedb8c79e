//go:build !lab

package daemon

import (
	"net"
	"time"
)

// newClock returns the clock of this peer: the clock of the machine.
func newClock(string) func() time.Time { return time.Now }

// newResolver returns the resolver of the names in offers: that of the machine.
func newResolver(string) *net.Resolver { return &net.Resolver{PreferGo: true} }

package catalog

import (
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Bounds of the memory of ended instances.
const (
	// MaxEnded is the number of ended instances that a catalog remembers, the last ones.
	MaxEnded  = 1000
	endedTime = time.Hour
)

// note remembers the end of an instance, and forgets it after its return.
func (c *Catalog) note(before, after *instance.Instance) {
	switch {
	case after != nil:
		c.ended.Remove(after.Key)
	case before != nil:
		c.ended.Add(before.Key, instances.Removal{Instance: before, At: c.cfg.Now().UTC()})
	}
}

// Ended returns the instances of a service, of a namespace without a service, or of all for the zero name, that ended within the last hour and did
// not return, the last end first. The causes are empty.
func (c *Catalog) Ended(n instance.Name) []instances.Removal {
	now := c.cfg.Now()
	list := slices.DeleteFunc(c.ended.Values(), func(r instances.Removal) bool {
		return n.Namespace != "" && r.Namespace != n.Namespace || n.Service != "" && r.Service != n.Service || now.Sub(r.At) >= endedTime
	})
	slices.SortFunc(list, func(a, b instances.Removal) int {
		if c := b.At.Compare(a.At); c != 0 {
			return c
		}
		return a.Key.Compare(b.Key)
	})
	return list
}

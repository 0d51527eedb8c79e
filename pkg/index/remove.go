package index

import "github.com/blackhole/blackhole/pkg/records"

// Remove takes a live record out that this peer is not to keep, and reports whether there
// was one. Subscribers see it as evicted. Nothing is remembered of it: any valid version may
// be put again, an older one too.
func (x *Index) Remove(n records.Name) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.names[n]
	if e == nil || e.state != live {
		return false
	}
	x.expel(e)
	x.drop(e)
	x.feed.publish(Evicted, e.record, nil)
	return true
}

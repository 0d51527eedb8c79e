package index

import "github.com/blackhole/blackhole/pkg/records"

// Remove takes a live record out that this peer is not to keep, and reports whether there
// was one. Subscribers see it as evicted. Nothing is remembered of it: any valid version may
// be put again, an older one too.
func (x *Index) Remove(n records.Name) bool {
	return x.remove(n, func(*records.Record) bool { return true })
}

// Forget is Remove of just this version: one that came meanwhile stays.
func (x *Index) Forget(r *records.Record) bool {
	return x.remove(r.Name(), func(held *records.Record) bool { return records.Compare(held, r) == 0 })
}

func (x *Index) remove(n records.Name, meant func(*records.Record) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.names.find(n)
	if e == nil || e.state() != live || !meant(e.record) {
		return false
	}
	x.evict(e)
	return true
}

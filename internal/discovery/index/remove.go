package index

import "github.com/blackhole/blackhole/pkg/records"

// Remove deletes a live record for which this peer is not responsible, and reports whether one
// existed. Readers of changes see Evicted. The index remembers nothing: Put accepts any valid
// version again, an older one too.
func (x *Index) Remove(n records.Name) bool {
	return remove(x, n, func(*records.Record) bool { return true })
}

// Forget is Remove limited to this version. It keeps a later version.
func (x *Index) Forget(r *records.Record) bool {
	return remove(x, r.Name(), func(held *records.Record) bool { return records.Compare(held, r) == 0 })
}

func remove(x *Index, n records.Name, meant func(*records.Record) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.names.find(n)
	if e == nil || e.state() != live || !meant(e.record) {
		return false
	}
	x.evict(e)
	return true
}

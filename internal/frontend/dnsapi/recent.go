package dnsapi

// recent is a cache of at most 2*max entries with recent use, for one goroutine at a time. It has two
// halves, and drops the older when the younger is full. Unlike an LRU list it takes a []byte as a key
// without allocation.
type recent[V any] struct {
	max        int
	young, old map[string]V
}

func newRecent[V any](limit int) *recent[V] {
	return &recent[V]{max: limit, young: make(map[string]V)}
}

func (r *recent[V]) get(key []byte) (V, bool) {
	v, ok := r.young[string(key)]
	if ok {
		return v, true
	}
	if v, ok = r.old[string(key)]; ok {
		r.put(key, v)
	}
	return v, ok
}

func (r *recent[V]) put(key []byte, v V) {
	if _, ok := r.young[string(key)]; !ok && len(r.young) >= r.max {
		r.old, r.young = r.young, make(map[string]V)
	}
	r.young[string(key)] = v
}

package instance

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// View is one result: instances by id, or with the preferred zone first. It is
// immutable and shared by equal queries, so that each rendering happens once.
type View struct {
	// Index grows with each change of the result and only then.
	Index     uint64
	Instances []*Instance

	bytes atomic.Int64 // of Bytes; 0: not counted yet
	kept  *Renderings  // nil: each rendering is new
	mu    sync.Mutex   // held while Form renders: readers of one view wait for its first
}

// NewView returns a view whose renderings are kept with those of others.
func NewView(index uint64, list []*Instance, kept *Renderings) *View {
	return &View{Index: index, Instances: list, kept: kept}
}

// Next returns the view of the result after a change. Instances of both keep
// their pieces.
func (v *View) Next(index uint64, list []*Instance) *View { return NewView(index, list, v.kept) }

// Bytes returns about how many bytes a rendering of all instances has. The first call of a view counts.
func (v *View) Bytes() int {
	n := v.bytes.Load()
	if n == 0 {
		for _, i := range v.Instances {
			n += int64(i.Bytes())
		}
		v.bytes.Store(n)
	}
	return int(n)
}

// Bytes returns about how many bytes a rendering of the instance has.
func (i *Instance) Bytes() int { return most(&i.Key, &i.Spec) }

// Form returns the named rendering: a kept one, or a new one from render. The
// bytes are shared and read-only.
func (v *View) Form(name string, render func() []byte) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kept.of(rendering{name, v}, v.Bytes, render)
}

// Pieces returns the named renderings of Instances[from:to] with their distance
// from the first one, kept as long as there is room. The bytes are shared and
// read-only. Callers use a constant name for each render.
func (v *View) Pieces(name string, from, to int, render func(*Instance) []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for n, i := range v.Instances[from:to] {
			if !yield(n, v.kept.of(rendering{name, i}, i.Bytes, func() []byte { return render(i) })) {
				return
			}
		}
	}
}

// Renderings keeps renderings of views and instances, the last used ones, up to
// a number of bytes. It counts what it keeps alive too: an instance may be in
// no view any more. Safe for concurrent use.
type Renderings struct {
	most int

	mu    sync.Mutex // guards the fields below
	bytes int
	known *simplelru.LRU[rendering, kept]
}

// rendering names what a *View or an *Instance was rendered to.
type rendering struct {
	name string
	of   any
}

// kept is a text and what it costs with the owner that it keeps alive.
type kept struct {
	text  []byte
	bytes int
}

// NewRenderings returns an empty one for a number of bytes.
func NewRenderings(most int) *Renderings {
	const smallest = 256 // bytes of any, see most of an instance
	r := &Renderings{most: most}
	known, err := simplelru.NewLRU(max(most/smallest, 1), func(_ rendering, k kept) { r.bytes -= k.bytes })
	if err != nil {
		panic("instance: " + err.Error()) // impossible: the size is above 0
	}
	r.known = known
	return r
}

// of returns a kept rendering, or a new one. size tells the bytes of its owner.
func (r *Renderings) of(k rendering, size func() int, render func() []byte) []byte {
	if r == nil {
		return render()
	}
	r.mu.Lock()
	one, ok := r.known.Get(k)
	r.mu.Unlock()
	if ok {
		return one.text
	}
	one.text = render()
	one.bytes = len(one.text) + size()
	r.mu.Lock()
	defer r.mu.Unlock()
	if one.bytes > r.most || r.known.Contains(k) {
		return one.text
	}
	r.known.Add(k, one)
	for r.bytes += one.bytes; r.bytes > r.most; {
		r.known.RemoveOldest()
	}
	return one.text
}

// Texts describes an instance to DNS as key=value (RFC 6763, section 6): the fields that other records do not
// contain, then the interfaces and the metadata.
func (i *Instance) Texts() []string {
	list := []string{"id=" + i.ID}
	for _, t := range [][2]string{
		{"version", i.Spec.Version}, {"environment", i.Spec.Environment}, {"region", i.Spec.Region}, {"zone", i.Spec.Zone},
		{"tags", strings.Join(i.Spec.Tags, ",")},
	} {
		if t[1] != "" {
			list = append(list, t[0]+"="+t[1])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(i.Spec.Interfaces)) {
		list = append(list, "interfaces."+k+"="+i.Spec.Interfaces[k])
	}
	for _, k := range slices.Sorted(maps.Keys(i.Spec.Metadata)) {
		list = append(list, k+"="+i.Spec.Metadata[k])
	}
	return list
}

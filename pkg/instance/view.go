package instance

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Bounds of a View's renderings.
const (
	maxForms = 16 // cached forms
	nearby   = 64 // positions by which a kept instance may have moved between two views
)

// View is one result: instances by id, or with the preferred zone first. It is
// immutable and shared by equal queries, so that each rendering happens once.
type View struct {
	// Index grows with each change of the result and only then.
	Index     uint64
	Instances []*Instance

	bytes atomic.Int64 // of Bytes; 0: not counted yet

	mu    sync.Mutex // guards forms
	forms map[string][]byte

	piece  sync.Mutex // guards the fields below; taken after mu
	pieces map[string]pieces
	before map[string]pieces // of earlier views of the result; not changed any more
}

// pieces are the renderings of a list of instances; nil is not rendered yet.
type pieces struct {
	of   []*Instance
	made [][]byte
}

// Next returns the view of the result after a change. Instances of both keep
// their pieces.
func (v *View) Next(index uint64, list []*Instance) *View {
	v.piece.Lock()
	defer v.piece.Unlock()
	next := &View{Index: index, Instances: list}
	next.before = maps.Clone(v.before)
	if next.before == nil {
		next.before = v.pieces
	} else {
		maps.Copy(next.before, v.pieces)
	}
	v.pieces = nil // the next view reads them without this lock
	return next
}

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

// Form returns the named rendering: a cached one, or a new one from render,
// cached if there is room. The bytes are shared and read-only.
func (v *View) Form(name string, render func() []byte) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	if b, ok := v.forms[name]; ok {
		return b
	}
	b := render()
	if v.forms == nil {
		v.forms = make(map[string][]byte)
	}
	if len(v.forms) < maxForms {
		v.forms[name] = b
	}
	return b
}

// Pieces returns the named renderings of Instances[from:to], each made once in
// the life of its instance. The bytes are shared and read-only. Callers use a
// constant name for each render.
func (v *View) Pieces(name string, from, to int, render func(*Instance) []byte) [][]byte {
	v.piece.Lock()
	defer v.piece.Unlock()
	p, ok := v.pieces[name]
	if !ok {
		p = pieces{v.Instances, make([][]byte, len(v.Instances))}
		if v.pieces == nil {
			v.pieces = make(map[string]pieces)
		}
		v.pieces[name] = p
	}
	old, moved := v.before[name], 0
	for n := from; n < to; n++ {
		if p.made[n] == nil {
			p.made[n], moved = old.find(p.of[n], n, moved)
		}
		if p.made[n] == nil {
			p.made[n] = render(p.of[n])
		}
	}
	return p.made[from:to]
}

// find returns the rendering of an instance near a position, and the distance,
// which is likely that of the next instance too.
func (p pieces) find(i *Instance, at, moved int) ([]byte, int) {
	for d := range min(nearby, len(p.of)) {
		for _, n := range [2]int{at + moved + d, at + moved - d} {
			if 0 <= n && n < len(p.of) && p.of[n] == i {
				return p.made[n], n - at
			}
		}
	}
	return nil, moved
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

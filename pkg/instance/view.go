package instance

import "sync"

// maxForms bounds the cached renderings of a View.
const maxForms = 16

// View is one result: instances by id, or with the preferred zone first. It is
// immutable and shared by equal queries, so that each rendering happens once.
type View struct {
	// Index grows with each change of the result and only then.
	Index     uint64
	Instances []*Instance

	mu    sync.Mutex // guards forms
	forms map[string][]byte
}

// NewView returns a View that owns the list.
func NewView(index uint64, list []*Instance) *View { return &View{Index: index, Instances: list} }

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

package instance

import "sync"

// maxForms bounds the rendered forms that a View keeps.
const maxForms = 16

// View is one result: instances by id, or nearest zone first where that was asked for. It and what it
// holds are immutable and shared by all who ask the same, so that its rendered forms are made once.
type View struct {
	// Index changes when and only when the result does, and only grows.
	Index     uint64
	Instances []*Instance

	mu    sync.Mutex // guards forms
	forms map[string][]byte
}

// NewView makes a View that owns the list.
func NewView(index uint64, list []*Instance) *View { return &View{Index: index, Instances: list} }

// Form gives the rendered form of a name, made by render once and kept, unless there are too many
// kept already. The bytes are shared: they must not be written to.
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

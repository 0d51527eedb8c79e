package store

import "github.com/blackhole/blackhole/pkg/fault"

// Format is the version of one kind of durable data and the way to it: the only place that states the version.
// A new version comes with one step, and the first version has none.
type Format[T any] struct {
	Name string // for operators: "database of services"
	// Steps[i] migrates data of version i+1 to version i+2. A step must bear a repetition, because a crash can
	// come before its version is noted.
	Steps []func(T) error
}

// Version is the version that this program writes.
func (f Format[T]) Version() uint32 { return uint32(len(f.Steps)) + 1 }

// Upgrade migrates data of an earlier version, step by step. After each step it calls reached, which notes the
// version durably. Data of this version needs nothing, and reached is not called.
//
// Errors: Unsupported for a later version, with the way out; those of the steps and of reached.
func (f Format[T]) Upgrade(place string, is uint32, data T, reached func(version uint32) error) error {
	present := f.Version()
	if is == 0 || is > present {
		return fault.New("", fault.Unsupported, "the %s in %s has format %d, this program reads formats 1 to %d: "+
			"run the later program again, or restore the directory from before its start", f.Name, place, is, present)
	}
	for ; is < present; is++ {
		if err := f.Steps[is-1](data); err != nil {
			return err
		}
		if err := reached(is + 1); err != nil {
			return err
		}
	}
	return nil
}

package store

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Format is the version of one kind of durable data, a database or a file, and the way to it: the only place that
// states the version.
// A new version comes with one step, and the first version has none.
type Format[T any] struct {
	Name string // for operators: "database of services"; in a file, part of its first line
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
	if err := f.Check(place, is); err != nil {
		return err
	}
	for present := f.Version(); is < present; is++ {
		if err := f.Steps[is-1](data); err != nil {
			return err
		}
		if err := reached(is + 1); err != nil {
			return err
		}
	}
	return nil
}

// Check refuses a version that this program does not read. Errors: Unsupported.
func (f Format[T]) Check(place string, is uint32) error {
	if present := f.Version(); is == 0 || is > present {
		return fault.New("", fault.Unsupported, "the %s in %s has format %d, this program reads formats 1 to %d: "+
			"run the later program again, or restore the directory from before its start", f.Name, place, is, present)
	}
	return nil
}

// Seal returns the bytes of a file with this content: a first line with name and version, then the content.
func (f Format[T]) Seal(content []byte) []byte {
	return append(fmt.Appendf(nil, "%s%d\n", f.head(), f.Version()), content...)
}

// Unseal returns the content of a file and its version, for Upgrade. The content of a later version may have any
// form, so the first line alone decides.
//
// Errors: Unsupported for a later version, with the way out; Invalid for a file without the first line.
func (f Format[T]) Unseal(place string, file []byte) (content []byte, version uint32, err error) {
	line, content, found := bytes.Cut(file, []byte("\n"))
	digits, named := bytes.CutPrefix(line, []byte(f.head()))
	is, err := strconv.ParseUint(string(digits), 10, 32)
	if !found || !named || err != nil || strconv.FormatUint(is, 10) != string(digits) {
		return nil, 0, fault.New("", fault.Invalid, "%s does not begin with the line %q", place, f.head()+strconv.FormatUint(uint64(f.Version()), 10))
	}
	return content, uint32(is), f.Check(place, uint32(is))
}

func (f Format[T]) head() string { return f.Name + ", format " }

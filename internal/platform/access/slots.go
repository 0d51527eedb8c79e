package access

import "github.com/blackhole/blackhole/pkg/fault"

// Slots bounds concurrent uses of a resource, such as open watches. Its capacity is the bound.
type Slots chan struct{}

// Take occupies a slot until release is called. It fails with LimitReached when all slots are
// taken; op and resource name the caller and the resource in the error.
func (s Slots) Take(op, resource string) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	default:
		return nil, fault.New(op, fault.LimitReached, "all %d %s are in use: close one or retry later", cap(s), resource)
	}
}

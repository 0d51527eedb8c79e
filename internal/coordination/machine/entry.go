package machine

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// checkEntry looks at an entry by itself. Members of all versions must refuse the same batches, and the
// message of an instance grows. So the value is bytes here. A member decodes it where a peer's call
// arrives, before the log.
func checkEntry(e *coord.Entry, l *limits) error {
	if err := l.key("key", e.Key); err != nil {
		return err
	}
	if _, _, _, ok := coord.EntryNames(e.Key); !ok {
		return fault.Invalidf("key", nil, "must be directory/NAMESPACE/SERVICE/ID")
	}
	if e.Since < 0 {
		return fault.Invalidf("since", e.Since, "must not be negative")
	}
	if e.Principal != "" && (!coord.IsPrincipal(e.Principal) || len(e.Principal) > int(l.OwnerBytes)) {
		return fault.Invalidf("principal", nil, "must be empty, or @ and a name, with at most %d bytes", l.OwnerBytes)
	}
	if len(e.Value) == 0 {
		return fault.Invalidf("value", nil, "is missing")
	}
	if most := min(coord.MaxEntry, int(l.ValueBytes)); len(e.Value) > most {
		return tooLarge("value", len(e.Value), int64(most))
	}
	return nil
}

// reserved reports whether a key is in a prefix that only the directory's commands write, or only members.
func reserved(key string) bool {
	return strings.HasPrefix(key, coord.DirectoryPrefix) || strings.HasPrefix(key, coord.RequirementsPrefix) ||
		strings.HasPrefix(key, coord.MembersPrefix)
}

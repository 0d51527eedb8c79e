package machine

import (
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// checkEntry looks at an entry by itself. Members of all versions must refuse the same batches, and the
// message of an instance grows. So the value is bytes here. A member decodes it where a peer's call
// arrives, before the log.
func checkEntry(key string, e *apiv1.DirectoryEntry, l *limits) error {
	if err := l.key("key", len(key)); err != nil {
		return err
	}
	if _, _, _, ok := directory.Names(key); !ok {
		return fault.Invalidf("key", nil, "must be directory/NAMESPACE/SERVICE/ID")
	}
	if e.GetSince() < 0 {
		return fault.Invalidf("since", e.GetSince(), "must not be negative")
	}
	if p := e.GetPrincipal(); p != "" && (!principals.Valid(p) || len(p) > int(l.OwnerBytes)) {
		return fault.Invalidf("principal", nil, "must be empty, or @ and a name, with at most %d bytes", l.OwnerBytes)
	}
	if len(e.GetValue()) == 0 {
		return fault.Invalidf("value", nil, "is missing")
	}
	if most := min(directory.MaxEntry, int(l.ValueBytes)); len(e.GetValue()) > most {
		return tooLarge("value", len(e.GetValue()), int64(most))
	}
	return nil
}

// reserved reports whether a key is in a prefix that only the directory's commands write, or only members, or one peer.
func reserved(key string) bool {
	return strings.HasPrefix(key, directory.Prefix) || strings.HasPrefix(key, requirements.Prefix) ||
		strings.HasPrefix(key, coord.MembersPrefix) || strings.HasPrefix(key, coord.LedgersPrefix)
}

// mayWrite reports whether an owner may write a reserved key by a transaction. The commands of members have no owner.
func mayWrite(owner, key string) bool {
	if peer, ledger := strings.CutPrefix(key, coord.LedgersPrefix); ledger {
		return peer == owner && owner != ""
	}
	return owner == "" && strings.HasPrefix(key, coord.MembersPrefix)
}

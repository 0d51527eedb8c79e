package digest

import (
	"github.com/blackhole/blackhole/pkg/records"
)

// EntryOf returns the digest entry of a record. Provider is the text form of its provider.
func EntryOf(r *records.Record, provider string) Entry {
	return Entry{
		ID:      IDOf(provider + "/" + r.Name().ID),
		Version: VersionOf(r.Sequence(), r.Digest()),
	}
}

package protocol

import (
	"github.com/blackhole/blackhole/internal/platform/digest"
	"github.com/blackhole/blackhole/pkg/records"
)

// EntryOf returns the entry of a record in a comparison. Provider is the text form of its provider.
func EntryOf(r *records.Record, provider string) digest.Entry {
	return digest.Entry{
		ID:      digest.IDOf(provider + "/" + r.Name().ID),
		Version: digest.VersionOf(r.Sequence(), r.Digest()),
	}
}

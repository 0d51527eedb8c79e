package discovery

import "github.com/blackhole/blackhole/pkg/records"

// Wants reports whether a watch shows the record.
func (s *Service) Wants(r *records.Record) bool { return s.watches.wants(r) }

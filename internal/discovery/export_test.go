package discovery

import (
	"github.com/blackhole/blackhole/pkg/gossip"
	"github.com/blackhole/blackhole/pkg/records"
)

// Wants reports whether a watch shows the record.
func (s *Service) Wants(r *records.Record) bool { return s.watches.wants(r) }

// Want has offers measured.
func (s *Service) Want(list []*records.Record) { s.truth.Want(list) }

// Lose tells the watches that a live update did not arrive.
func (s *Service) Lose(t gossip.Topic) { s.watches.lost(t) }

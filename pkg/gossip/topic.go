package gossip

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	topicLen = 2                        // characters of a topic's geohash
	maxTopic = 32 + 1 + len(geo.Global) // bytes after the prefix of the network

	// maxCover is the maximum number of cells of a plan; a larger disc follows the global topic.
	maxCover = 8
)

// Topic names a stream of records: one type in one geohash cell of two characters, or
// everywhere. The zero value is invalid.
type Topic struct {
	Type string
	Cell geo.Cell // of two characters, or geo.Global
}

// String returns the part that is the same in all networks: {type}/{geohash of 2 | global}.
func (t Topic) String() string { return t.Type + "/" + string(t.Cell) }

// In returns the canonical form in a network: /blackhole/NETWORK/live/1/{type}/{geohash of 2 | global}.
func (t Topic) In(n network.Name) string { return prefixOf(n) + t.String() }

func prefixOf(n network.Name) string { return n.Topics("live", "1") }

// parseTopic parses the canonical form in a network. It returns an Invalid error naming "topic" for any other
// string.
func parseTopic(n network.Name, s string) (Topic, error) {
	prefix := prefixOf(n)
	if most := len(prefix) + maxTopic; len(s) > most {
		return Topic{}, fault.Invalidf("topic", nil, "must have at most %d bytes, got %d", most, len(s))
	}
	path, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return Topic{}, fault.Invalidf("topic", s, "must begin with %s", prefix)
	}
	kind, cell, _ := strings.Cut(path, "/")
	// Types and cells have the grammar of the keys of the index.
	key, err := records.ParseCellKey(records.CellKey{Type: kind, Subtype: records.AnySubtype, Cell: geo.Cell(cell)}.String())
	switch {
	case err != nil:
		return Topic{}, fault.Invalidf("topic", s, "%s", fault.Message(err))
	case key.Cell != geo.Global && key.Cell.Len() != topicLen:
		return Topic{}, fault.Invalidf("topic", s, "must have a geohash of %d characters, or %q", topicLen, geo.Global)
	}
	return Topic{Type: key.Type, Cell: key.Cell}, nil
}

// topicsOf returns the topics of a record: the topic of its place, if known, and the global topic
// of its type.
//
// Two topics cost the publisher two messages for each change. In return, a consumer with a small
// disc receives a thousandth of the world, and a consumer without a disc follows one topic instead
// of 1024. Followers of a global topic pay for it: they receive every change of the type. With a
// million records refreshed hourly these are about 280 messages or 200 kB per second, several
// times that with the duplicates of the mesh.
func topicsOf(r *records.Record) []Topic {
	global := Topic{Type: r.Type(), Cell: geo.Global}
	p, ok := r.Facts().Place()
	if !ok {
		return []Topic{global}
	}
	return []Topic{{Type: r.Type(), Cell: geo.CellOf(p, topicLen)}, global}
}

// TopicsFor returns topics that together carry every record of a type in a disc, or anywhere for nil: at most 8 cells
// that touch the disc, or the global topic.
func TopicsFor(kind string, disc *geo.Disc) []Topic {
	cells := []geo.Cell{geo.Global}
	if disc != nil {
		if cover, ok := geo.CoverAt(*disc, topicLen, maxCover); ok {
			cells = cover
		}
	}
	topics := make([]Topic, len(cells))
	for i, cell := range cells {
		topics[i] = Topic{Type: kind, Cell: cell}
	}
	return topics
}

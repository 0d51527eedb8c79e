package gossip

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

const (
	topicPrefix = "/blackhole/live/1/"
	topicLen    = geo.MinLen // characters of a topic's geohash
	maxTopic    = len(topicPrefix) + 32 + 1 + len(geo.Global)

	// maxCover is how many cells a plan follows; a larger disc follows the global topic.
	maxCover = 8
)

// Topic names one live stream: the records of a type in one geohash cell of two
// characters, or everywhere. Its zero value is no topic.
type Topic struct {
	Type string
	Cell geo.Cell // of two characters, or geo.Global
}

// String gives the topic's one form: /blackhole/live/1/{type}/{geohash of 2 | global}.
func (t Topic) String() string { return topicPrefix + t.Type + "/" + string(t.Cell) }

// ParseTopic reads a topic in its one form. It returns an Invalid error naming "topic" for
// anything else.
func ParseTopic(s string) (Topic, error) {
	if len(s) > maxTopic {
		return Topic{}, fault.Invalidf("topic", nil, "must be at most %d bytes, not %d", maxTopic, len(s))
	}
	path, ok := strings.CutPrefix(s, topicPrefix)
	if !ok {
		return Topic{}, fault.Invalidf("topic", s, "must begin with %s", topicPrefix)
	}
	kind, cell, _ := strings.Cut(path, "/")
	// Types and cells have the grammar of the index's keys, which is written down there.
	key, err := records.ParseCellKey(records.CellKey{Type: kind, Subtype: records.AnySubtype, Cell: geo.Cell(cell)}.String())
	switch {
	case err != nil:
		return Topic{}, fault.Invalidf("topic", s, "%s", fault.Message(err))
	case key.Cell != geo.Global && key.Cell.Len() != topicLen:
		return Topic{}, fault.Invalidf("topic", s, "must have a geohash of %d characters, or %q", topicLen, geo.Global)
	}
	return Topic{Type: key.Type, Cell: key.Cell}, nil
}

// TopicsOf gives the topics that a record is published to: that of its place, if it states
// one, and the global one of its type.
//
// Two topics cost the publisher two messages for each change. In return a consumer with a
// small disc hears a thousandth of the world, and one without a disc follows one topic
// instead of 1024. The price is paid by those who follow a global topic: every change of
// the type reaches them. At a million records refreshed hourly that is about 280 messages
// or 200 kB a second, several times that with the mesh's duplicates.
func TopicsOf(r *records.Record) []Topic {
	global := Topic{Type: r.Type(), Cell: geo.Global}
	p, ok := r.Facts().Place()
	if !ok {
		return []Topic{global}
	}
	return []Topic{{Type: r.Type(), Cell: geo.CellOf(p, topicLen)}, global}
}

// TopicsFor gives the topics that together carry every record a plan can match: the cells
// that its disc touches, when they are at most 8, and else the global one.
func TopicsFor(p *query.Plan) []Topic {
	cells := []geo.Cell{geo.Global}
	if disc, ok := p.Disc(); ok {
		if cover, ok := geo.CoverAt(disc, topicLen, maxCover); ok {
			cells = cover
		}
	}
	kind := p.Query().Type
	topics := make([]Topic, len(cells))
	for i, cell := range cells {
		topics[i] = Topic{Type: kind, Cell: cell}
	}
	return topics
}
